"""Datasets for `penstock.DataLoader(dataset, ...)`: what a job file's `dataset:` says, in Python's words."""

from __future__ import annotations

import io
import os
from typing import Any, Optional, Sequence, Union

from . import _job, _penstock
from .errors import DatasetError, UsageError

__all__ = ["CIFAR10", "CIFAR100", "CSVDataset", "FileList", "ImageFolder", "MDS", "MNIST", "PackedDataset",
           "PairedFolders", "Parquet", "TFRecord", "WebDataset"]


def _absolute(path: str) -> str:
    """But for URLs, which the job's reader refuses in its own words."""
    if not path:
        raise UsageError("the path of a dataset is empty", "'.' is the folder that the program runs in")
    return path if "://" in path else os.path.abspath(path)


def _text(path: Union[str, os.PathLike], what: str) -> str:
    try:
        return os.fsdecode(path)
    except TypeError:
        raise UsageError(f"{what}: {path!r} is no path") from None


class _Listed:
    """What torchvision's data sets are asked for: `len()`, `classes`, `class_to_idx`, `samples`, `targets`, and `[i]`, a
    PIL picture (RGB, no transform) and its label. Found out when first asked for, and kept.

    DatasetError for a picture that cannot be read, IndexError beyond the end.
    """

    transform: Any = None  # what a DataLoader does to its pictures, where that is given none itself
    _listed: Any = None
    _labels: Optional[list] = None

    def _job_of_it(self) -> dict:
        """Keywords of _penstock.Listing."""
        made = _job.build(self.to_spec(), "data", [{"CenterCrop": {"size": 1}}], {}, None)
        return {"job": _job.text_of(made), "is_text": True, "split": "data", "overrides": []}

    def _listing(self) -> Any:
        if self._listed is None:
            self._listed = _penstock.Listing(**self._job_of_it())
        return self._listed

    def _sample_name(self, key: str) -> str:
        return key

    def __len__(self) -> int:
        return self._listing().size

    @property
    def classes(self) -> list:
        """Names of classes, in the order of labels; empty where labels are numbers without names."""
        return self._listing().class_names

    @property
    def class_to_idx(self) -> dict:
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> list:
        """The label of each sample."""
        if self._labels is None:
            self._labels = self._listing().labels()
        return self._labels

    @property
    def samples(self) -> list:
        """(path, or the name of the sample in its container; label) of each."""
        return [(self._sample_name(key), label) for key, label in zip(self._listing().keys(), self.targets)]

    def __getitem__(self, index: int) -> tuple:
        from PIL import Image
        index = _job.integer("dataset[i]", index)
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"{self!r} has {size} samples, and none at {index}")
        image, width, height, label = self._listing().sample(index % size)
        if width:
            return Image.frombytes("RGB", (width, height), image), label
        try:
            with Image.open(io.BytesIO(image)) as picture:
                return picture.convert("RGB"), label
        except (OSError, ValueError, Image.DecompressionBombError) as problem:
            raise DatasetError(f"unusable sample '{self._listing().keys()[index % size]}' (index {index % size}): {problem}") from None

    def __getstate__(self) -> dict:  # the list is found out anew in another process
        return {name: value for name, value in self.__dict__.items() if name not in ("_listed", "_labels")}


class ImageFolder(_Listed):
    """Pictures in class folders, `root/CLASS/….jpg`, in the order of torchvision's ImageFolder.

    Gives the fields "image" (uint8 [3, height, width] before finishing) and "label" (int64: place of the class's name
    in sorted order). `index`: what `penstock index` made of the folder. `local`, here and at all others that have an index:
    each node's disks hold some of the files, and its loaders are given the samples in them. `val_share`: this share of each
    class, chosen by `val_seed`, is the data set with `train=False`, and the rest the one with `train=True`.
    """

    def __init__(self, root: Union[str, os.PathLike], transform: Any = None, *,
                 index: Union[str, os.PathLike, None] = None, local: bool = False, val_share: float = 0.0,
                 val_seed: int = 0, train: bool = True) -> None:
        self.root = _text(root, "ImageFolder")
        self.transform = transform
        self.index = None if index is None else _text(index, "ImageFolder(index=…)")
        self.local = local
        if not val_share and (val_seed or not train):
            raise UsageError("ImageFolder: train and val_seed say which part of val_share", "give val_share, such as 0.2")
        self.part = {"val_share": val_share, "val_seed": val_seed, "train": bool(train)} if val_share else {}

    def _sample_name(self, key: str) -> str:
        return os.path.join(self.root, key)

    def to_spec(self) -> dict:
        return {"folder": _absolute(self.root), **({} if self.index is None else {"index": _absolute(self.index)}),
                **({"local": True} if self.local else {}), **self.part}

    def __repr__(self) -> str:
        return f"ImageFolder({self.root!r})"


class PairedFolders(_Listed):
    """Pictures that belong together by their relative names, without classes: `images`, and `targets` (what each should
    become), `masks` (PNG files of class ids) or both.

    The same draws are made for all of a sample. Gives the fields "image", "target" (made and finished like the image)
    and "mask" (uint8 [height, width]: the geometry by nearest, no colour, no finishing; `mask.long()` is what losses
    want). A batch is `image, target`, `image, mask` or `image, mask, target`: there is no label.
    """

    def __init__(self, images: Union[str, os.PathLike], targets: Optional[Union[str, os.PathLike]] = None,
                 masks: Optional[Union[str, os.PathLike]] = None) -> None:
        if targets is None and masks is None:
            raise UsageError("PairedFolders needs targets or masks", "pictures in class folders are an ImageFolder")
        given = {"images": images, "targets": targets, "masks": masks}
        self.folders = {name: os.fspath(folder) for name, folder in given.items() if folder is not None}

    def to_spec(self) -> dict:
        return {name: _absolute(folder) for name, folder in self.folders.items()}

    def __repr__(self) -> str:
        return f"PairedFolders({', '.join(f'{name}={folder!r}' for name, folder in self.folders.items())})"


class _Files(_Listed):
    """What a job file's `dataset:` says in one key, and some options."""

    _kind = ""

    def __init__(self, place: Union[str, os.PathLike], **options: Any) -> None:
        self._place = _text(place, type(self).__name__)
        self._options = {name: value for name, value in options.items() if value is not None}
        fields = self._options.get("fields")
        if fields is not None and not isinstance(fields, str):
            self._options["fields"] = ",".join(fields)
        if self._options.get("local") is False:
            del self._options["local"]
        if "index" in self._options:
            self._options["index"] = _absolute(os.fspath(self._options["index"]))

    def to_spec(self) -> dict:
        return {self._kind: _absolute(self._place), **self._options}

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self._options.items())
        return f"{type(self).__name__}({self._place!r}{options})"


class WebDataset(_Files):
    """Tar shards, `WebDataset("shards/{000..012}.tar")`, read in place: each sample is within reach of the sampler.

    Consecutive members with one name up to the first dot are a sample. `image`: which member is the picture, where there
    are several; `label`: the label, a number as text; `fields`: further members, as ["box"] for box.npy, "caption:text"
    or "raw:bytes".
    `index`: what `penstock index` made of the shards.
    """

    _kind = "tar"

    def __init__(self, urls: Union[str, os.PathLike], *, image: Optional[str] = None, label: Optional[str] = None,
                 fields: Union[str, Sequence[str], None] = None, index: Union[str, os.PathLike, None] = None,
                 local: bool = False) -> None:
        super().__init__(urls, image=image, label=label, fields=fields, index=index, local=local)

    @property
    def classes(self) -> list:
        """Names of classes: the lines of classes.txt beside the shards, which `penstock pack --tar` writes. Empty without it."""
        path = os.path.join(os.path.dirname(_absolute(self._place)), "classes.txt")
        try:
            with open(path, encoding="utf-8", newline="\n") as file:
                names = file.read().removesuffix("\n").split("\n")
        except FileNotFoundError:
            return super().classes
        except (OSError, ValueError) as problem:
            raise DatasetError(f"cannot read the names of classes in '{path}': {problem}") from None
        if len(names) <= max(self.targets, default=-1):
            raise DatasetError(f"'{path}' has {len(names)} names of classes, and there is a label {max(self.targets)}",
                               "write a line for each class, in the order of labels; or remove the file")
        return names


class _Published(_Files):
    def __init__(self, root: Union[str, os.PathLike], train: bool = True, transform: Any = None, *,
                 index: Union[str, os.PathLike, None] = None, local: bool = False) -> None:
        super().__init__(root, train=bool(train), index=index, local=local)
        self.transform = transform


class CIFAR10(_Published):
    """CIFAR-10: `root` holds data_batch_1.bin …, or cifar-10-batches-bin; or torchvision's, cifar-10-batches-py."""

    _kind = "cifar10"


class CIFAR100(_Published):
    """CIFAR-100, in either version. The label is the fine one; batches have "coarse_label" as well."""

    _kind = "cifar100"


class MNIST(_Published):
    """MNIST, or others in its format: idx files, plain or .gz, in `root` or where torchvision keeps them. Grey as RGB."""

    _kind = "mnist"


class CSVDataset(_Files):
    """A CSV file whose first line names the columns; paths relative to the file.

    `image`, `label`: columns, by default so named; labels are integers or class names. `fields`: columns of numbers, or of
    text as "caption:text".
    """

    _kind = "csv"

    def __init__(self, file: Union[str, os.PathLike], *, image: Optional[str] = None, label: Optional[str] = None,
                 fields: Union[str, Sequence[str], None] = None, index: Union[str, os.PathLike, None] = None,
                 local: bool = False) -> None:
        super().__init__(file, image=image, label=label, fields=fields, index=index, local=local)


class FileList(_Files):
    """A file of lines "PATH LABEL", the label an integer; paths relative to the file."""

    _kind = "list"

    def __init__(self, file: Union[str, os.PathLike], *, index: Union[str, os.PathLike, None] = None,
                 local: bool = False) -> None:
        super().__init__(file, index=index, local=local)


class MDS(_Files):
    """A folder of Mosaic's MDS shards with their index.json. `image`, `label`, `fields`: columns."""

    _kind = "mds"

    def __init__(self, folder: Union[str, os.PathLike], *, image: Optional[str] = None, label: Optional[str] = None,
                 fields: Union[str, Sequence[str], None] = None, index: Union[str, os.PathLike, None] = None,
                 local: bool = False) -> None:
        super().__init__(folder, image=image, label=label, fields=fields, index=index, local=local)


class TFRecord(_Files):
    """TFRecord files of tf.train.Example, `TFRecord("train-*-of-00128")`. `image`, `label`, `fields`: features.

    All records are read at the start, unless an `index` is given.
    """

    _kind = "tfrecord"

    def __init__(self, files: Union[str, os.PathLike], *, image: Optional[str] = None, label: Optional[str] = None,
                 fields: Union[str, Sequence[str], None] = None, index: Union[str, os.PathLike, None] = None,
                 local: bool = False) -> None:
        super().__init__(files, image=image, label=label, fields=fields, index=index, local=local)


class Parquet(_Files):
    """Parquet files with encoded pictures, `Parquet("train-*.parquet", index="train.index")`.

    `image`: a column of encoded pictures, binary or Hugging Face's struct {bytes, path}; `label`: integers, or class names;
    `fields`: columns of numbers, lists of them, text and bytes. Loaders read what `penstock index` copied, once, beside the
    `index`: `penstock index job.yaml` with the same words in the job file, or `penstock index DIR --out FILE` for all
    *.parquet files of a folder and the usual columns. That, and nothing else, needs pyarrow.
    """

    _kind = "parquet"

    def __init__(self, files: Union[str, os.PathLike], *, index: Union[str, os.PathLike], image: Optional[str] = None,
                 label: Optional[str] = None, fields: Union[str, Sequence[str], None] = None,
                 local: bool = False) -> None:
        super().__init__(files, image=image, label=label, fields=fields, index=index, local=local)


class PackedDataset(_Files):
    """A folder that `penstock pack` made of any of these: the same samples, labels and fields, in the same order.

    Everything is in it, the index too; one read a sample, its checksum compared every time. `local`: pack.index is on every
    node, and each shard on some.
    """

    _kind = "pack"

    def __init__(self, folder: Union[str, os.PathLike], *, local: bool = False) -> None:
        super().__init__(folder, local=local)


class OfJob(_Listed):
    """The data set of a job's split: what `penstock.DataLoader("job.yaml").dataset` is."""

    def __init__(self, job: str, is_text: bool, split: str, overrides: Sequence[str], size: int) -> None:
        self._job_words = {"job": job, "is_text": is_text, "split": split, "overrides": list(overrides)}
        self._size = size

    def _job_of_it(self) -> dict:
        return self._job_words

    def _sample_name(self, key: str) -> str:
        folder = self._listing().folder
        return os.path.abspath(os.path.join(folder, key)) if folder else key

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"<the data set of split {self._job_words['split']!r}: {self._size} samples>"
