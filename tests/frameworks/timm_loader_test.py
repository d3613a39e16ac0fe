"""penstock.timm.create_loader against timm.data.create_loader: the same samples, lengths and validation tensors, and all that timm's
train.py asks of a loader."""

import inspect
import io
import os
import warnings

import timm.data
import timm.data.loader
import torch
from timm.data.mixup import FastCollateMixup

import penstock
from jobs import run_tests
from penstock import _torch_datasets
from penstock.timm import create_loader
from photos import TRAIN, VAL, raises

CPU = torch.device("cpu")
COMMON = {"input_size": (3, 32, 32), "batch_size": 10, "device": CPU, "num_workers": 0}
TRAINING = {**COMMON, "is_training": True, "num_workers": 2}


def folder(root=VAL):
    return timm.data.create_dataset("", root=root)


def all_of(loader):
    batches = [(images.clone(), labels.clone()) for images, labels in loader]
    return torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches]), len(batches)


def test_timms_folders_are_recognised():
    for root in (TRAIN, VAL):
        dataset = folder(root)
        found = _torch_datasets.recognise(dataset)
        assert found.why == "" and found.source.samples == [tuple(one) for one in dataset.reader.samples]
    reordered = folder()
    reordered.reader.samples.reverse()
    found = _torch_datasets.recognise(reordered)
    assert isinstance(found.source, penstock.FileList) or type(found.source).__name__ == "FileList"
    assert found.source.targets == [label for _, label in reordered.reader.samples]
    grey = timm.data.create_dataset("", root=VAL, input_img_mode="L")
    assert "something else than RGB" in _torch_datasets.recognise(grey).why


def test_validation_is_timms():
    compared = 0
    for options in ({}, {"interpolation": "bicubic", "crop_pct": 0.8}, {"use_prefetcher": False}, {"img_dtype": torch.bfloat16},
                    {"mean": (0.5,) * 3, "std": (0.2,) * 3, "crop_mode": "squash"}):
        wanted = all_of(timm.data.create_loader(folder(), **{**COMMON, **options}))
        loader = create_loader(folder(), **{**COMMON, **options})
        found = all_of(loader)
        assert found[2] == wanted[2] == len(loader) == 3 and torch.equal(found[1], wanted[1])
        assert found[0].dtype == wanted[0].dtype and found[0].shape == wanted[0].shape == (26, 3, 32, 32)
        # Pillow 13 may resize columns first (EXACTNESS.md): a byte by 1, by some for bicubic.
        step = 1 / 255 / 0.2
        difference = (found[0].float() - wanted[0].float()).abs()
        rounding = 0.3 if options.get("img_dtype") else 0.1  # timm subtracts and divides in 16 bits
        assert difference.max() <= 12 * step and difference.mean() < rounding * step, (options, difference.max(), difference.mean())
        text = penstock.describe_transforms(loader, file=io.StringIO())
        assert "runs: Python worker" not in text and "runs: finishing" in text, text
        compared += len(found[0])
    print(f"{compared} pictures compared")
    assert compared == 5 * 26


def test_what_train_py_asks_of_a_loader():
    dataset = folder(TRAIN)
    loader = create_loader(dataset, **TRAINING, hflip=0.5, color_jitter=0.4, interpolation="random")
    assert type(loader) is penstock.DataLoader and len(loader) == 80 // 10 and loader.dataset is dataset
    assert loader.mixup_enabled is False and hasattr(loader.batch_sampler, "set_epoch")
    loader.mixup_enabled = False
    epochs = []
    for epoch in (0, 1, 0):
        loader.batch_sampler.set_epoch(epoch)
        images, labels, batches = all_of(loader)
        assert batches == 8 and images.shape == (80, 3, 32, 32) and images.dtype == torch.float32 and len(set(labels.tolist())) > 1
        epochs.append(images)
    assert torch.equal(epochs[0], epochs[2]) and not torch.equal(epochs[0], epochs[1])
    assert sorted(labels.tolist()) == sorted(label for _, label in dataset.reader.samples)


def test_erasing_and_mixing_are_timms():
    erased = create_loader(folder(TRAIN), **TRAINING, re_prob=1.0, re_mode="const", re_count=1, scale=(1, 1), ratio=(1, 1), hflip=0,
                           color_jitter=None)
    assert type(erased) is timm.data.loader.PrefetchLoader and type(erased.loader) is penstock.DataLoader
    images, labels, _ = all_of(erased)
    assert images.dtype == torch.float32 and all((image == 0).all(0).any() for image in images)
    assert "runs: Python worker" not in penstock.describe_transforms(erased, file=io.StringIO())
    mixed = create_loader(folder(TRAIN), **TRAINING, collate_fn=FastCollateMixup(mixup_alpha=0.5, num_classes=4))
    assert mixed.mixup_enabled is True and len(mixed) == 8
    images, labels, _ = all_of(mixed)
    assert labels.shape == (80, 4) and torch.allclose(labels.sum(1), torch.ones(80)) and (labels.max(1).values < 0.99).any()
    mixed.mixup_enabled = False
    assert mixed.loader.collate_fn.mixup_enabled is False
    images, labels, _ = all_of(mixed)
    assert (labels.max(1).values > 0.8).all()


def test_what_python_has_to_do_is_said():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loader = create_loader(folder(TRAIN), **TRAINING, auto_augment="rand-m9-mstd0.5")
        images, _, batches = all_of(loader)
    assert images.shape == (80, 3, 32, 32) and images.dtype == torch.float32 and batches == 8
    assert any("in Python" in str(one.message) and "RandAugment" in str(one.message) for one in said), [str(one.message) for one in said]
    text = penstock.describe_transforms(loader, file=io.StringIO())
    assert "operations and magnitudes are others" in text and "runs: Python worker" in text


def test_signature_and_refusals():
    wanted = set(inspect.signature(timm.data.create_loader).parameters)
    assert {"dataset", "input_size", "batch_size", "re_prob", "mean", "use_prefetcher"} <= wanted
    raises(TypeError, lambda: create_loader(folder(), 32, 8, no_such_word=1))
    raises(penstock.UsageError, lambda: create_loader(folder(), **TRAINING, input_size_choices=[32, 48]), "input_size_choices")
    raises(penstock.UsageError, lambda: create_loader(folder(), **COMMON, tf_preprocessing=True), "TensorFlow")

    class Stream(torch.utils.data.IterableDataset):
        transform = None

        def __iter__(self):
            return iter(())

    raises(penstock.UsageError, lambda: create_loader(Stream(), **COMMON), "iterable")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    run_tests(globals())
