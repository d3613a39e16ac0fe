"""Images/s of 500x375 photos in 4:2:0 to 224, on the GPU at the end: penstock's arrangements beside torchvision's CUDA decode_jpeg
(which is nvJPEG) and, where it can be imported, DALI. Same photos, same crops, in turns; every competitor's images are compared
with Pillow's before anything is timed: penstock's exact ones must be equal, the others near.

    decoders.py PHOTOS

Goal: the faster of `exact` with entropy decoding on GPU or CPU, 1.5 times the best of the others.
"""

import json
import os
import sys

import numpy as np
import torch
from PIL import Image

import penstock
from common import PLAYED, WORK, gpus_of, done, emit, index_of, job, photos_500x375, ratio, rounds, say, write_job
from common import penstock as call

COUNT, BATCH, SIZE = (32, 8, 64) if PLAYED else (1024, 128, 224)
ROUNDS, SECONDS = (1, 0.5) if PLAYED else (5, 4)
DEVICE = "cpu" if PLAYED else "cuda:0"
PIPELINE = [{"RandomResizedCrop": {"size": SIZE}}, {"RandomHorizontalFlip": {}}]
NEAR = 3.0  # mean steps of 255 from Pillow's


def synchronize():
    if not PLAYED:
        torch.cuda.synchronize()


class Ours:
    """An embedded loader whose images end on the GPU; each call is an epoch, the first is epoch 0."""

    def __init__(self, dataset, loader, arithmetic="exact"):
        memory = {"gpu_memory_mb": 64} if PLAYED else {"gpu_memory_mb": 8192, "gpu_export_mb": 1024}
        if loader["executor"] == "cpu":
            memory = {}
        described = {**job(dataset, PIPELINE, BATCH, loader={**memory, **loader}), "arithmetic": arithmetic}
        self.loader = penstock.DataLoader(described, split="train", **({} if PLAYED else {"device": DEVICE}))
        self.epoch = 0

    def __call__(self, kept=None):
        self.loader.set_epoch(self.epoch)
        self.epoch += 1
        images = 0
        for batch in self.loader:
            images += len(batch[0])
            if kept is not None:
                kept.append(batch[0].cpu().numpy().copy())
        synchronize()
        return images

    def figures(self):
        stats = self.loader.stats()
        return {"gpus": gpus_of(stats), "device": stats["device"], "bottleneck": stats["bottleneck"]}


class Torchvision:
    """decode_jpeg of a list on the GPU, then each image cropped and resized there."""

    def __init__(self, lines, paths, whole=True):
        import torchvision
        self.io, self.functional, self.whole = torchvision.io, torchvision.transforms.functional, whole
        self.lines, self.files = lines, {index: self.io.read_file(path) for index, path in enumerate(paths)}

    def __call__(self, kept=None):
        for begin in range(0, len(self.lines), BATCH):
            lines = self.lines[begin:begin + BATCH]
            files = [self.files[line["index"]] for line in lines]
            if PLAYED:
                images = [self.io.decode_jpeg(file, mode=self.io.ImageReadMode.RGB) for file in files]
            else:
                images = self.io.decode_jpeg(files, mode=self.io.ImageReadMode.RGB, device=DEVICE)
            if not self.whole:
                continue
            out = []
            for image, line in zip(images, lines):
                x, y, width, height = line["crop"]
                image = self.functional.resized_crop(image, y, x, height, width, [SIZE, SIZE], antialias=True)
                out.append(image.flip(-1) if line["flip"][0] else image)
            out = torch.stack(out)
            if kept is not None:
                kept.append(out.cpu().numpy())
        synchronize()
        return len(self.lines)


class Dali:
    """image_slice and resize of device `mixed`, the boxes by external_source."""

    def __init__(self, lines, paths):
        from nvidia.dali import fn, pipeline_def, types
        files = {index: np.fromfile(path, dtype=np.uint8) for index, path in enumerate(paths)}

        def batches():
            while True:
                for begin in range(0, len(lines), BATCH):
                    some = lines[begin:begin + BATCH]
                    boxes = np.array([line["crop"] for line in some], dtype=np.int32)
                    yield ([files[line["index"]] for line in some], boxes[:, :2], boxes[:, 2:],
                           np.array([[line["flip"][0]] for line in some], dtype=np.int32))

        @pipeline_def(batch_size=BATCH, num_threads=len(os.sched_getaffinity(0)), device_id=0, prefetch_queue_depth=3)
        def pipeline():
            encoded, at, shape, flip = fn.external_source(batches(), num_outputs=4)
            images = fn.decoders.image_slice(encoded, at, shape, axis_names="WH", device="mixed", output_type=types.RGB)
            images = fn.resize(images, resize_x=SIZE, resize_y=SIZE, interp_type=types.INTERP_LINEAR, antialias=True)
            return fn.crop_mirror_normalize(images, mirror=flip, dtype=types.UINT8, output_layout="CHW", mean=[0.0], std=[1.0])

        self.steps, self.pipeline = len(lines) // BATCH, pipeline()
        self.pipeline.build()

    def __call__(self, kept=None):
        for _ in range(self.steps):
            out, = self.pipeline.run()
            if kept is not None:
                kept.append(np.asarray(out.as_cpu().as_array()))
        synchronize()
        return self.steps * BATCH


def main():
    folder = photos_500x375(sys.argv[1], COUNT)
    paths = [os.path.join(folder, "all", name) for name in sorted(os.listdir(os.path.join(folder, "all")))]
    index = index_of(job(folder, PIPELINE))
    out = os.path.join(WORK.name, "inspected")
    call("inspect", write_job(job(folder, PIPELINE, BATCH), "inspected"), f"--steps={COUNT // BATCH}", f"--out={out}")
    with open(os.path.join(out, "manifest.jsonl")) as file:
        lines = [json.loads(line) for line in file]
    wanted = []
    for line in lines[:4 * BATCH]:
        x, y, width, height = line["crop"]
        with Image.open(paths[line["index"]]) as image:
            pixels = np.asarray(image.convert("RGB").crop((x, y, x + width, y + height)).resize((SIZE, SIZE), Image.BILINEAR))
        wanted.append((pixels[:, ::-1] if line["flip"][0] else pixels).transpose(2, 0, 1))
    wanted = np.stack(wanted)

    plain, indexed = {"folder": folder}, {"folder": folder, "index": index}
    makers = {
        "exact, entropy on the GPU": lambda: Ours(plain, {"executor": "gpu", "gpu_entropy": "auto"}),
        "exact, entropy on the GPU, index": lambda: Ours(indexed, {"executor": "gpu", "gpu_entropy": "auto"}),
        "exact, entropy on the CPU": lambda: Ours(plain, {"executor": "gpu", "gpu_entropy": "never"}),
        "exact, both by speed": lambda: Ours(plain, {"executor": "gpu", "cpu_fraction": "auto"}),
        "exact, CPU alone": lambda: Ours(plain, {"executor": "cpu"}),
        "torchvision": lambda: Torchvision(lines, paths),
        "torchvision, decoding alone": lambda: Torchvision(lines, paths, whole=False),
        "DALI mixed": lambda: Dali(lines, paths)}
    if not PLAYED:
        makers["fast, nvJPEG"] = lambda: Ours(indexed, {"executor": "gpu", "nvjpeg": "interpolated"}, "fast")
    competitors = {}
    for name, make in makers.items():
        try:
            competitor = make()
        except ImportError as error:
            say(f"{name}: {error}")
            emit(f"check: {name}", skipped=str(error))
            continue
        kept = []
        competitor(kept)
        if kept:
            got = np.concatenate(kept)[:len(wanted)]
            mean = float(np.abs(got.astype(int) - wanted.astype(int)).mean())
            exact = name.startswith("exact")
            emit(f"check: {name}", mean == 0 if exact else mean < NEAR, mean_steps_from_pillow=mean, images=len(got))
            if mean >= NEAR or (exact and mean):
                continue
        competitors[name] = competitor
    found = rounds(competitors, ROUNDS, SECONDS)
    for name, rates in found.items():
        figures = competitors[name].figures() if isinstance(competitors[name], Ours) else {}
        emit(f"images/s: {name}", images_per_s=float(np.median(rates)), rounds=[round(rate) for rate in rates], **figures)
    ours = max((name for name in found if name in ("exact, entropy on the GPU", "exact, entropy on the CPU")), key=lambda n: np.median(found[n]))
    others = [name for name in found if name.startswith(("torchvision", "DALI"))]
    if others:
        best = max(others, key=lambda n: np.median(found[n]))
        against = ratio(found[ours], found[best])
        emit("goal: 1.5 times the best of the others", ours=ours, best=best, ratio=against, goal_reached=against["median"] >= 1.5)
    done()


main()
