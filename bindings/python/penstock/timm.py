"""timm's create_loader over penstock: the line of a program that imports it changes, and nothing else.

    from penstock.timm import create_loader        # instead of: from timm.data import create_loader

timm makes transforms and loader inside this one function, so there is no line of the program's own where penstock's loader could
stand. What it makes of its arguments stays timm's: the transform is `timm.data.create_transform`'s, samplers are timm's and torch's.
"""

from __future__ import annotations

import inspect
from typing import Any, Mapping

from . import _torch_datasets, _torch_transforms
from .data_loader import DataLoader
from .errors import UsageError

__all__ = ["create_loader"]

# Those of timm's arguments that create_transform takes under the same name.
_OF_TRANSFORM = ("is_training", "no_aug", "train_crop_mode", "scale", "ratio", "hflip", "vflip", "color_jitter", "color_jitter_prob",
                 "grayscale_prob", "gaussian_blur_prob", "auto_augment", "interpolation", "mean", "std", "crop_pct", "crop_mode",
                 "crop_border_pixels", "re_prob", "re_mode", "re_count")


def create_loader(*args: Any, **kwargs: Any) -> Any:
    """A loader with the parameters of the installed timm's `timm.data.create_loader`.

    Normalised float images on `device` where every step of the transform can be translated, made as `penstock.DataLoader(device=…)`
    makes them; else, and with RandomErasing or a collate_fn (timm's FastCollateMixup), bytes of penstock's which timm's own
    PrefetchLoader normalises, erases and moves. `penstock.describe_transforms(loader)` says which steps run where. What timm's
    train.py asks of a loader it has: len(), `.dataset`, `.sampler`, `.batch_sampler`, `.mixup_enabled`.

    A folder of timm's (`timm.data.create_dataset("", root=…)`) is read by the loaders themselves; other data sets in `num_workers`
    Python workers. Unlike timm, which puts the next sample in the place of one that it cannot read, the loader ends with DatasetError
    (`on_error` of a job says otherwise). `use_multi_epochs_loader`, `persistent_workers` and `worker_seeding` have no use here.

    UsageError: scheduled input sizes, TensorFlow's preprocessing and iterable data sets, which timm's own function goes on serving.
    """
    from timm.data import create_loader as timms
    asked = inspect.signature(timms).bind(*args, **kwargs)
    asked.apply_defaults()
    given = dict(asked.arguments)
    _refuse(given)
    dataset = given["dataset"]
    finished = _finished_here(given)
    dataset.transform = _transform(given, bytes_=given["use_prefetcher"] and not finished)
    loader = DataLoader(dataset, given["batch_size"], sampler=_sampler(given), num_workers=given["num_workers"],
                        shuffle=given["is_training"] and not given["distributed"], drop_last=given["is_training"],
                        collate_fn=given["collate_fn"], pin_memory=given["pin_memory"],
                        **({"device": given["device"], "dtype": _dtype(given)} if finished else {}))
    if not given["use_prefetcher"] or finished:
        loader.mixup_enabled = False  # train.py asks, and turns it off
        return loader
    return _prefetched(loader, given)


def _refuse(given: Mapping[str, Any]) -> None:
    from torch.utils.data import IterableDataset
    for name, what in (("input_size_choices", "scheduled input sizes"), ("tf_preprocessing", "TensorFlow's preprocessing")):
        if given.get(name):
            raise UsageError(f"{name}: {what} are not made here", "timm.data.create_loader goes on making them")
    if isinstance(given["dataset"], IterableDataset):
        raise UsageError(f"{type(given['dataset']).__name__} is an iterable data set, of which no sample can be asked for by its number",
                         "timm.data.create_loader goes on reading it; penstock.WebDataset and TFRecord read such files themselves")
    if given["num_aug_repeats"] and not given["distributed"]:
        raise UsageError("num_aug_repeats is for distributed training", "leave it out")


def _transform(given: Mapping[str, Any], bytes_: bool) -> Any:
    """timm's, which ends in normalised floats, or in bytes."""
    from timm.data import create_transform
    splits = given["num_aug_splits"]
    return create_transform(given["input_size"], use_prefetcher=bytes_, separate=splits > 0,
                            re_num_splits=(splits or 2) if given["re_split"] else 0,
                            **{name: given[name] for name in _OF_TRANSFORM if name in given})


def _erases(given: Mapping[str, Any]) -> bool:
    return given["re_prob"] > 0 and given["is_training"] and not given["no_aug"]


def _finished_here(given: Mapping[str, Any]) -> bool:
    """Does the loader give finished floats on the device, where timm has its PrefetchLoader?"""
    if not given["use_prefetcher"] or given["collate_fn"] is not None or given["num_aug_splits"] or _erases(given):
        return False
    if _torch_transforms.translate(_transform(given, bytes_=False)).rest:
        return False
    return not _torch_datasets.recognise(given["dataset"]).why  # last: it lists the folder


def _dtype(given: Mapping[str, Any]) -> Any:
    import torch
    return torch.float16 if given.get("fp16") else given.get("img_dtype") or torch.float32


def _sampler(given: Mapping[str, Any]) -> Any:
    if not given["distributed"]:
        return None
    from timm.data.distributed_sampler import OrderedDistributedSampler, RepeatAugSampler
    from torch.utils.data.distributed import DistributedSampler
    if not given["is_training"]:
        return OrderedDistributedSampler(given["dataset"])
    if given["num_aug_repeats"]:
        return RepeatAugSampler(given["dataset"], num_repeats=given["num_aug_repeats"])
    return DistributedSampler(given["dataset"])


def _prefetched(loader: DataLoader, given: Mapping[str, Any]) -> Any:
    """timm's PrefetchLoader over batches of bytes."""
    from timm.data.loader import PrefetchLoader, fast_collate
    size = given["input_size"]
    if given["num_aug_splits"] and loader.collate_fn is None:
        loader.collate_fn = fast_collate  # which takes the splits of a sample apart
    made = PrefetchLoader(loader, mean=given["mean"], std=given["std"], device=given["device"], img_dtype=_dtype(given),
                          channels=size[0] if isinstance(size, (tuple, list)) and len(size) == 3 else len(given["mean"]),
                          re_prob=given["re_prob"] if _erases(given) else 0.0, re_mode=given["re_mode"], re_count=given["re_count"],
                          re_num_splits=(given["num_aug_splits"] or 2) if given["re_split"] else 0)
    made._transform_notes = loader._given.notes  # of describe_transforms
    return made
