"""Images/s of an existing torch DataLoader before and after penstock.wrap, and of penstock.DataLoader, on one machine.

    PYTHONPATH=build/release/python python bench/python/wrap.py PHOTOS --threads 2 --seconds 5 --rounds 3

PHOTOS has class folders of JPEGs. Each way makes RandomResizedCrop(224), flip, float32, Normalize; the program does
nothing with a batch. `before`: the Dataset decodes and transforms in `threads` worker processes (torchvision, tensors).
`wrap`: its workers only read, `threads` threads decode. Rounds alternate, so that a busy machine is busy for all; what
counts is the ratio within a round.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset

import penstock

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Files(Dataset):
    def __init__(self, root, finish):
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.samples = [(os.path.join(root, name, file), label) for label, name in enumerate(classes)
                        for file in sorted(os.listdir(os.path.join(root, name)))]
        self.finish = finish

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        return self.finish(index, path, label)


def read(index, path, label):
    with open(path, "rb") as file:
        return index, file.read(), label


class Decode:
    def __init__(self):
        transforms = torchvision.transforms
        self.transform = transforms.Compose([
            transforms.RandomResizedCrop(224, antialias=True), transforms.RandomHorizontalFlip(),
            transforms.ConvertImageDtype(torch.float32), transforms.Normalize(MEAN, STD, inplace=True)])

    def __call__(self, index, path, label):
        image = torchvision.io.decode_jpeg(torchvision.io.read_file(path), mode=torchvision.io.ImageReadMode.RGB)
        return self.transform(image), label


def job(photos, batch, threads):
    return {"seed": 1, "loader": {"threads": threads}, "splits": {"train": {
        "mode": "train", "dataset": {"folder": photos}, "batch_size": batch, "sampler": {"shuffle": True},
        "pipeline": [{"RandomResizedCrop": {"size": 224}}, {"RandomHorizontalFlip": {}},
                     {"ToDtype": {"dtype": "float32", "scale": True}}, {"Normalize": {"mean": MEAN, "std": STD}}]}}}


def images_per_s(loader, seconds):
    """After a first batch; epoch after epoch. And how many images there were in all."""
    images, begun, first = 0, None, 0
    while True:
        for batch in loader:
            if begun is None:
                begun = time.perf_counter()
                first = len(batch[0])
                continue
            images += len(batch[0])
            if time.perf_counter() - begun >= seconds:
                return images / (time.perf_counter() - begun), first + images


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("photos")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    spec = job(os.path.abspath(args.photos), args.batch, args.threads)
    options = dict(batch_size=args.batch, shuffle=True, drop_last=True, persistent_workers=True)

    def wrapped(workers):
        files = DataLoader(Files(args.photos, read), num_workers=workers,
                           **dict(options, persistent_workers=workers > 0))
        return penstock.wrap(files, spec)

    ways = {
        "before": lambda: DataLoader(Files(args.photos, Decode()), num_workers=args.threads, **options),
        "wrap, 1 worker": lambda: wrapped(1),
        "wrap, no workers": lambda: wrapped(0),
        "penstock.DataLoader": lambda: penstock.DataLoader(spec, split="train", num_replicas=1, rank=0),
    }
    results = {name: [] for name in ways}
    for _ in range(args.rounds):
        for name, make in ways.items():
            loader = make()
            results[name].append(images_per_s(loader, args.seconds)[0])
            if hasattr(loader, "close"):
                loader.close()
            del loader
    for name, rates in results.items():
        ratio = statistics.median(rate / before for rate, before in zip(rates, results["before"]))
        print(json.dumps({"way": name, "images_per_s": [round(rate) for rate in rates], "ratio": round(ratio, 2)}))


if __name__ == "__main__":
    main()
