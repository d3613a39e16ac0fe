"""torch's DataLoader and penstock's, with as many processes, where a pipeline has a step that only Python can run.

    PYTHONPATH=build/release/python python bench/python/python_step.py PHOTOS --workers 2 --seconds 5 --rounds 7

PHOTOS has class folders of JPEGs. The data set is torchvision's ImageFolder, the program's own class `Darker` is

  last    after RandomResizedCrop(224), flip: what stands before it is penstock's, and tensors are made in Python
  first   before them: everything runs in Python
  data    part of a Dataset of the program's own, which returns tensors

and both loaders run it in --workers processes. Rounds alternate, so that a busy machine is busy for both; what counts is the
ratio within a round, of images/s after the first batch and of the seconds to the first batch. Before that it checks, with
draws left out, that both give the same samples in the same order.
"""

import argparse
import json
import statistics
import time

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

import penstock

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Darker:
    """Takes and returns a PIL picture."""

    def __call__(self, picture):
        return picture.point([value * 3 // 4 for value in range(256)] * 3)


class Own(Dataset):
    def __init__(self, root, transform):
        self.folder = torchvision.datasets.ImageFolder(root, transform)

    def __len__(self):
        return len(self.folder)

    def __getitem__(self, index):
        return self.folder[index]


def data_of(kind, root, draws):
    crop = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()] if draws else [T.Resize(256), T.CenterCrop(224)]
    tail = [T.ToTensor(), T.Normalize(MEAN, STD)]
    if kind == "first":
        return torchvision.datasets.ImageFolder(root, T.Compose([Darker(), *crop, *tail]))
    steps = T.Compose([*crop, Darker(), *tail])
    return Own(root, steps) if kind == "data" else torchvision.datasets.ImageFolder(root, steps)


def options(args, **more):
    return dict(batch_size=args.batch, num_workers=args.workers, **more)


def same_samples(kind, args):
    data = data_of(kind, args.photos, draws=False)
    for count, (ours, theirs) in enumerate(zip(penstock.DataLoader(data, **options(args)), DataLoader(data, **options(args)))):
        assert all(torch.equal(torch.as_tensor(a), b) for a, b in zip(ours, theirs)), f"{kind}: batch {count} differs"
        if count == 3:
            break


def measure(loader, seconds):
    """Images/s after a first batch, epoch after epoch; seconds to that batch."""
    begun = time.perf_counter()
    first, images = None, 0
    while True:
        for pictures, _ in loader:
            if first is None:
                first = time.perf_counter()
                continue
            images += len(pictures)
            if time.perf_counter() - first >= seconds:
                return images / (time.perf_counter() - first), first - begun


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("photos")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for kind in ("last", "first", "data"):
        same_samples(kind, args)
        data = data_of(kind, args.photos, draws=True)
        rates, firsts = {"torch": [], "penstock": []}, {"torch": [], "penstock": []}
        for _ in range(args.rounds):
            for name, make in (("torch", DataLoader), ("penstock", penstock.DataLoader)):
                begun = time.perf_counter()
                loader = make(data, shuffle=True, persistent_workers=True, **options(args))
                made = time.perf_counter() - begun
                rate, first = measure(loader, args.seconds)
                rates[name].append(rate)
                firsts[name].append(made + first)
                if name == "penstock":
                    loader.close()
                del loader
        ratios = sorted(a / b for a, b in zip(rates["penstock"], rates["torch"]))
        print(json.dumps({
            "step": kind, "images_per_s": {name: round(statistics.median(of)) for name, of in rates.items()},
            "ratio": round(statistics.median(ratios), 3), "ratios": [round(ratio, 3) for ratio in ratios],
            "first_batch_s": {name: round(statistics.median(of), 2) for name, of in firsts.items()}}), flush=True)


if __name__ == "__main__":
    main()
