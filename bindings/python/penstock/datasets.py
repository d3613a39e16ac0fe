"""Datasets for `penstock.DataLoader(dataset, ...)`: what a job file's `dataset:` says, in Python's words."""

from __future__ import annotations

import os
from typing import Any, Optional, Union

from . import _pickled
from .errors import UsageError

__all__ = ["ImageFolder", "PairedFolders"]


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


class PairedFolders:
    """Pictures that belong together by their relative names, without classes: `images`, and `targets` (what each should
    become), `masks` (PNG files of class ids) or both.

    The same draws are made for all of a sample. Gives the fields "image", "target" (made and finished like the image)
    and "mask" (uint8 [height, width]: the geometry by nearest, no colour, no finishing; `mask.long()` is what losses
    want). A tuple batch is `image, target`, `image, mask` or `image, mask, target`: there is no label.
    """

    def __init__(self, images: Union[str, os.PathLike], targets: Optional[Union[str, os.PathLike]] = None,
                 masks: Optional[Union[str, os.PathLike]] = None) -> None:
        if targets is None and masks is None:
            raise UsageError("PairedFolders needs targets or masks", "pictures in class folders are an ImageFolder")
        given = {"images": images, "targets": targets, "masks": masks}
        self.folders = {name: os.fspath(folder) for name, folder in given.items() if folder is not None}

    def to_spec(self) -> dict:
        return {name: os.path.abspath(folder) for name, folder in self.folders.items()}

    def __repr__(self) -> str:
        return f"PairedFolders({', '.join(f'{name}={folder!r}' for name, folder in self.folders.items())})"


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
