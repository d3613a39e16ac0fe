#!/usr/bin/env python3
"""What it costs to serve with another decoder than one trained with: a small network, trained by each way, served by each.

    PYTHONPATH=build/release/python build/venv/bin/python bench/python/accuracy_matrix.py DATA --arms exact opencv fast --seeds 5
    ... --more ../shared/data/hires                         # pictures without a class, served too
    ... --arms exact nearest interpolated                   # nvJPEG's: needs a GPU, its library and `penstock index`

DATA has class folders of pictures, of which three of ten are held out, or has them under train/ and val/, as `penstock demo-data`
makes them. A way ("arm") is how images are decoded and resized, nothing else; order, crops and flips are the same in all:
    exact         arithmetic: exact, by the CPU or any GPU: Pillow's pixels
    opencv        arithmetic: opencv: those of cv2.imread and cv2.resize (INTER_LINEAR), which does not antialias
    fast          arithmetic: fast on the CPU: large photos are decoded at 1/2, 1/4 or 1/8
    nearest       arithmetic: fast on a GPU, decoded by nvJPEG as it comes (chroma repeated)
    interpolated  the same with nvJPEG's chroma interpolation
Written as JSON lines: `pixels`, how far a way's served images are from exact ones (of all bytes: mean and largest
difference, share that differs); then a line for each way trained with and each other one served with, paired picture by picture
with the same network served as it was trained: `logits` (largest change of a picture's logits, as a share of their spread),
`agreement` (percent of pictures with the same top-1), `lost` (points of accuracy); each [mean, standard error], the error being
the larger of that over pictures and that over seeds, and `more`, logits and agreement of the pictures of --more.
Below two errors a difference says nothing.
A way of nvJPEG that did not decode at least 80 % of the images is refused: it would be compared with itself.
"""

import argparse
import json
import math
import os
import sys

import torch
from torch import nn

import penstock

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
ARMS = {
    "exact": {"arithmetic": "exact"},
    "opencv": {"arithmetic": "opencv"},
    "fast": {"arithmetic": "fast"},
    "nearest": {"arithmetic": "fast", "loader.executor": "gpu", "loader.nvjpeg": "nearest"},
    "interpolated": {"arithmetic": "fast", "loader.executor": "gpu", "loader.nvjpeg": "interpolated"},
}


def job(data, side, batch, seed, indexes):
    def dataset(name):
        if os.path.isdir(os.path.join(data, "train")):
            found = {"folder": os.path.join(data, name)}
        else:
            found = {"folder": data, "val_share": 0.3, "train": name == "train"}
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
def logits_of(model, images, device):
    return torch.cat([model(part.to(device)).cpu() for part in images.split(256)])


def mean_and_error(values):
    """Of [seed, picture]: the mean, and the larger of the standard errors over pictures and over seeds."""
    errors = [part.std().item() / math.sqrt(len(part)) for part in (values.mean(0), values.mean(1)) if len(part) > 1]
    return [round(values.mean().item(), 4), round(max(errors, default=0.0), 4)]


def compared(served_as_trained, served_otherwise):
    """How far the same networks' logits [seed, picture, class] of the same pictures are apart."""
    spread = served_as_trained.amax(-1) - served_as_trained.amin(-1)
    return {"logits": mean_and_error((served_otherwise - served_as_trained).abs().amax(-1) / spread),
            "agreement": mean_and_error(100.0 * (served_as_trained.argmax(-1) == served_otherwise.argmax(-1)).float())}


def pictures_in(folders):
    return [os.path.join(top, name) for folder in folders for top, _, names in sorted(os.walk(folder)) for name in sorted(names)
            if name.lower().endswith((".jpg", ".jpeg", ".png", ".webp"))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=["exact", "opencv", "fast"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--more", nargs="*", default=[], help="folders of pictures without a class, served too")
    parser.add_argument("--index-train", help="of DATA/train, made by `penstock index`")
    parser.add_argument("--index-val", help="of DATA/val")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = os.path.abspath(args.data)
    indexes = {name: os.path.abspath(path) for name, path in (("train", args.index_train), ("val", args.index_val)) if path}
    specs = [job(data, args.side, args.batch, seed, indexes) for seed in range(args.seeds)]

    exact = served(specs[0], "bytes", "exact")[0]
    shown, more = {}, {}
    paths = pictures_in(args.more)
    for arm in args.arms:
        print(json.dumps({"arm": arm, "pixels": differences(served(specs[0], "bytes", arm)[0], exact)}), flush=True)
        shown[arm], labels = served(specs[0], "val", arm)
        if paths:
            more[arm] = penstock.Preprocessor(specs[0], split="val", overrides=ARMS[arm])(paths)
    for arm in args.arms:
        models = [trained(spec, arm, args.epochs, device) for spec in specs]
        found = {other: torch.stack([logits_of(model, images, device) for model in models]) for other, images in shown.items()}
        right = {other: 100.0 * (logits.argmax(-1) == labels).float() for other, logits in found.items()}
        of_more = {other: torch.stack([logits_of(model, images, device) for model in models]) for other, images in more.items()}
        for other in args.arms:
            line = {"trained": arm, "served": other, "accuracy": mean_and_error(right[other])}
            if other != arm:
                line.update(compared(found[arm], found[other]), lost=mean_and_error(right[arm] - right[other]))
                if more:
                    line["more"] = {**compared(of_more[arm], of_more[other]), "images": len(paths)}
            print(json.dumps({**line, "seeds": args.seeds, "images": len(labels)}), flush=True)


if __name__ == "__main__":
    main()
