"""One job's two hashes, whoever makes it: CPU, GPU, both; embedded and by loader processes under mpirun, over shm and mpi; and
delivery from a loader's GPU to a trainer's tensor, on the same GPU without the host.

    hashes.py PHOTOS
    hashes.py --trainer JOB OPTIONS     the trainer's program of a delivery; run by the first
"""

import json
import os
import subprocess
import sys

from common import PENSTOCK, PLAYED, by_gpus, gpus_of, done, emit, images_of, index_of, job, pictures, say, write_job

PIPELINE = [{"RandomResizedCrop": {"size": 160}}, {"RandomHorizontalFlip": {}}, {"ColorJitter": {"brightness": 0.4, "saturation": 0.3}},
            {"ToDtype": {"dtype": "float32", "scale": True}}, {"Normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}]
EPOCHS = 2
HASHES = ("order_hash", "pixel_hash")


def hashes_of(stats):
    return tuple(stats[key] for key in HASHES)


def launched(description, words=(), trainer=None):
    """(report, the trainer's JSON object) of one trainer and two loaders under mpirun."""
    path = write_job({**description, "roles": {"trainers": 1}}, "launched")
    program = trainer(path) if trainer else [PENSTOCK, "drain", path, f"--epochs={EPOCHS}"]
    run = subprocess.run([PENSTOCK, "launch", "--run", "--quiet", "--json", path, *words, "-n", "3", "--", *program], capture_output=True,
                         text=True, timeout=300)
    say(run.stderr)
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    report = next((line for line in lines if "ranks" in line and "splits" in line), None)
    return (report, next((line for line in lines if "sum" in line), {})) if run.returncode == 0 else (None, {})


def trainer(path, options):
    """Trains on nothing: takes every batch on its device, adds up the tensors' bytes, and says what it got."""
    import torch

    import penstock
    options = json.loads(options)
    played = None
    if PLAYED and "device" in options:
        from simulated_cuda import Cuda
        played = Cuda()
        played.__enter__()
    total = 0
    with penstock.DataLoader(path, split="train", **options) as train:
        for epoch in range(EPOCHS):
            train.set_epoch(epoch)
            for images, labels in train:
                if played:
                    train._tensors.settle()
                bits = images.contiguous().view(torch.int32)
                total = (total + int(bits.to(torch.int64).sum()) + int(labels.sum())) % (1 << 61)
        stats = train.stats()
    if played:
        played.__exit__(None, None, None)
    print(json.dumps({"sum": total, "device": stats["device"], **{key: stats[key] for key in HASHES}}), flush=True)


def main():
    folder = pictures(sys.argv[1], 32 if PLAYED else 160)
    batch = 8 if PLAYED else 32
    index = index_of(job(folder, PIPELINE))
    memory = {"gpu_memory_mb": 64 if PLAYED else 1024, "chunk_samples": 4}

    def described(loader, indexed=False):
        dataset = {"folder": folder, **({"index": index} if indexed else {})}
        threads = {"threads": 1} if PLAYED else {}
        return job(dataset, PIPELINE, batch, loader={**memory, **threads, **loader})

    _, stats = images_of(described({"executor": "cpu"}), EPOCHS, keep=False)
    wanted = hashes_of(stats)
    emit("CPU, embedded", True, **dict(zip(HASHES, wanted)), images=stats["images"])
    ways = [("GPU", {"executor": "gpu"}), ("both, by speed", {"executor": "gpu", "cpu_fraction": "auto"}),
            ("half and half", {"executor": "gpu", "cpu_fraction": 0.5})]
    ways += [(f"GPU, gpu_entropy: {entropy}", {"executor": "gpu", "gpu_entropy": entropy}) for entropy in ("index", "never")]
    for indexed in (False, True):
        for name, loader in ways:
            _, stats = images_of(described(loader, indexed), EPOCHS, keep=False)
            emit(f"{name}, embedded", hashes_of(stats) == wanted and by_gpus(stats) > 0, index=indexed, by_gpu=by_gpus(stats),
                 images=stats["images"])
    for transport in ("shm", "mpi"):
        for name, loader in (("CPU", {"executor": "cpu"}), *ways[:2]):
            report, _ = launched(described(loader), ["transport=" + transport])
            got = hashes_of(report["splits"]["train"]) if report else None
            emit(f"{name}, two loader processes over {transport}", got == wanted and (name == "CPU" or by_gpus(report) > 0),
                 by_gpu=by_gpus(report) if report else 0, processes=len(gpus_of(report)) if report else 0)

    # From a loader's GPU to the trainer's tensor.
    def delivered(loader, options):
        return launched(described(loader), (), lambda path: [sys.executable, os.path.abspath(__file__), "--trainer", path, json.dumps(options)])
    _, plain = delivered({"executor": "cpu"}, {})
    emit("tensors by the host", all(plain.get(key) == value for key, value in zip(HASHES, wanted)), sum=plain.get("sum"))
    for name, export_mb in (("without gpu_export_mb", 0), ("with gpu_export_mb", 64 if PLAYED else 512)):
        report, got = delivered({"executor": "gpu", "gpu_export_mb": export_mb}, {"device": "cuda:0"})
        device = got.get("device") or {}
        right = got.get("sum") == plain.get("sum") and all(got.get(key) == value for key, value in zip(HASHES, wanted))
        emit(f"tensors on the GPU, {name}", right and (device.get("copied_bytes", 0) > 0) == (export_mb > 0),
             by_gpu=by_gpus(report) if report else 0, copied_bytes=device.get("copied_bytes"), uploaded_bytes=device.get("uploaded_bytes"),
             finishing=device.get("finishing"), exported=[gpu.get("exported") for gpus in (gpus_of(report) if report else [])
                                                        for gpu in gpus["list"]])
    if not PLAYED:
        dlpack(described({"executor": "gpu"}))
    done()


def dlpack(description):
    """A consumer on another stream sees the finished bytes: torch.from_dlpack, and CuPy where it is there."""
    import torch

    import penstock
    wanted, _ = images_of(description)
    with penstock.DataLoader(description, split="train", device="cuda:0") as train:
        train.set_epoch(0)
        right = 0
        for number, batch in enumerate(train):
            other = torch.cuda.Stream()
            with torch.cuda.stream(other):
                taken = torch.from_dlpack(batch[0])
                right += bool(torch.equal(taken.cpu(), wanted[number][0]))
            other.synchronize()
            del batch, taken
    emit("DLPack on another stream: torch", right == len(wanted), batches=len(wanted), right=right)
    try:
        import cupy
    except ImportError:
        say("no CuPy here")
        return
    with penstock.DataLoader(description, split="train", device="cuda:0") as train:
        train.set_epoch(0)
        right = 0
        for number, batch in enumerate(train):
            with cupy.cuda.Stream(non_blocking=True) as other:
                taken = cupy.from_dlpack(batch[0])
                right += bool((cupy.asnumpy(taken) == wanted[number][0].numpy()).all())
                other.synchronize()
    emit("DLPack on another stream: CuPy", right == len(wanted), batches=len(wanted), right=right)


if __name__ == "__main__":
    if sys.argv[1] == "--trainer":
        trainer(sys.argv[2], sys.argv[3])
    else:
        main()
