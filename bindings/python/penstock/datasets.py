"""Datasets for `penstock.DataLoader(dataset, ...)`: what a job file's `dataset:` says, in Python's words."""

from __future__ import annotations

import os
from typing import Any, Union

from . import _pickled
from .errors import UsageError

__all__ = ["ImageFolder"]


class ImageFolder:
    """Pictures in class folders, `root/CLASS/….jpg`, in the order of torchvision's ImageFolder.

    Gives the fields "image" (uint8 [3, height, width] before finishing) and "label" (int64: place of the class's name
    in sorted order).
    """

    def __init__(self, root: Union[str, os.PathLike]) -> None:
        self.root = os.fspath(root)

    def to_spec(self) -> dict:
        return {"folder": os.path.abspath(self.root)}

    def __repr__(self) -> str:
        return f"ImageFolder({self.root!r})"


def spec_of(dataset: Any) -> dict:
    """A job file's `dataset:` for whatever the user gave."""
    to_spec = getattr(dataset, "to_spec", None)
    if to_spec is not None:
        return to_spec()
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return _pickled.dataset_spec(dataset)  # the user's own: workers of the loaders run it
    raise UsageError(f"a {type(dataset).__name__} is no dataset that penstock can read",
                     "give a job file's path, a job as a dict, penstock.ImageFolder(root), or an object with "
                     "__len__ and __getitem__")
