"""Images that go from a loader's GPU to a trainer's without the host: `loader.gpu_export_mb`, by GPUs that are this CPU and a
torch.cuda that is played (simulated_cuda.py). The bytes, hashes and all, of jobs that go by the host."""

import json
import os
import shutil
import sys
import tempfile
import time
import warnings
from unittest import mock

import torch

import penstock
from jobs import FULL, PENSTOCK, Result, hashes_of, mpirun_words, run_tests, write_job
from leftovers import run
from penstock import transforms as T
from photos import PHOTOS, TRAIN, WORK, digest, raises
from simulated_cuda import Cuda

os.environ["PENSTOCK_GPUS"] = "host"
LAST = [T.ToDtype(torch.float32, scale=True), T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
EACH = 3 * 40 * 56
ON_GPUS = {"loader.executor": "gpu", "loader.gpu_export_mb": 64, "loader.threads": 1, "loader.chunk_samples": 2,
            "loader.gpu_memory_mb": 24}


def job(*pipeline, **more):
    return dict(dataset=penstock.ImageFolder(TRAIN), transform=[*(pipeline or (T.RandomResizedCrop((40, 56)),)), *LAST],
                batch_size=8, shuffle=True, seed=2, **more)


def iterations(epochs=3, **options):
    with penstock.DataLoader(**options) as train:
        got = []
        for _ in range(epochs):
            for batch in train:
                train._tensors.settle()  # what a consumer's stream would wait for
                got.append([*batch, batch.indices, batch.valid])
        return got, train.stats()


MADE_BY_THE_CPU = {}  # once for the pipelines and forms that several tests have


def made_by_the_cpu(**options):
    key = repr(sorted((name, value) for name, value in options.items() if name != "dataset"))
    if key not in MADE_BY_THE_CPU:
        MADE_BY_THE_CPU[key] = iterations(copy=True, **options)
    return MADE_BY_THE_CPU[key]


def compared(overrides=ON_GPUS, **options):
    """As the CPU makes and finishes them; the device's figures, and all."""
    wanted, plain = made_by_the_cpu(**options)
    with Cuda() as cuda:
        got, stats = iterations(device="cuda:0", overrides=overrides, **options)
        assert not cuda.alive() and not cuda.gone_too_early
    assert len(got) == len(wanted) > 20
    for one, other in zip(got, wanted):
        assert all(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)) for a, b in zip(one, other))
    for key in ("order_hash", "pixel_hash", "images"):
        assert stats[key] == plain[key], key
    return stats["device"], stats


def test_in_one_process():
    for more in (dict(), dict(dtype="float16", channels_last=True), dict(dtype="uint8", channels_last=True))[:3 if FULL else 1]:
        device, stats = compared(**job(**more))
        images = stats["images"]
        # What a thread made, or what came before the memory was open, went by the host.
        assert device["copied_bytes"] + device["uploaded_bytes"] == images * EACH
        assert device["copied_bytes"] > images * EACH // 4, device
    device, stats = compared({**ON_GPUS, "loader.gpus": 2}, **job())
    assert device["copied_bytes"] > 0


def test_what_a_stream_has_still_to_read_is_not_given_back():
    """The GPU is behind, as it is: nobody waits for it before the next batch. Memory that goes back is used again at once."""
    wanted, _ = made_by_the_cpu(**job())
    for pinned in (False, True) if FULL else (False,):
        got = []
        with Cuda(), penstock.DataLoader(device="cuda:0", pin_memory=pinned, overrides={**ON_GPUS, "loader.gpu_export_mb": 0.3},
                                         **job()) as train:
            for _ in range(3):
                for images, _labels in train:
                    got.append(images)
                    time.sleep(0.01)
            train._tensors.settle()
            assert train.stats()["device"]["copied_bytes"] > 0
            assert all(torch.equal(one, other[0]) for one, other in zip(got, wanted)), pinned


def test_by_the_host_where_it_is_not_wished_for_or_cannot_be():
    for overrides in ({**ON_GPUS, "loader.gpu_export_mb": 0.01}, {**ON_GPUS, "loader.gpu_export_mb": 0}, {})[:3 if FULL else 1]:
        device, stats = compared(overrides, **job())
        assert device["copied_bytes"] == 0 and device["uploaded_bytes"] == stats["images"] * EACH, overrides
    if FULL:  # Mixing is done by the receiver, in its own memory: by default without loaders' GPUs, in gpu_images_test.
        mixed = job()
        mixed["transform"].append(T.CutMix(num_classes=4))
        device, stats = compared(**mixed)
        assert device["copied_bytes"] == 0 and device["finishing"] == "gpu"
    # A trainer's GPU that does not reach the loaders'.
    open_memory = mock.Mock(side_effect=penstock.errors.RunError("GPU 0 (this CPU) cannot read memory of another GPU"))

    class Apart:
        def __init__(self, gpu):
            self.start, self.wait, self.figures, self.open = gpu.start, gpu.wait, gpu.figures, open_memory

    def meet(images, loader, real=penstock._gpu_images.GpuImages.meet):
        if images._gpu is not None and not isinstance(images._gpu, Apart):
            images._gpu = Apart(images._gpu)
        real(images, loader)

    with mock.patch.object(penstock._gpu_images.GpuImages, "meet", meet), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        device, stats = compared(**job())
    assert device["copied_bytes"] == 0 and open_memory.call_count == 1
    assert sum("by the host" in str(one.message) for one in seen) == 1


def test_a_device_that_fails_says_what_is_lost():
    with Cuda(), penstock.DataLoader(device="cuda:0", overrides=ON_GPUS, **job()) as train:
        for _ in range(2):
            for _ in train:
                pass
        images = train._tensors._images
        assert images.figures()["copied_bytes"] > 0
        real = images._gpu

        class Failing:
            wait, figures, open = real.wait, real.figures, real.open

            def start(self, *args):
                raise penstock.errors.RunError("GPU 0 (this CPU): starting a kernel: gone")

        def until_one_is_elsewhere():
            for _ in range(10):
                for _ in train:
                    images._gpu, images.why = Failing(), ""

        # Loaders are told at once, but have made some before they hear of it: as if they never did.
        with warnings.catch_warnings(), mock.patch.object(images, "meet", lambda loader: None):
            warnings.simplefilter("ignore")
            raises(penstock.errors.RunError, until_one_is_elsewhere, "cuda:0", "gone", "loader.gpu_export_mb=0")
        # They hear of it: what they make from then on goes by the host.
        images.why = "gone"
        steps, lost = iter(train), 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(10):
                try:
                    next(steps)
                except penstock.errors.RunError:
                    lost += 1
        assert lost <= 3, lost
        copied = train.stats()["ranks"][0]["images_on_gpus"]
        for _ in train:
            pass
        assert train.stats()["ranks"][0]["images_on_gpus"] == copied > 0


_PROGRAM = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[3])
import penstock
from photos import digest
from simulated_cuda import Cuda
job, folder, _, how, epochs, last_rank = sys.argv[1:]


def kill_a_loader():
    '''The last rank, once a batch has come with images of its gpu: a brother of a forefather of ours.'''
    pid = os.getpid()
    while True:
        with open(f"/proc/{pid}/stat") as file:
            name, _, rest = file.read().partition("(")[2].rpartition(")")
        if name in ("mpirun", "prterun"):
            break
        pid = int(rest.split()[1])
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        for child in file.read().split():
            with open(f"/proc/{child}/environ", "rb") as environ:
                if b"OMPI_COMM_WORLD_RANK=" + last_rank.encode() in environ.read().split(b"\\0"):
                    os.kill(int(child), signal.SIGKILL)


out, batches = [], 0
with Cuda() as cuda, penstock.DataLoader(job, split="train", device="cuda:0") as train:
    for _ in range(int(epochs)):
        for images, labels in train:
            train._tensors.settle()
            out.append([digest(images), digest(labels)])
            batches += 1
            if how == "kill" and batches == 8 and os.environ["RANK"] == "0":
                device = train.stats()["device"]
                assert device["copied_bytes"] + device["linked_bytes"] > 0
                kill_a_loader()
    assert not cuda.gone_too_early
    device = train.stats()["device"]
    out.append([device["copied_bytes"], device["linked_bytes"]])
with open(os.path.join(folder, os.environ["RANK"]), "w") as file:
    json.dump(out, file)
"""


def embedded(job, trainers, epochs):
    """What each program is given without MPI and GPUs, and the hashes of all of it."""
    batches, hashes = [], []
    for rank in range(trainers):
        with penstock.DataLoader(job, split="train", batch_size=8, num_replicas=trainers, rank=rank) as train:
            batches.append([[digest(images), digest(labels)] for _ in range(epochs) for images, labels in train])
            hashes.append([int(train.stats()[key], 16) for key in ("order_hash", "pixel_hash")])
    return batches, tuple(f"{sum(sums) % 2 ** 128:032x}" for sums in zip(*hashes))


def test_under_mpirun_and_when_a_loader_dies():
    """Two trainers' programs, two loaders. What a loader's GPU had exported before it was killed stays readable. By default one
    program, as each imports torch, and a loader that is killed stands for jobs in which none is."""
    if shutil.which("mpirun") is None:
        return
    made, overrides = {}, [f"{key}={value}" for key, value in ON_GPUS.items()]
    linked = ["transport=mpi", "loader.gpu_links=nccl"]
    ways = [("host", ["loader.gpu_export_mb=0"], 6), ("shm", [], 6), ("kill", [], 6), ("linked", linked, 6), ("mpi", ["transport=mpi"], 3)]
    trainers, share = (2, 1) if FULL else (1, 2)  # a program alone sees twice as many steps in an epoch
    for how, more, epochs in ways if FULL else ways[2:4]:
        epochs //= share
        top = tempfile.mkdtemp(dir=WORK)
        path = write_job(top, PHOTOS, trainers=trainers)
        program = os.path.join(top, "program.py")
        with open(program, "w") as file:
            file.write(_PROGRAM)
        mpirun = mpirun_words(trainers + 2) + (["--enable-recovery"] if how == "kill" else [])  # mpirun would kill all the others
        words = ["run", path, "--json", "--quiet", *overrides, "splits.train.batch_size=8", *more, "--",
                 sys.executable, program, path, top, os.path.dirname(os.path.abspath(__file__)), how, str(epochs),
                 str(trainers + 1)]
        result = Result(run([*mpirun, PENSTOCK, *words], 90))
        assert result.code == 0, result.log
        report = json.loads(result.stdout.strip().splitlines()[-1])
        batches = [json.load(open(os.path.join(top, str(rank)))) for rank in range(trainers)]
        copied, received = (sum(figures) for figures in zip(*(one.pop() for one in batches)))
        receivers = sum(rank.get("images_on_gpus", 0) for rank in report["ranks"])
        exported = [gpu["exported"]["exported_chunks"] for rank in report["ranks"] if rank["role"] == "loader"
                    for gpu in rank["gpus"]["list"] if "exported" in gpu]
        print(f"  {how}: {receivers} images from GPUs, chunks exported {exported}", flush=True)
        if how in ("host", "mpi"):
            assert copied == received == receivers == sum(exported) == 0, (copied, received, receivers, exported)
        else:
            ours, others = (received, copied) if how == "linked" else (copied, received)
            assert ours == receivers * 3 * 64 * 64 > 0 and sum(exported) > 0 and others == 0, (
                copied, received, receivers, exported)
        made[how] = batches, hashes_of(report)
    for how in ("kill", "linked"):
        assert (made[how][0], made[how][1]["train"]) == embedded(path, trainers, 6 // share), how
    if FULL:
        assert made["shm"] == made["host"]
        assert made["kill"] == made["linked"] == made["host"]
        assert [one[:len(other)] for one, other in zip(made["host"][0], made["mpi"][0])] == made["mpi"][0]


run_tests(globals())
