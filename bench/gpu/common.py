"""What the steps of bench/gpu.sh share: result lines, folders of pictures, jobs, runs of them.

A step prints one JSON object a line on standard output, everything else on standard error, and ends by done().
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

PLAYED = os.environ.get("PENSTOCK_GPUS") == "host"  # the GPU is this CPU: figures mean nothing
BUILD = os.environ["PENSTOCK_BUILD"]
PENSTOCK = os.path.join(BUILD, "penstock")
WORK = tempfile.TemporaryDirectory(prefix="penstock-gpu-step-")
_failed = []


def emit(name, ok=True, **figures):
    if not ok:
        _failed.append(name)
    print(json.dumps({"name": name, "ok": bool(ok), **figures}), flush=True)


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def skip(why):
    print(f"SKIP: {why}", flush=True)
    sys.exit(77)


def done():
    sys.exit(f"not as it should be: {', '.join(_failed)}" if _failed else 0)


def pictures(folder, most=None, name="photos"):
    """A class folder of the JPEG files below `folder`, as links: all of them, or so many, spread over it."""
    if not os.path.isdir(folder):
        skip(f"no pictures: '{folder}' is not there")
    found = sorted(os.path.join(top, file) for top, _, files in os.walk(folder) for file in files
                   if file.lower().endswith((".jpg", ".jpeg")))
    if most and len(found) > most:
        found = [found[i * len(found) // most] for i in range(most)]
    target = os.path.join(WORK.name, name, "all")
    os.makedirs(target)
    for number, path in enumerate(found):
        os.symlink(os.path.abspath(path), os.path.join(target, f"{number:05}.jpg"))
    return os.path.dirname(target)


def photos_500x375(folder, most, name="photos_500x375"):
    """As many photos of 500x375, 4:2:0, quality 90, made of those below `folder`."""
    from PIL import Image, ImageOps
    target = os.path.join(WORK.name, name, "all")
    os.makedirs(target)
    source = os.path.join(pictures(folder, most, name + "_source"), "all")
    names = sorted(os.listdir(source))
    for number in range(most):
        with Image.open(os.path.join(source, names[number % len(names)])) as image:
            image = ImageOps.fit(image.convert("RGB"), (500, 375), Image.BICUBIC)
            if number >= len(names):  # the same photo once more has other bytes
                image = ImageOps.mirror(image).rotate(number // len(names), Image.BICUBIC)
            image.save(os.path.join(target, f"{number:05}.jpg"), quality=90, subsampling=2)
    return os.path.dirname(target)


def job(folder, pipeline, batch=64, mode="train", loader=None, **split):
    dataset = dict(folder=folder) if isinstance(folder, str) else folder
    sampler = {"sampler": {"shuffle": True}} if mode == "train" else {}
    return {"seed": 7, "on_error": "substitute", "bad_samples": {"max_fraction": 1.0}, "loader": {"threads": len(os.sched_getaffinity(0)), "memory_gb": 2, **(loader or {})},
            "splits": {"train": {"mode": mode, "dataset": dataset, "batch_size": batch, "tail": "pad",
                                 "pipeline": pipeline, **sampler, **split}}}


def write_job(description, name="job"):
    path = os.path.join(WORK.name, name + ".json")
    with open(path, "w") as file:
        json.dump(description, file)
    return path


def penstock(*words, timeout=500, env=None, check=True):
    result = subprocess.run([PENSTOCK, *words], capture_output=True, text=True, timeout=timeout, env=env)
    if result.stderr:
        say(result.stderr)
    if check and result.returncode:
        raise RuntimeError(f"penstock {' '.join(words)}: exit {result.returncode}")
    return result


def index_of(description, name="index"):
    path = os.path.join(WORK.name, name + ".index")
    penstock("index", write_job(description, name), "--split=train", f"--out={path}")
    return path


def gpus_of(report):
    """The loaders' figures of their GPUs."""
    return [rank["gpus"] for rank in report["ranks"] if rank["role"] == "loader" and "gpus" in rank]


def by_gpus(report):
    return sum(gpus["images"] for gpus in gpus_of(report))


def images_of(description, epochs=1, keep=True, **options):
    """(batches as tensors, stats) of an embedded run."""
    import penstock as package
    with package.DataLoader(description, split="train", copy=keep, **options) as train:
        kept = []
        for epoch in range(epochs):
            train.set_epoch(epoch)
            for batch in train:
                if keep:
                    kept.append(tuple(batch))
        return kept, train.stats()


def same(ones, others):
    import torch
    return len(ones) == len(others) and all(
        torch.equal(a.cpu().contiguous().view(torch.uint8), b.cpu().contiguous().view(torch.uint8))
        for one, other in zip(ones, others) for a, b in zip(one, other))


def rate(run, seconds):
    """Images a second of run() -> images, called until `seconds` have passed."""
    begun, images = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        images += run()
    return images / (time.monotonic() - begun)


def rounds(competitors, times, seconds):
    """{name: [images/s]}: `times` rounds in which all take turns, the odd ones backwards."""
    found = {name: [] for name in competitors}
    for number in range(times):
        names = list(competitors)
        for name in names[::-1] if number % 2 else names:
            found[name].append(rate(competitors[name], seconds))
    return found


def ratio(ones, others):
    """Median of the rounds' ratios, with the smallest and the largest."""
    ratios = [one / other for one, other in zip(ones, others)]
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def gpu_memory_used_mb():
    """What the driver counts as taken on the first GPU, by whomever."""
    found = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True)
    return int(found.stdout.split()[0])
