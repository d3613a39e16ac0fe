"""A data set whose samples take as long as real ones did: it sleeps. The times are drawn once, by index, from a recorded
distribution, so that every run and every loader agrees what a sample costs."""

import json
import os
import random
import re
import time

import numpy as np


def rank():
    """Of the loader that this worker belongs to: workers are not told. -1: under no mpirun."""
    pid = os.getpid()
    while pid > 1:
        with open(f"/proc/{pid}/environ", "rb") as file:
            found = re.search(rb"OMPI_COMM_WORLD_RANK=([0-9]+)", file.read())
        if found:
            return int(found[1])
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    return -1


def quantile(points, share):
    """Of [[share of all that are at most the value, value]], linear between them."""
    for (low, below), (high, above) in zip(points, points[1:]):
        if share <= high:
            return below if high == low else below + (above - below) * (share - low) / (high - low)
    return points[-1][1]


class Samples:
    classes = ["a", "b"]

    def __init__(self, times, count, size, slowness=None, tail=1.0, seed=7):
        """`times`: file of quantiles in seconds; `slowness`: {rank: factor}; `tail`: factor of one sample in 100;
        `seed`: which samples have which time."""
        with open(times) as file:
            points = json.load(file)
        draw = random.Random(seed)
        slow = (slowness or {}).get(str(rank()), 1)
        self.seconds = [slow * quantile(points, draw.random()) for _ in range(count)]
        if tail != 1:
            self.seconds = [s * (tail if draw.random() < 0.01 else 1) for s in self.seconds]
        self.size = size

    def __len__(self):
        return len(self.seconds)

    def __getitem__(self, i):
        time.sleep(self.seconds[i])
        return {"image": np.full((self.size, self.size, 3), i % 251, np.uint8), "label": i % 2}
