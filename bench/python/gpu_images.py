#!/usr/bin/env python3
"""What finishing on the trainer's GPU takes from the CPU: a receiver that finishes images, beside one that leaves them raw.

    PYTHONPATH=build/release/python build/venv/bin/python bench/python/gpu_images.py --rounds 9
    … bench/python/gpu_images.py --preprocessor           # the same of penstock.Preprocessor, and so of penstock.wrap

Pictures of 224x224 that cost next to nothing to make (PPM, cut to what they are), normalised float32, batches of 64; the
loader is in the process, and its consumer drops every batch at once. In rounds in which the two take turns: milliseconds of
CPU time of the whole process an image (what others do on the machine counts little), and bytes of an image in its batch buffer,
which is what a copy to the GPU reads. Of the GPU's side, the driver's copy and the kernel, nothing is measured here.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

SIDE, PICTURES, BATCH = 224, 256, 64


def make_pictures(folder):
    os.makedirs(os.path.join(folder, "all"))
    for i in range(PICTURES):
        with open(os.path.join(folder, "all", f"{i:04}.ppm"), "wb") as file:
            file.write(b"P6 %d %d 255\n" % (SIDE, SIDE))
            file.write(bytes((j * (2 * i + 1)) & 255 for j in range(1021)) * (3 * SIDE * SIDE // 1021 + 1))
            file.truncate(len(b"P6 %d %d 255\n" % (SIDE, SIDE)) + 3 * SIDE * SIDE)


def job(folder):
    return json.dumps({"seed": 1, "loader": {"threads": 1, "memory_gb": 1},
                       "splits": {"train": {"mode": "train", "dataset": {"folder": folder}, "batch_size": BATCH, "tail": "drop",
                                            "pipeline": [{"CenterCrop": {"size": SIDE}},
                                                         {"ToDtype": {"dtype": "float32", "scale": True}},
                                                         {"Normalize": {"mean": [0.485, 0.456, 0.406],
                                                                        "std": [0.229, 0.224, 0.225]}}]}}})


def measure(text, raw, epochs):
    from penstock import _penstock
    loader = _penstock.Loader(text, is_text=True, name="<job>", split="train", overrides=[], num_replicas=1, rank=0,
                              places_are_ranks=False, dtype=None, channels_last=None, raw_images=raw, attach=False,
                              on_warning=None)
    assert loader.raw_images == raw

    def epoch(number):
        stream, images, size = loader.start_at(number, 0), 0, 0
        while (batch := stream.next()) is not None:
            images += len(batch)
            size = batch["image"].nbytes // len(batch)
        return images, size
    epoch(0)
    begun, images = time.process_time(), 0
    for number in range(1, 1 + epochs):
        some, size = epoch(number)
        images += some
    cpu = time.process_time() - begun
    loader.close()
    return 1000 * cpu / images, size


def measure_preprocessor(text, raw, epochs):
    from penstock import _penstock
    folder = json.loads(text)["splits"]["train"]["dataset"]["folder"]
    encoded = []
    for i in range(PICTURES):
        with open(os.path.join(folder, "all", f"{i:04}.ppm"), "rb") as file:
            encoded.append(file.read())
    preprocess = _penstock.Preprocessor(text, is_text=True, name="<job>", split="train", overrides=[], dtype=None,
                                        channels_last=None, raw_images=raw, threads=1, cpu_fraction=None)

    def epoch():
        for begin in range(0, PICTURES, BATCH):
            images, reasons = preprocess.submit(encoded[begin:begin + BATCH], None, 0, None).wait()
            assert not any(reasons)
        return images.nbytes // BATCH
    epoch()
    begun = time.process_time()
    for _ in range(epochs):
        size = epoch()
    cpu = time.process_time() - begun
    preprocess.close()
    return 1000 * cpu / (epochs * PICTURES), size


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--epochs", type=int, default=20)
    options.add_argument("--preprocessor", action="store_true")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_pictures(folder)
        text, found, size = job(folder), {True: [], False: []}, {}
        for number in range(given.rounds):
            for raw in (False, True) if number % 2 else (True, False):
                ms, size[raw] = (measure_preprocessor if given.preprocessor else measure)(text, raw, given.epochs)
                found[raw].append(ms)
    for raw, name in ((False, "finished"), (True, "raw")):
        print(f"{name:9} {statistics.median(found[raw]):.4f} ms of CPU an image ({min(found[raw]):.4f} to "
              f"{max(found[raw]):.4f}), {size[raw]} bytes in the batch buffer")
    less = [a - b for a, b in zip(found[False], found[True])]
    print(f"less      {statistics.median(less):.4f} ms ({min(less):.4f} to {max(less):.4f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
