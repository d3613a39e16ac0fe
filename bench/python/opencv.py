"""Images/s and CPU time of a torch DataLoader that decodes and resizes with cv2, and of penstock with arithmetic: opencv, which gives
the same bytes (checked first).

    PYTHONPATH=build/release/python build/venv/bin/python bench/python/opencv.py PHOTOS --threads 2 --seconds 5 --rounds 5

PHOTOS has class folders of pictures. Each way makes RandomResizedCrop(224) by cv2.resize (INTER_LINEAR), flip, float32, Normalize; the
program does nothing with a batch. Rounds alternate; what counts is the ratio within a round.
"""

import argparse
import json
import math
import os
import random
import resource
import statistics

import cv2
import numpy
import torch
from torch.utils.data import DataLoader

import penstock
from wrap import MEAN, STD, Files, images_per_s, job

MEAN_255 = numpy.float32([255 * value for value in MEAN])
SCALE = numpy.float32([1 / (255 * value) for value in STD])
OPENCV = ["arithmetic=opencv"]


class Decode:
    """As programs that train with cv2 have it."""

    def __call__(self, index, path, label):
        image = cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB)
        height, width = image.shape[:2]
        for _ in range(10):
            area = height * width * random.uniform(0.08, 1)
            ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                break
        else:
            w, h = width, height
        x, y = random.randint(0, width - w), random.randint(0, height - h)
        image = cv2.resize(image[y:y + h, x:x + w], (224, 224))
        if random.random() < 0.5:
            image = image[:, ::-1]
        return torch.from_numpy(numpy.ascontiguousarray(((image - MEAN_255) * SCALE).transpose(2, 0, 1))), label


def check(spec, photos):
    """The same bytes, of 64 photos resized whole."""
    paths = [path for path, _ in Files(photos, None).samples[::max(1, len(Files(photos, None)) // 64)]]
    small = json.loads(json.dumps(spec))
    small["splits"]["train"]["pipeline"] = [{"Resize": {"size": [224, 224]}}]
    ours = penstock.Preprocessor(small, split="train", overrides=OPENCV)(paths)
    for path, image in zip(paths, ours):
        theirs = cv2.resize(cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB), (224, 224))
        assert (image.numpy() == theirs.transpose(2, 0, 1)).all(), path
    return len(paths)


def cpu_s():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    spec = job(os.path.abspath(args.photos), args.batch, args.threads)
    print(json.dumps({"cv2": cv2.__version__, "equal": check(spec, args.photos), "threads": args.threads}), flush=True)
    ways = {
        "torch DataLoader with cv2": lambda: DataLoader(Files(args.photos, Decode()), num_workers=args.threads, batch_size=args.batch,
                                                        shuffle=True, drop_last=True, persistent_workers=True),
        "penstock, opencv": lambda: penstock.DataLoader(spec, split="train", num_replicas=1, rank=0, overrides=OPENCV),
        "penstock, exact": lambda: penstock.DataLoader(spec, split="train", num_replicas=1, rank=0),
    }
    rates, costs = {name: [] for name in ways}, {name: [] for name in ways}
    for number in range(args.rounds):
        for name in list(ways) if number % 2 == 0 else reversed(list(ways)):
            begun = cpu_s()
            loader = ways[name]()
            rate, images = images_per_s(loader, args.seconds)
            if hasattr(loader, "close"):
                loader.close()
            else:
                loader._iterator._shutdown_workers()  # so that their CPU time is known
            del loader
            rates[name].append(rate)
            costs[name].append(1000 * (cpu_s() - begun) / images)
    first = next(iter(ways))
    for name in ways:
        ratios = [rate / before for rate, before in zip(rates[name], rates[first])]
        print(json.dumps({"way": name, "images_per_s": [round(rate) for rate in rates[name]], "ratio": round(statistics.median(ratios), 2),
                          "cpu_ms_an_image": round(statistics.median(costs[name]), 2)}))


if __name__ == "__main__":
    main()
