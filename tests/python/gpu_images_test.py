"""Images that are finished on the trainer's GPU: the CPU's bytes from a quarter of them, by a GPU that is this CPU behind a
torch.cuda that is played (simulated_cuda.py). With a GPU: cuda_tensors_test.py."""

import gc
import json
import os
import shutil
import sys
import tempfile
import warnings
from unittest import mock

import torch

import penstock
from jobs import FULL, run_job, run_tests, write_job
from penstock import transforms as T
from penstock._gpu_images import GpuImages
from photos import WORK, digest, raises
from small_photos import JOB, SMALL, TRAIN
from simulated_cuda import Cuda, gone_too_early

os.environ["PENSTOCK_GPUS"] = "host"
LAST = [T.ToDtype(torch.float32, scale=True), T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]


def folder(*pipeline, **more):
    return dict(dataset=penstock.ImageFolder(TRAIN), transform=[*pipeline, *LAST], batch_size=8, shuffle=True, seed=2, **more)


def iterations(epochs=1, **options):
    """All fields of all batches, copied, and the loader's figures."""
    with penstock.DataLoader(**options) as train:
        got = []
        for _ in range(epochs):
            for batch in train:
                train._tensors.settle()  # what a consumer's stream would wait for: `valid` is computed here and now
                got.append([*batch, batch.indices, batch.valid, batch.substituted])
        return got, train.stats()


def same(one, other):
    assert len(one) == len(other) > 1
    for a, b in zip(one, other):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            if not isinstance(x, torch.Tensor):
                assert x == y
                continue
            assert x.dtype == y.dtype and x.shape == y.shape and x.stride() == y.stride(), (x.dtype, x.stride(), y.stride())
            assert torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))


def compared(epochs=1, **options):
    """With a GPU and without; the GPU's figures."""
    wanted, plain = iterations(epochs, copy=True, **options)
    assert plain["device"] is None
    with Cuda() as cuda:
        got, stats = iterations(epochs, device="cuda:0", **options)
        same(got, wanted)
        gc.collect()  # of exceptions that tests raise again and again, with their frames
        assert not cuda.alive() and not cuda.gone_too_early and cuda.gone
    assert [stats[key] for key in ("order_hash", "pixel_hash", "images")] == [
        plain[key] for key in ("order_hash", "pixel_hash", "images")]
    return stats["device"], stats["images"], cuda


def test_every_dtype_and_layout_has_the_cpus_bytes():
    for channels_last in (False, True):
        for dtype in (None, "float16", torch.bfloat16, "uint8") if FULL else ("float16",) if channels_last else (None,):
            if dtype == "uint8" and not channels_last:
                continue
            device, images, cuda = compared(2, **folder(T.RandomResizedCrop((40, 56)), T.RandomHorizontalFlip()), dtype=dtype,
                                            channels_last=channels_last)
            assert device["name"] == "cuda:0" and device["finishing"] == "gpu" and device["why"] == ""
            assert device["gpu"] == "this CPU" and device["images"] == images == 160 and cuda.finished == 20
            # A byte a value crosses the bus, whatever becomes of it.
            assert device["uploaded_bytes"] == images * 3 * 40 * 56
            assert 0 < device["gpu_memory_bytes"] <= 8 << 20


def test_bytes_as_they_are_need_no_finishing():
    device, _, cuda = compared(**folder(T.CenterCrop(32)), dtype="uint8")
    assert device == {"name": "cuda:0", "finishing": None, "why": ""} and cuda.finished == 0


def test_a_batch_goes_back_behind_the_gpu():
    wanted, _ = iterations(dataset=JOB, split="train", copy=True)
    with Cuda() as cuda, penstock.DataLoader(JOB, split="train", device="cuda:0") as train:
        got = []
        for batch in train:
            images, labels = batch
            got.append((images, labels))
            del batch, images, labels
            gc.collect()
            # Nothing has been read yet, and all of it is there: image, label, indices, valid, substituted.
            assert sum(cuda.reading.values()) == cuda.alive() == 5 and bool((got[-1][0] == 7).all())
            # The consumer's stream has been told to wait for it, and the allocator that it uses the tensors.
            assert cuda.consumer.waited[-1].stream is cuda.streams[0] and not cuda.consumer.waited[-1].query()
            assert [stream for _, stream in cuda.recorded[-5:]] == [cuda.consumer] * 5
            if len(got) == 2:  # the consumer comes to it
                cuda.consumer.waited[-1].synchronize()
                assert torch.equal(got[-1][0], wanted[1][0])
        assert len(cuda.streams) == 1 and not cuda.alive() and not cuda.gone_too_early
        assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(got, wanted))


def test_the_watch_sees_a_batch_that_goes_too_early():
    assert gone_too_early(lambda: penstock.DataLoader(JOB, split="train", device="cuda:0")) == 5


def test_through_page_locked_memory():
    wanted, _ = iterations(dataset=JOB, split="train", copy=True)
    with Cuda() as cuda, penstock.DataLoader(JOB, split="train", device="cuda:0", pin_memory=True) as train:
        got = []
        for images, labels in train:
            assert not cuda.alive()
            got.append((images, labels))
        assert cuda.finished == len(got) == len(wanted)
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(got, wanted))


def test_several_views_and_several_pictures_a_sample():
    device, images, _ = compared(**folder(T.FiveCrop(24)), channels_last=True)
    assert device["finishing"] == "gpu" and device["uploaded_bytes"] == images * 5 * 3 * 24 * 24
    top = tempfile.mkdtemp(dir=WORK)
    for name in ("images", "targets"):
        shutil.copytree(os.path.join(TRAIN, sorted(os.listdir(TRAIN))[0]), os.path.join(top, name))
    pairs = penstock.PairedFolders(os.path.join(top, "images"), os.path.join(top, "targets"))
    device, images, cuda = compared(dataset=pairs, transform=[T.RandomResizedCrop(32), *LAST], batch_size=5, seed=1)
    assert device["uploaded_bytes"] == 2 * images * 3 * 32 * 32 and cuda.finished == 2 * images // 5


def test_cutmix_is_bytes_and_mixup_is_not():
    crop = T.RandomResizedCrop(32)

    def mixed(*last):
        return dict(dataset=penstock.ImageFolder(TRAIN), transform=[crop, *LAST, *last], batch_size=8, shuffle=True)
    device, images, _ = compared(**mixed(T.CutMix(num_classes=4)))
    assert device["finishing"] == "gpu" and device["uploaded_bytes"] == images * 3 * 32 * 32
    for last in (T.MixUp(num_classes=4), T.RandomChoice([T.MixUp(num_classes=4), T.CutMix(num_classes=4)]))[:2 if FULL else 1]:
        device, _, cuda = compared(**mixed(last))
        assert device["finishing"] == "cpu" and "MixUp" in device["why"] and cuda.finished == 0


def test_wrap_and_preprocessor_finish_there_too():
    def pictures(n=40):
        paths = sorted(os.path.join(folder, name) for folder, _, names in os.walk(TRAIN) for name in names)[:n]
        found = []
        for path in paths:
            with open(path, "rb") as file:
                found.append(file.read())
        return found
    encoded = pictures()
    encoded[5] = b"no picture"

    class Batches:
        def __iter__(self):
            for begin in range(0, 40, 8):
                yield list(range(begin, begin + 8)), encoded[begin:begin + 8], torch.arange(begin, begin + 8)

    options = dict(job={"seed": 3, "splits": {"train": {"mode": "train", "dataset": {"folder": TRAIN}, "batch_size": 8, "pipeline": [
        {"RandomResizedCrop": {"size": 32}}, {"ToDtype": {"dtype": "float32", "scale": True}}]}}, "on_error": "substitute"})
    for more in (dict(), dict(dtype="uint8"), dict(dtype="float16"), dict(dtype="bfloat16", channels_last=True))[:4 if FULL else 2]:
        def both(**device):
            with penstock.Preprocessor(**options, **more, **device) as preprocess:
                images, why = preprocess(encoded[:20], index=range(20), epoch=1, errors="status")
                preprocess._tensors.settle()
                facts = preprocess.device
            made = [images, [bool(one) for one in why]]
            eval_options = {**options["job"]["splits"]["train"], "mode": "eval", "pipeline": [
                {"CenterCrop": {"size": 32}}, {"ToDtype": {"dtype": "float32", "scale": True}}]}
            with penstock.wrap(Batches(), {**options["job"], "splits": {"val": eval_options}}, split="val", **more, **device) as val:
                for images, labels in val:
                    val.preprocessor._tensors.settle()
                    made += [images.clone(), labels]
                facts = facts, val.preprocessor.device
            return made, facts
        wanted, none = both()
        assert none == (None, None)
        with Cuda() as cuda:
            got, facts = both(device="cuda:0")
            assert not cuda.alive() and not cuda.gone_too_early
        for one, other in zip(got, wanted):
            if isinstance(one, list):
                assert one == other and sum(one) == 1
            else:
                assert one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other), more
        assert len(got) == len(wanted) == 12
        for images, figures in zip((20, 40), facts):
            if more.get("dtype") == "uint8":
                assert figures["finishing"] is None and "images" not in figures
            else:
                assert figures["finishing"] == "gpu" and figures["why"] == "" and figures["images"] == images
                assert figures["uploaded_bytes"] == images * 3 * 32 * 32


def test_without_a_gpu_the_receiver_finishes():
    with mock.patch.dict(os.environ, PENSTOCK_GPUS="none"):
        device, _, cuda = compared(**folder(T.CenterCrop(32)))
    assert device["finishing"] == "cpu" and "PENSTOCK_GPUS=none" in device["why"] and cuda.finished == 0


def told(seen):
    return [str(one.message) for one in seen if "finished by the CPU" in str(one.message)]


def test_a_gpu_that_fails_before_it_has_a_batch():
    """When it is opened, or in the middle: the CPU finishes, says so once, and the bytes are the same."""
    def short_of_memory(images, source, device, stream, elsewhere, real=GpuImages.start):
        with mock.patch.object(images, "_finisher", mock.Mock(wraps=images._finisher)) as finisher:
            finisher.dtype, finisher.channels_last = "float32", False
            finisher.gpu.side_effect = penstock.errors.RunError("GPU 0 (this CPU): allocating memory: out of memory")
            return real(images, source, device, stream, elsewhere)

    with mock.patch.object(GpuImages, "start", short_of_memory), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        device, _, cuda = compared(**folder(T.CenterCrop(32)))
    assert device["finishing"] == "cpu" and "out of memory" in device["why"] and device["images"] == 0
    assert len(told(seen)) == 1 and "cuda:0" in told(seen)[0]

    calls = []

    class Failing:
        def __init__(self, gpu):
            self.gpu, self.wait, self.figures = gpu, gpu.wait, gpu.figures

        def start(self, *args):
            calls.append(1)
            if len(calls) > 3:
                raise penstock.errors.RunError("GPU 0 (this CPU): starting a kernel: gone")
            self.gpu.start(*args)

    def failing(images, source, device, stream, elsewhere, real=GpuImages.start):
        if images._gpu is not None and not isinstance(images._gpu, Failing):
            images._gpu = Failing(images._gpu)
        return real(images, source, device, stream, elsewhere)

    with mock.patch.object(GpuImages, "start", failing), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        device, images, _ = compared(**folder(T.CenterCrop(32)))
    assert device["finishing"] == "cpu" and "gone" in device["why"] and device["images"] == 4 * 8 < images
    assert len(told(seen)) == 1


def test_a_gpu_that_fails_with_a_batch_is_an_error_by_name():
    """Its images were given already, and nobody knows what stands in them."""
    with Cuda(), penstock.DataLoader(JOB, split="train", device="cuda:0") as train:
        steps = iter(train)
        next(steps)
        gpu = train._tensors._images._gpu
        train._tensors._images._gpu = mock.Mock(
            wait=mock.Mock(side_effect=penstock.errors.RunError("GPU 0 (this CPU) has not finished its work for 10 s")),
            figures=gpu.figures)
        raises(penstock.errors.RunError, lambda: next(steps), "GPU 0", "10 s", "unknown", "checkpoint")
        assert train.stats()["device"]["finishing"] == "cpu"
        gpu.wait()


def test_what_a_gpu_that_hangs_may_still_read_stays():
    """A batch is interrupted between two of its fields, and the GPU does not end the first: nobody waits for ever."""
    with Cuda() as cuda:
        train = penstock.DataLoader(JOB, split="train", device="cuda:0")
        steps = iter(train)
        next(steps)
        tensors = train._tensors
        tensors.settle()
        gpu, real, made = tensors._images._gpu, tensors._start, []
        tensors._images._gpu = mock.Mock(
            wait=mock.Mock(side_effect=penstock.errors.RunError("GPU 0 (this CPU) has not finished its work for 10 s")),
            start=gpu.start, figures=gpu.figures)

        def start(source, raw, kept, elsewhere):
            if not raw:
                raise KeyboardInterrupt
            made.append(real(source, raw, kept, elsewhere))  # torch's allocator keeps to its CUDA stream's order; this one does not
            return made[-1]

        fields = cuda.gone
        with mock.patch.object(tensors, "_start", start), \
                mock.patch.object(tensors._stream, "synchronize", side_effect=AssertionError("this waits for ever")):
            raises(KeyboardInterrupt, lambda: next(steps))
        gc.collect()
        assert len(tensors._lost) == 1 and cuda.alive() == cuda.gone == fields > 1
        train.close()
        assert cuda.alive() == fields and not cuda.gone_too_early and "10 s" in tensors.figures()["why"]
        gpu.wait()


def test_memory_goes_back_with_the_loader():
    with Cuda():
        train = penstock.DataLoader(JOB, split="train", device="cuda:0")
        next(iter(train))
        images = train._tensors._images
        assert images._gpu is not None and images.figures()["uploaded_bytes"] == 16 * 3 * 64 * 64
        train.close()
        assert images._gpu is None and images.figures()["uploaded_bytes"] == 16 * 3 * 64 * 64


def test_moving_a_loader():
    with Cuda(gpus=2) as cuda:
        wanted, _ = iterations(dataset=JOB, split="train", copy=True)
        with penstock.DataLoader(JOB, split="train", device="cuda:0") as train:
            raises(penstock.UsageError, lambda: train._move_to("meta"), "cuda:0", "meta")
            train._move_to("cuda:1")  # still raw, and finished there
            got = [list(batch) for batch in train]
            train._tensors.settle()
            assert train.stats()["device"]["name"] == "cuda:1" and cuda.finished == len(got) == len(wanted)
            assert all(torch.equal(a[0], b[0]) for a, b in zip(got, wanted))
        with penstock.DataLoader(JOB, split="train") as train:
            train._move_to("cuda:1")  # nothing had begun: it is opened once more, raw
            got = [list(batch) for batch in train]
            train._tensors.settle()
            figures = train.stats()["device"]
            assert figures["finishing"] == "gpu" and figures["images"] == train.stats()["images"] > 0
            assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(got, wanted))
        with penstock.DataLoader(JOB, split="train") as train:
            steps = iter(train)
            first = [one.clone() for one in next(steps)]
            train._move_to("cuda:1")
            images, labels = next(steps)
            train._tensors.settle()
            assert torch.equal(images, wanted[1][0]) and torch.equal(first[0], wanted[0][0])
            assert "had begun" in train.stats()["device"]["why"]
        mixing = dict(dataset=penstock.ImageFolder(TRAIN), transform=[T.RandomResizedCrop(32), *LAST, T.MixUp(num_classes=4)])
        with penstock.DataLoader(**mixing, batch_size=8) as train:
            train._move_to("cuda:1")
            assert "MixUp" in train.stats()["device"]["why"]


_PROGRAM = """
import json, os, sys
sys.path.insert(0, sys.argv[3])
import penstock, torch
from photos import digest
from simulated_cuda import Cuda
job, folder, _, device = sys.argv[1:]
out = []
with Cuda() as cuda, penstock.DataLoader(job, split="train", device=device or None, channels_last=True) as train:
    for images, labels in train:
        if device:
            train._tensors.settle()
        out.append([digest(images), digest(labels)])
    assert cuda.finished == (len(out) if device else 0) and not train.embedded
with open(os.path.join(folder, os.environ["RANK"]), "w") as file:
    json.dump(out, file)
"""


def test_under_mpirun_and_in_dumps():
    """Two trainers' programs, each with a GPU, and a loader: bytes, hashes and dumps as without GPUs. By default one such program,
    which imports torch, beside a run without program and this process."""
    if shutil.which("mpirun") is None:
        return
    made, trainers = {}, 2 if FULL else 1
    for device in ("", "cuda:0"):
        top = tempfile.mkdtemp(dir=WORK)
        job = write_job(top, SMALL, trainers=trainers)
        program = os.path.join(top, "program.py")
        with open(program, "w") as file:
            file.write(_PROGRAM)
        dumps = {}
        for raw in (False, True) if FULL else (False,):
            options = [f"--dump={top}/dump{raw}", *(["--raw"] if raw else [])]
            words = [sys.executable, program, job, top, os.path.dirname(os.path.abspath(__file__)), device]
            result = run_job(job, ranks=trainers + 1, options=options, timeout=90, program=words if FULL or device else [])
            assert result.code == 0, result.log
            for name in sorted(os.listdir(f"{top}/dump{raw}/train_e0")):
                with open(f"{top}/dump{raw}/train_e0/{name}", "rb") as file:
                    dumps[raw, name] = file.read() if name.endswith(".npy") else sorted(file.read().splitlines())
        if FULL or device:
            batches = [json.load(open(os.path.join(top, str(rank)))) for rank in range(trainers)]
        else:
            with penstock.DataLoader(job, split="train", channels_last=True) as train:
                batches = [[[digest(images), digest(labels)] for images, labels in train]]
        made[device] = batches, dumps, result.hashes()
    assert len(made[""][0][0]) > 1 and len(made[""][1]) > 10
    assert made[""][0] == made["cuda:0"][0] and made[""][2]["train"] == made["cuda:0"][2]["train"]
    assert made[""][1].keys() == made["cuda:0"][1].keys()
    assert [key for key, value in made[""][1].items() if value != made["cuda:0"][1][key]] == []


run_tests(globals())
