"""A loader on the GPU that a trainer computes on: the trainer's step time alone, beside it, and beside it with a limited share of
the GPU's time; and how much of the GPU's memory the loader takes, as the driver counts it.

    beside_trainer.py PHOTOS
"""

import statistics
import subprocess
import sys
import time

import torch

import penstock
from common import PENSTOCK, PLAYED, by_gpus, done, emit, gpu_memory_used_mb, job, pictures, write_job

DEVICE = "cpu" if PLAYED else "cuda:0"
BATCH = 8 if PLAYED else 256
STEPS = 4 if PLAYED else 60
PIPELINE = [{"RandomResizedCrop": {"size": 64 if PLAYED else 224}}, {"RandomHorizontalFlip": {}},
            {"ToDtype": {"dtype": "float32", "scale": True}}, {"Normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}]


def network():
    import torchvision
    return torchvision.models.resnet18(num_classes=2) if PLAYED else torchvision.models.resnet50(num_classes=1000)


def train(batches):
    """Milliseconds of each step, behind the first five, and of them what the step waited for its batch."""
    torch.manual_seed(0)
    model = network().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps, waits = [], []
    for number in range(STEPS + 5):
        begun = time.monotonic()
        images, labels = next(batches)
        waited = time.monotonic()
        with torch.autocast(DEVICE.partition(":")[0], dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images.contiguous(memory_format=torch.channels_last)), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if not PLAYED:
            torch.cuda.synchronize()
        if number >= 5:
            steps.append((time.monotonic() - begun) * 1e3)
            waits.append((waited - begun) * 1e3)
    return {"step_ms": statistics.median(steps), "step_ms_p90": sorted(steps)[len(steps) * 9 // 10], "wait_ms": statistics.median(waits)}


def forever(loader):
    while True:
        for images, labels in loader:
            yield images, labels % 2


def loaders_memory(folder):
    """MB that a loader alone takes of the GPU, by what it was allowed."""
    for budget in (256, 1024, 4096):
        path = write_job(job(folder, PIPELINE[:2], 64, loader={"executor": "gpu", "gpu_memory_mb": budget}), f"memory_{budget}")
        before = gpu_memory_used_mb()
        most = 0
        run = subprocess.Popen([PENSTOCK, "bench", "decode", path, "--device=gpu", "--seconds=8", "--json"], stdout=subprocess.DEVNULL)
        while run.poll() is None:
            most = max(most, gpu_memory_used_mb())
            time.sleep(0.1)
        # CUDA's context, kernels and printf buffers are besides; it is what the smallest budget shows above itself.
        emit("memory of a loader", run.returncode == 0 and most - before < budget + 1200, budget_mb=budget, taken_mb=most - before,
             above_budget_mb=most - before - budget)


def main():
    folder = pictures(sys.argv[1], 16 if PLAYED else 400)
    images = torch.rand(BATCH, 3, 64 if PLAYED else 224, 64 if PLAYED else 224, device=DEVICE)
    labels = torch.zeros(BATCH, dtype=torch.int64, device=DEVICE)

    def one():
        while True:
            yield images, labels
    alone = train(one())
    emit("trainer alone, no loader", **alone)
    ways = [("CPU loads", {"executor": "cpu"}), ("GPU loads", {"executor": "gpu"}), ("GPU loads, gpu_duty 0.3", {"executor": "gpu", "gpu_duty": 0.3}),
            ("GPU loads, gpu_duty 0.1", {"executor": "gpu", "gpu_duty": 0.1})]
    for name, loader in ways:
        described = job(folder, PIPELINE, BATCH, loader={"gpu_memory_mb": 64 if PLAYED else 2048, **loader})
        options = {} if PLAYED else {"device": DEVICE}
        with penstock.DataLoader(described, split="train", **options) as loading:
            got = train(forever(loading))
            stats = loading.stats()
        emit(name, loader["executor"] == "cpu" or by_gpus(stats) > 0, **got, step_over_alone=got["step_ms"] / alone["step_ms"],
             by_gpu=by_gpus(stats), images=stats["images"], wait_fraction=stats["wait_fraction"])
    if not PLAYED:
        loaders_memory(folder)
    done()


main()
