"""The CPU path over threads and loaders: images/s, share of linear, and where the time goes by thread; beside torch's DataLoader with
as many workers. 500x375 photos in 4:2:0 to 224.

    scaling.py PHOTOS

Goal: 0.9 of linear to 8 threads.
"""

import collections
import json
import os
import subprocess
import sys
import time

import torch

import penstock
from common import PENSTOCK, PLAYED, done, emit, job, photos_500x375, say, write_job

COUNT, BATCH, SIZE = (32, 8, 64) if PLAYED else (512, 64, 224)
SECONDS = 0.7 if PLAYED else 6
CORES = len(os.sched_getaffinity(0))
THREADS = [n for n in (1, 2, 4, 8, 16) if n <= CORES]
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PIPELINE = [{"RandomResizedCrop": {"size": SIZE}}, {"RandomHorizontalFlip": {}}, {"ToDtype": {"dtype": "float32", "scale": True}},
            {"Normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}]


def cpu_by_thread():
    """{name of a thread of this process: CPU seconds so far}; numbers at the end of names left out."""
    found = collections.Counter()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/stat") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(")")
        except OSError:
            continue
        words = rest.split()
        found[name.rstrip("0123456789")] += (int(words[11]) + int(words[12])) * TICK_S
    return found


def window(batches):
    """(images/s, CPU seconds of each kind of thread a second) over the window, behind a warm-up."""
    end = time.monotonic() + SECONDS / 3
    while time.monotonic() < end:
        next(batches)
    before, begun, images = cpu_by_thread(), time.monotonic(), 0
    while time.monotonic() - begun < SECONDS:
        images += len(next(batches)[0])
    seconds = time.monotonic() - begun
    spent = {name: round((cpu - before[name]) / seconds, 3) for name, cpu in cpu_by_thread().items()}
    return images / seconds, {name: share for name, share in sorted(spent.items(), key=lambda one: -one[1]) if share >= 0.005}


def forever(loader):
    while True:
        yield from loader


class Photos(torch.utils.data.Dataset):
    """What a careful user of torch writes: torchvision's decoder and functions on tensors."""

    def __init__(self, folder):
        import torchvision
        self.io, self.transforms, self.functional = torchvision.io, torchvision.transforms, torchvision.transforms.functional
        self.paths = [os.path.join(folder, "all", name) for name in sorted(os.listdir(os.path.join(folder, "all")))]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = self.io.read_image(self.paths[index], self.io.ImageReadMode.RGB)
        y, x, height, width = self.transforms.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
        image = self.functional.resized_crop(image, y, x, height, width, [SIZE, SIZE], antialias=True)
        image = image.flip(-1) if torch.rand(()) < 0.5 else image
        return self.functional.normalize(image.float().div_(255), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), 0


def threads(folder):
    first = None
    for count in THREADS:
        with penstock.DataLoader(job(folder, PIPELINE, BATCH, loader={"threads": count, "executor": "cpu"}), split="train") as train:
            rate, spent = window(forever(train))
            stats = train.stats()
        first = first or rate
        emit("embedded", images_per_s=rate, threads=count, of_linear=rate / (first * count), cpu_s_per_s=spent,
             wait_fraction=stats["wait_fraction"], goal_reached=None if count > 8 else rate >= 0.9 * first * count)
    first = None
    for count in THREADS:
        loader = torch.utils.data.DataLoader(Photos(folder), BATCH, shuffle=True, num_workers=count, drop_last=True, persistent_workers=True)
        rate, _ = window(forever(loader))
        first = first or rate
        emit("torch DataLoader", images_per_s=rate, workers=count, of_linear=rate / (first * count))
        del loader


def loaders(folder):
    """One trainer's program that takes and drops batches, and 1, 2, 4 loader processes with the same threads together."""
    first = None
    for transport in ("shm", "mpi"):
        for count in (1, 2, 4):
            each = max(1, min(8, CORES - 1) // count)
            described = {**job(folder, PIPELINE, BATCH, loader={"threads": each, "executor": "cpu"}), "roles": {"trainers": 1},
                         "transport": transport}
            path = write_job(described, f"loaders_{transport}_{count}")
            epochs = 2 if PLAYED else 40
            run = subprocess.run([PENSTOCK, "launch", "--run", "--json", "--quiet", path, "-n", str(count + 1), "--", PENSTOCK, "drain", path,
                                  f"--epochs={epochs}"], capture_output=True, text=True, timeout=200)
            say(run.stderr)
            report = next((json.loads(line) for line in run.stdout.splitlines() if line.startswith("{") and '"ranks"' in line), None)
            if run.returncode or not report:
                emit(f"{count} loaders over {transport}", False)
                continue
            rate = report["splits"]["train"]["images_per_s"]
            first = first or rate
            emit(f"{count} loaders over {transport}", images_per_s=rate, threads_each=each, over_one_loader_by_shm=rate / first,
                 bottleneck=report["bottleneck"],
                 ranks=[{key: rank.get(key) for key in ("role", "busy_fraction", "loop_busy_s", "receiver_busy_s", "elapsed_s", "max_rss_mb")}
                        for rank in report["ranks"]])


folder = photos_500x375(sys.argv[1], COUNT)
emit("machine", cores=CORES)
threads(folder)
loaders(folder)
done()
