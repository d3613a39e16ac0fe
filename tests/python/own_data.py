"""Data sets of the program's own that several tests have, and how their batches are compared."""

import collections
import contextlib
import os
import random
import time

import numpy
import torch
from PIL import Image
from torch.utils.data import get_worker_info

import penstock
from jobs import FULL

Point = collections.namedtuple("Point", "x y")


class Rich(torch.utils.data.Dataset):
    """All kinds of leaves."""

    def __len__(self):
        return 37

    def __getitem__(self, index):
        return {"tensor": torch.full((3, 4), index, dtype=torch.float32), "half": torch.ones(2, dtype=torch.bfloat16) * index,
                "flags": torch.tensor([index % 2 == 0, True]), "array": numpy.arange(index, index + 3),
                "number": index, "share": index / 7, "is": index > 5, "name": f"sample {index}",
                "point": Point(index, float(index)), "list": [index, (torch.tensor(index), "x" * (index % 4))]}


class Drawing(torch.utils.data.Dataset):
    """Draws from every global generator."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return index, random.random(), float(numpy.random.random()), torch.rand(3)


def same(a, b):
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if hasattr(a, "_fields"):
        return type(a) is type(b) and all(map(same, a, b))
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        if type(a) is not type(b) or vars(a) != vars(b) or (a.dtype, a.layout, a.requires_grad) != (b.dtype, b.layout, b.requires_grad):
            return False
        return torch.equal(*(one.dequantize() if one.is_quantized else one.to_dense() if one.layout != torch.strided else one
                             for one in (a, b)))
    if isinstance(a, numpy.ndarray):
        return type(a) is type(b) and a.dtype == b.dtype and a.flags.f_contiguous == b.flags.f_contiguous and numpy.array_equal(a, b)
    return type(a) is type(b) and a == b


def digest(loader):
    return [[(value.tolist() if hasattr(value, "tolist") else value) for value in batch] for batch in loader]


class Slow(torch.utils.data.Dataset):
    """`slow` seconds a sample, and `length` seconds for each len() but the first."""

    def __init__(self, slow=0.0, length=0.0):
        self.slow, self.length, self.asked = slow, length, 0

    def __len__(self):
        self.asked += 1
        time.sleep(self.length if self.asked > 1 else 0)
        return 64

    def __getitem__(self, index):
        time.sleep(self.slow)
        return index


class Broken(torch.utils.data.Dataset):
    """Only some samples can be made; they differ from the others."""

    def __init__(self, good, size=40):
        self.good, self.size, self.made = set(good), size, []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.made.append(index)
        if index not in self.good:
            raise ValueError(f"sample {index} is torn")
        return torch.full((2 + index // 20,), index), f"name {index}"


class Boxes(torch.utils.data.Dataset):
    """Most pictures have one box; those that are looked at first all do."""

    def __len__(self):
        return 200

    def __getitem__(self, index):
        return torch.zeros(3, 16, 16), torch.full((3 if index in (53, 77) else 1, 4), float(index))


class Outliers(torch.utils.data.Dataset):
    """Those that are looked at when the loader is made are small, and two are not: one of them a megabyte, as a picture may be."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        size = {5: 1_000_000, 13: 300_000}.get(index, 10 + index)
        return torch.full((size,), index, dtype=torch.uint8), numpy.arange(size // 20), Image.new("L", (size // 10 + 1, 10), index)


class Numbered(torch.utils.data.Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        info = get_worker_info()
        return index, -1 if info is None else info.id, -1 if info is None else info.num_workers, int(os.environ.get("STARTED", -1))


def one_process_that_imports():
    """While a loader is open the process that imports torch for its workers stays, and forks those of other loaders, too. With
    PENSTOCK_FULL=1 nearly every loader has its own."""
    return contextlib.nullcontext() if FULL else penstock.DataLoader(Rich(), 8, num_workers=1)
