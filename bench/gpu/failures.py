"""A GPU that is short of memory, or busy for ever: it is named, the CPU goes on, and the hashes are the same.

    failures.py PHOTOS
"""

import ctypes
import os
import subprocess
import sys
import time
import warnings

import penstock
from common import PLAYED, WORK, by_gpus, gpus_of, done, emit, images_of, job, pictures, say

HERE = os.path.dirname(os.path.abspath(__file__))
PIPELINE = [{"RandomResizedCrop": {"size": 160}}, {"RandomHorizontalFlip": {}}]
HOG = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
taken = torch.empty(free - int(sys.argv[1]) * 1048576, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("taken", flush=True)
sys.stdin.read()
"""


def hashes(stats):
    return stats["order_hash"], stats["pixel_hash"]


class Hog:
    """Another process that has all memory of the GPU but so many MB. Where the CPU plays the GPU there is none."""

    def __init__(self, left_mb):
        self.left_mb = left_mb

    def __enter__(self):
        self.process = subprocess.Popen([sys.executable, "-c", HOG, str(self.left_mb)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "taken\n"

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(60)


def out_of_memory(folder, wanted):
    # The played GPU has 1 GiB.
    ask_mb = 4096
    cases = (("half of what it asks for", ask_mb // 2, "gpu", True), ("next to nothing", 0, "auto", False))
    for name, left_mb, executor, has_gpu in cases:
        if PLAYED and left_mb == 0:
            say("the GPU that is played has its memory always")
            continue
        described = job(folder, PIPELINE, 16, loader={"executor": executor, "gpu_memory_mb": ask_mb})
        if PLAYED:
            _, stats = images_of(described, keep=False)
        else:
            with Hog(left_mb):
                _, stats = images_of(described, keep=False)
        gpus = gpus_of(stats)
        emit(f"another process left {name}", hashes(stats) == wanted and (by_gpus(stats) > 0 or not has_gpu), by_gpu=by_gpus(stats),
             asked_mb=ask_mb, memory_mb=[gpu.get("memory_mb") for one in gpus for gpu in one["list"]],
             failed=[gpu.get("failed") for one in gpus for gpu in one["list"]], why=[one.get("none") for one in gpus])
    if not PLAYED:
        with Hog(0):
            begun = time.monotonic()
            try:
                images_of(job(folder, PIPELINE, 16, loader={"executor": "gpu", "gpu_memory_mb": ask_mb}), keep=False)
                emit("executor: gpu without memory is an error by name", False)
            except penstock.Error as error:
                emit("executor: gpu without memory is an error by name", "memory" in str(error), message=str(error),
                     seconds=round(time.monotonic() - begun, 1))


def a_kernel_that_never_ends(folder, wanted):
    if PLAYED:
        say("no kernel of another's keeps back a GPU that is played (tests/loader/gpu_executor_test.cpp plays that)")
        return
    library = os.path.join(WORK.name, "spin.so")
    subprocess.run(["nvcc", "-shared", "-Xcompiler", "-fPIC", "-arch=native", "-o", library, os.path.join(HERE, "spin.cu")], check=True)
    spin = ctypes.CDLL(library).spin
    spin.argtypes = [ctypes.c_double]
    described = job(folder, PIPELINE, 16, loader={"executor": "gpu", "gpu_memory_mb": 1024})
    longest, batches, notices = 0.0, 0, []
    with warnings.catch_warnings(record=True) as seen, penstock.DataLoader(described, split="train", copy=True) as train:
        warnings.simplefilter("always")
        train.set_epoch(0)
        asked = time.monotonic()
        for _ in train:
            longest = max(longest, time.monotonic() - asked)
            batches += 1
            if batches == 2:
                assert spin(60.0) == 0
            asked = time.monotonic()
        stats = train.stats()
        notices = [str(one.message) for one in seen]
    gpus = gpus_of(stats)
    failed = [gpu.get("failed") for one in gpus for gpu in one["list"]]
    # A batch has 10 s; then the CPU makes what it held.
    emit("a kernel that never ends", hashes(stats) == wanted and any(failed) and longest < 30, longest_next_s=round(longest, 2), failed=failed,
         notices=notices, by_gpu=by_gpus(stats))


def main():
    folder = pictures(sys.argv[1], 24 if PLAYED else 200)
    _, stats = images_of(job(folder, PIPELINE, 16, loader={"executor": "cpu"}), keep=False)
    wanted = hashes(stats)
    out_of_memory(folder, wanted)
    a_kernel_that_never_ends(folder, wanted)
    done()
    # The spinning kernel ends with this process.


main()
