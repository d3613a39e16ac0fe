#!/usr/bin/env python3
"""What it costs to serve with another decoder than one trained with: a small network, trained by each way, served by each.

    PYTHONPATH=build/release/python build/venv/bin/python bench/python/accuracy_matrix.py DATA --arms exact fast --seeds 5
    ... --arms exact nearest interpolated                   # nvJPEG's: needs a GPU, its library and `penstock index`

DATA has class folders of JPEGs under train/ and val/, as `penstock demo-data` makes them. A way ("arm") is how images are
decoded, nothing else; order, crops and flips are the same in all:
    exact         arithmetic: exact, by the CPU or any GPU
    fast          arithmetic: fast on the CPU: large photos are decoded at 1/2, 1/4 or 1/8
    nearest       arithmetic: fast on a GPU, decoded by nvJPEG as it comes (chroma repeated)
    interpolated  the same with nvJPEG's chroma interpolation
Written as JSON lines: `pixels`, how far a way's served images are from exact ones (of all bytes: mean and largest
difference, share that differs); then a line for each way trained with, `accuracy` by way served with (mean over the
seeds), and `lost`: how much less it is than when served as trained, seed by seed, with the standard error of the mean.
A way of nvJPEG that did not decode at least 80 % of the images is refused: it would be compared with itself.
"""

import argparse
import json
import math
import os
import statistics
import sys

import torch
from torch import nn

import penstock

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
ARMS = {
    "exact": {"arithmetic": "exact"},
    "fast": {"arithmetic": "fast"},
    "nearest": {"arithmetic": "fast", "loader.executor": "gpu", "loader.nvjpeg": "nearest"},
    "interpolated": {"arithmetic": "fast", "loader.executor": "gpu", "loader.nvjpeg": "interpolated"},
}


def job(data, side, batch, seed, indexes):
    def dataset(name):
        found = {"folder": os.path.join(data, name)}
        return {**found, "index": indexes[name]} if name in indexes else found
    finish = [{"ToDtype": {"dtype": "float32", "scale": True}}, {"Normalize": {"mean": MEAN, "std": STD}}]
    serve = [{"Resize": {"size": side + side // 7}}, {"CenterCrop": {"size": side}}]
    return {"seed": seed, "loader": {"threads": 2, "memory_gb": 2}, "splits": {
        "train": {"mode": "train", "dataset": dataset("train"), "batch_size": batch, "sampler": {"shuffle": True},
                  "tail": "drop", "pipeline": [{"RandomResizedCrop": {"size": side}}, {"RandomHorizontalFlip": {}}, *finish]},
        "val": {"mode": "eval", "dataset": dataset("val"), "batch_size": batch, "pipeline": serve + finish},
        "bytes": {"mode": "eval", "dataset": dataset("val"), "batch_size": batch, "pipeline": serve}}}


def open_split(spec, split, arm):
    return penstock.DataLoader(spec, split=split, num_replicas=1, rank=0, overrides=ARMS[arm])


def check_arm(loader, arm):
    """Was it made the way it says?"""
    if "nvjpeg" not in str(ARMS[arm]):
        return
    stats = loader.stats()
    gpus = [rank["gpus"] for rank in stats["ranks"] if "gpus" in rank]
    made = sum(gpu.get("nvjpeg", {}).get("images", 0) for one in gpus for gpu in one["list"])
    if made < 0.8 * stats["images"]:
        why = [[one.get("not_by_nvjpeg"), *(gpu.get("nvjpeg") for gpu in one["list"])] for one in gpus]
        sys.exit(f"{arm}: nvJPEG decoded {made} of {stats['images']} images: {json.dumps(why)}; give --index-train and "
                 "--index-val, made by `penstock index`, and see `penstock doctor`")


def served(spec, split, arm):
    with open_split(spec, split, arm) as loader:
        batches = [(images[batch_valid].clone(), labels[batch_valid].clone())
                   for images, labels, batch_valid in ((*batch, batch.valid.bool()) for batch in loader)]
        check_arm(loader, arm)
    return torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches])


def differences(images, exact):
    apart = (images.int() - exact.int()).abs()
    return {"mean": round(apart.float().mean().item(), 4), "max": apart.max().item(),
            "share": round((apart > 0).float().mean().item(), 4)}


class Network(nn.Sequential):
    def __init__(self, classes):
        def stage(channels, wide):
            return [nn.Conv2d(channels, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(*stage(3, 16), *stage(16, 32), *stage(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(64, classes))


def trained(spec, arm, epochs, device):
    """On the same batches in the same order for every way, but for how they were decoded."""
    torch.manual_seed(spec["seed"])
    with open_split(spec, "train", arm) as loader:
        model = Network(len(loader.classes)).to(device)
        steps = epochs * len(loader)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
        for _ in range(epochs):
            for images, labels in loader:
                loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
        check_arm(loader, arm)
    return model.eval()


@torch.no_grad()
def accuracy(model, images, labels, device):
    right = sum((model(part.to(device)).argmax(1).cpu() == truth).sum().item()
                for part, truth in zip(images.split(256), labels.split(256)))
    return 100 * right / len(labels)


def mean_and_error(values):
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return [round(statistics.mean(values), 3), round(error, 3)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=["exact", "fast"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--index-train", help="of DATA/train, made by `penstock index`")
    parser.add_argument("--index-val", help="of DATA/val")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = os.path.abspath(args.data)
    indexes = {name: os.path.abspath(path) for name, path in (("train", args.index_train), ("val", args.index_val)) if path}
    specs = [job(data, args.side, args.batch, seed, indexes) for seed in range(args.seeds)]

    exact = served(specs[0], "bytes", "exact")[0]
    shown = {}
    for arm in args.arms:
        print(json.dumps({"arm": arm, "pixels": differences(served(specs[0], "bytes", arm)[0], exact)}), flush=True)
        shown[arm] = served(specs[0], "val", arm)
    for arm in args.arms:
        results = {other: [] for other in args.arms}
        for spec in specs:
            model = trained(spec, arm, args.epochs, device)
            for other, (images, labels) in shown.items():
                results[other].append(accuracy(model, images, labels, device))
        lost = {other: mean_and_error([a - b for a, b in zip(results[arm], results[other])])
                for other in args.arms if other != arm}
        print(json.dumps({"trained": arm, "accuracy": {other: mean_and_error(values)[0] for other, values in results.items()},
                          "lost": lost, "seeds": args.seeds, "images": len(shown[arm][1])}), flush=True)


if __name__ == "__main__":
    main()
