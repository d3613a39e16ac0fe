"""torch's and torchvision's data sets: which of them penstock reads itself, and what in their place.

    found = recognise(dataset)
    found.source, found.rows, found.transform      # penstock.ImageFolder(…), which of its samples, torchvision's transform
    found.why                                      # or: why Python has to read it

Recognised are objects of exactly these types: ImageFolder, DatasetFolder with torchvision's own loader, CIFAR10, CIFAR100,
MNIST and its kin, CocoDetection and CocoCaptions, timm's ImageDataset over class folders, and Subset (random_split makes it) and
ConcatDataset of those. A
program may have changed such an object's lists, so what it holds is compared with what penstock finds, label by label and name
by name or pixel by pixel; where that differs, and for every subclass, `target_transform` or loader of the program's own, Python
reads the data set as it is.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Sequence

from . import datasets
from ._memory_file import MemoryFile
from .errors import Error


class Recognised(NamedTuple):
    source: Any = None                    # of penstock.datasets; None: Python has to read it
    rows: Optional[Sequence[int]] = None  # which of its samples, in order; None: all
    transform: Any = None                 # what the data set does to its pictures, or None
    why: str = ""                         # not recognised: one sentence
    kept: tuple = ()                      # what has to live as long as `source` is read
    side: int = 0                         # width and height of all pictures; 0: of several sizes
    target: Optional[Callable[[int], Any]] = None  # what stands beside the picture of a sample of `source`; None: its label

    def subset(self, rows: Sequence[int]) -> "Recognised":
        known = self.rows
        if known is not None:
            return self._replace(rows=[known[row] for row in rows])
        count = len(self.source)
        return self._replace(rows=[row + count if -count <= row < 0 else row for row in rows])  # from the end, as a list


def _refused(why: str) -> Recognised:
    return Recognised(why=why)


def type_name(one: Any) -> str:
    return f"{type(one).__module__}.{type(one).__qualname__}"


def is_torchs(dataset: Any) -> bool:
    """A torch.utils.data.Dataset? torch is not imported for that: such an object has done so."""
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and isinstance(dataset, torch_data.Dataset)


def is_iterable_only(dataset: Any) -> bool:
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and isinstance(dataset, torch_data.IterableDataset)


def is_of_torchvisions(dataset: Any) -> bool:
    """One of torchvision's data sets, or torch's subset or sum of such?"""
    return all(type_name(one).split(".")[0] == "torchvision" for one in leaves_of(dataset))


def leaves_of(dataset: Any) -> List[Any]:
    """What torch's subsets and sums are taken of in the end."""
    kind = type_name(dataset)
    if kind == "torch.utils.data.dataset.Subset":
        return leaves_of(dataset.dataset)
    if kind == "torch.utils.data.dataset.ConcatDataset":
        return [leaf for part in dataset.datasets for leaf in leaves_of(part)]
    return [dataset]


def recognise(dataset: Any) -> Recognised:
    kind = type_name(dataset)
    look = _KINDS.get(kind)
    if look is None:
        return _refused(f"{type(dataset).__name__} is a class that penstock does not know")
    try:
        return look(dataset)
    except (OSError, Error) as problem:
        return _refused(f"penstock cannot read what {type(dataset).__name__} reads: {str(problem).splitlines()[0]}")


def _transform_of(dataset: Any) -> Recognised:
    """Recognised() with the transform; refused where the data set does something to labels."""
    if getattr(dataset, "target_transform", None) is not None:
        return _refused(f"{type(dataset).__name__} has a target_transform")
    transform = getattr(dataset, "transform", None)
    both = getattr(dataset, "transforms", None)  # of (picture, label); torchvision puts `transform` into one
    if both is not None and type_name(both) != "torchvision.datasets.vision.StandardTransform":
        return _refused(f"{type(dataset).__name__} has transforms of pictures and labels together")
    if both is not None and (both.transform is not transform or both.target_transform is not None):
        return _refused(f"transforms of {type(dataset).__name__} were changed after it was made")
    return Recognised(transform=transform)


def _folder(dataset: Any) -> Recognised:
    found = _transform_of(dataset)
    if found.why:
        return found
    folder = sys.modules["torchvision.datasets.folder"]
    if dataset.loader is not folder.default_loader:
        return _refused(f"{type(dataset).__name__} has a loader of its own")
    if sys.modules["torchvision"].get_image_backend() != "PIL":
        return _refused("torchvision's image backend is not Pillow")
    return _files(found, dataset.root, dataset.class_to_idx, dataset.samples)


def _files(found: Recognised, root: Any, class_to_idx: dict, samples: Sequence[tuple]) -> Recognised:
    """A folder where it lists these samples; else a list of them."""
    if not _are_classes(label for _, label in samples):
        return _refused("its labels are not all of type int")
    source = datasets.ImageFolder(root)
    try:
        if source.class_to_idx == class_to_idx and source.samples == list(map(tuple, samples)):
            return found._replace(source=source)
    except Error:
        pass  # the folder holds what it leaves out: a list says which files are meant
    return _listed(found, samples)


def _listed(found: Recognised, samples: Sequence[tuple]) -> Recognised:
    """Files with labels of type int, in their order, wherever they lie."""
    lines = []
    for path, label in samples:
        name = os.fsencode(os.path.abspath(path))
        if b"\n" in name or b"\r" in name or name.strip() != name:
            return _refused(f"the file name {path!r} fits no list of files")
        if not name.lower().endswith(_EXTENSIONS):
            return _refused(f"'{path}' is none of {', '.join(one.decode() for one in _EXTENSIONS)}")
        lines.append(b"%s %d\n" % (name, label))
    if not lines:
        return _refused("the data set is empty")
    file = MemoryFile("penstock-samples", b"".join(lines))
    return found._replace(source=datasets.FileList(file.path), kept=(*found.kept, file))


def _are_classes(labels: Iterable) -> bool:
    """Whether default_collate makes int64 of them, as loaders do: ages, bools and tensors equal integers and become others."""
    return all(type(label) is int for label in labels)


_EXTENSIONS = (b".jpg", b".jpeg", b".png", b".ppm", b".bmp", b".pgm", b".tif", b".tiff", b".webp")


def _pixels(dataset: Any, source: Any) -> Recognised:
    """Of a data set that holds its pictures in `data`: uint8 [n, height, width], or [n, height, width, 3]."""
    import numpy
    found = _transform_of(dataset)
    if found.why:
        return found
    labels = dataset.targets.tolist() if hasattr(dataset.targets, "tolist") else list(dataset.targets)
    data = numpy.asarray(dataset.data)
    if not _are_classes(labels) or source.targets != labels or len(data) != len(labels):
        return _refused(f"the labels of {type(dataset).__name__} are not those of its files")
    listing = source._listing()
    for index, picture in enumerate(data):
        pixels, width, height, _ = listing.sample(index)
        mine = numpy.frombuffer(pixels, numpy.uint8).reshape(height, width, 3)
        if not numpy.array_equal(mine, picture if picture.ndim == 3 else numpy.broadcast_to(picture[:, :, None], mine.shape)):
            return _refused(f"picture {index} of {type(dataset).__name__} is not that of its files")
    return found._replace(source=source, side=data.shape[1])


def _cifar(dataset: Any) -> Recognised:
    kind = datasets.CIFAR10 if type(dataset).__name__ == "CIFAR10" else datasets.CIFAR100
    return _pixels(dataset, kind(os.path.join(dataset.root, dataset.base_folder), train=dataset.train))


def _mnist(dataset: Any) -> Recognised:
    if getattr(dataset, "transform", None) is not None and not _makes_three_channels(dataset.transform):
        return _refused("its pictures have one channel, and loaders make three; Grayscale(3) as the first step asks for that")
    return _pixels(dataset, datasets.MNIST(dataset.raw_folder, train=dataset.train))


def _makes_three_channels(transform: Any) -> bool:
    """Whether the first step does, Grayscale(3) or v2's RGB()."""
    from ._torch_sequences import flattened, home_of
    first = next(flattened(transform), None)
    module, name = home_of(first)
    return module.startswith("torchvision.transforms.") and \
        (name == "RGB" or name == "Grayscale" and first.num_output_channels == 3)


def _coco(dataset: Any) -> Recognised:
    """Loaders read the pictures; annotations are in this process's memory, and are put beside them here."""
    found = _transform_of(dataset)
    if found.why:
        return found
    ids = list(dataset.ids)
    found = _listed(found, [(os.path.join(dataset.root, dataset.coco.loadImgs(one)[0]["file_name"]), 0) for one in ids])
    return found if found.why else found._replace(target=lambda index: dataset._load_target(ids[index]))


def _timms(dataset: Any) -> Recognised:
    """timm's ImageDataset over class folders. timm skips files that it cannot read; here they are errors."""
    found = _transform_of(dataset)
    reader = dataset.reader
    if found.why:
        return found
    if type_name(reader) != "timm.data.readers.reader_image_folder.ReaderImageFolder":
        return _refused(f"{type(reader).__name__} of timm reads it")
    if dataset.load_bytes or dataset.input_img_mode != "RGB" or dataset.additional_features is not None:
        return _refused("timm's ImageDataset gives something else than RGB pictures and labels")
    return _files(found, reader.root, reader.class_to_idx, reader.samples)


def _subset(dataset: Any) -> Recognised:
    found = recognise(dataset.dataset)
    rows, size = [int(row) for row in dataset.indices], len(dataset.dataset)
    if not found.why and not all(-size <= row < size for row in rows):
        return _refused("Subset has an index that there is no sample of")
    return found if found.why else found.subset(rows)


def _concatenated(dataset: Any) -> Recognised:
    parts = [recognise(part) for part in dataset.datasets]
    refused = next((part for part in parts if part.why), None)
    if refused is not None:
        return refused
    transform = parts[0].transform
    if any(part.transform is not transform for part in parts):
        return _refused("the parts of ConcatDataset have different transforms")
    samples: list = []
    for part in parts:
        if part.target is not None:
            return _refused("ConcatDataset holds pictures with annotations")
        if not isinstance(part.source, (datasets.ImageFolder, datasets.FileList)):
            return _refused(f"ConcatDataset holds {type(part.source).__name__}, whose pictures are no files")
        these = part.source.samples
        samples += these if part.rows is None else [these[row] for row in part.rows]
    return _listed(Recognised(transform=transform), samples)


_KINDS = {
    "torchvision.datasets.folder.ImageFolder": _folder,
    "torchvision.datasets.folder.DatasetFolder": _folder,
    "timm.data.dataset.ImageDataset": _timms,
    "torchvision.datasets.cifar.CIFAR10": _cifar,
    "torchvision.datasets.cifar.CIFAR100": _cifar,
    "torchvision.datasets.mnist.MNIST": _mnist,
    "torchvision.datasets.mnist.FashionMNIST": _mnist,
    "torchvision.datasets.mnist.KMNIST": _mnist,
    "torchvision.datasets.coco.CocoDetection": _coco,
    "torchvision.datasets.coco.CocoCaptions": _coco,
    "torch.utils.data.dataset.Subset": _subset,
    "torch.utils.data.dataset.ConcatDataset": _concatenated,
}
