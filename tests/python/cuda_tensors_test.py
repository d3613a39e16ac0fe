"""Tensors on a CUDA device and in page-locked memory, with one: bytes of what is copied and dropped at once. Without a
GPU device_test.py plays torch.cuda."""

import gc
import os
import sys
import threading
from unittest import mock

import torch

import penstock
from jobs import run_tests
from penstock._penstock import why_no_gpu
from photos import JOB, TRAIN

if not torch.cuda.is_available():
    print("SKIP: torch sees no CUDA device")
    sys.exit(77)

GPU = torch.device("cuda:0")
ITERATIONS = 20


def plain():
    with penstock.DataLoader(JOB, split="train", copy=True, batch_size=8) as train:
        return [(batch[0], batch[1]) for batch in train]


def busy(milliseconds):
    """Work on the current stream, so that what follows it is late."""
    torch.cuda._sleep(int(milliseconds * 1_500_000))


def check(got, wanted):
    torch.cuda.synchronize()
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted):
        assert all(torch.equal(a.cpu(), b) for a, b in zip(one, other))


def test_non_blocking_copy_dropped_at_once():
    wanted = plain()
    for more in (dict(), dict(pin_memory=True)):
        with penstock.DataLoader(JOB, split="train", batch_size=8, **more) as train:
            for _ in range(ITERATIONS):
                train.set_epoch(0)
                got = []
                for images, labels in train:
                    busy(2)
                    got.append((images.to(GPU, non_blocking=True), labels.to(GPU, non_blocking=True)))
                    del images, labels
                check(got, wanted)


def test_device_on_a_stream_of_its_own():
    wanted = plain()
    for more in (dict(device=GPU), dict(device="auto"), dict(device=GPU, pin_memory=True)):
        with penstock.DataLoader(JOB, split="train", batch_size=8, **more) as train:
            for epoch in range(ITERATIONS):
                train.set_epoch(0)
                got = []
                # Another current stream every other time: it is the one that waits.
                stream = torch.cuda.Stream(GPU) if epoch % 2 else torch.cuda.current_stream(GPU)
                with torch.cuda.stream(stream):
                    for batch in train:
                        images, labels = batch
                        assert images.device == GPU and labels.device == GPU and batch.indices.device == GPU
                        got.append((images.clone(), labels.clone()))
                        busy(2)
                        images.fill_(-1)  # late, on this CUDA stream; the allocator must not have given it away
                        del images, labels, batch
                check(got, wanted)


def finished_by(who, **more):
    """All batches of two epochs, used late on the current stream, and what the loader says of the device."""
    with mock.patch.dict(os.environ, {} if who == "gpu" else {"PENSTOCK_GPUS": "none"}), \
            penstock.DataLoader(JOB, split="train", batch_size=8, device=GPU, **more) as train:
        got = []
        for _ in range(2):
            for images, labels in train:
                busy(2)
                got.append((images.clone(memory_format=torch.preserve_format), labels.clone()))
                images.fill_(-1)
                del images, labels
        torch.cuda.synchronize()
        assert torch.cuda.current_device() == GPU.index
        return got, train.stats()


def test_images_finished_on_the_gpu_have_the_cpus_bytes():
    for more in (dict(), dict(dtype="float16"), dict(dtype="bfloat16", channels_last=True), dict(channels_last=True),
                 dict(dtype="uint8", channels_last=True), dict(pin_memory=True)):
        wanted, plain_stats = finished_by("cpu", **more)
        got, stats = finished_by("gpu", **more)
        device, images = stats["device"], stats["images"]
        if why_no_gpu():  # a package without the CUDA component
            assert device["finishing"] == "cpu" and device["why"] == why_no_gpu()
            continue
        assert plain_stats["device"]["finishing"] == "cpu" and "PENSTOCK_GPUS=none" in plain_stats["device"]["why"]
        assert device["finishing"] == "gpu" and device["images"] == images and device["why"] == "", device
        assert device["uploaded_bytes"] == images * 3 * 64 * 64 and device["gpu_memory_bytes"] <= 8 << 20
        assert stats["pixel_hash"] == plain_stats["pixel_hash"] and len(got) == len(wanted) > 5
        for one, other in zip(got, wanted):
            assert one[0].dtype == other[0].dtype and one[0].stride() == other[0].stride()
            assert torch.equal(one[0].contiguous().view(torch.uint8), other[0].contiguous().view(torch.uint8))
            assert torch.equal(one[1], other[1])


def test_memory_of_the_gpu_goes_back():
    free = []
    for _ in range(4):
        with penstock.DataLoader(JOB, split="train", batch_size=8, device=GPU) as train:
            for _ in train:
                pass
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free.append(torch.cuda.mem_get_info(GPU)[0])
    assert free[-1] >= free[1] - (1 << 20), free  # the first may load kernels


def test_kept_after_the_loader():
    wanted = plain()
    train = penstock.DataLoader(JOB, split="train", batch_size=8, device=GPU)
    got = [tuple(batch) for batch in train]
    train.close()
    del train
    gc.collect()
    check(got, wanted)
    pinned = penstock.DataLoader(JOB, split="train", batch_size=8, pin_memory=True)
    got = [tuple(batch) for batch in pinned]
    pinned.close()
    assert all(tensor.is_pinned() for batch in got for tensor in batch)
    check(got, wanted)


def test_preprocessor_and_wrap():
    paths = [os.path.join(folder, name) for folder, _, names in sorted(os.walk(TRAIN)) for name in sorted(names)]
    wanted = penstock.Preprocessor(JOB, "train")(paths, index=range(len(paths)), epoch=0)
    for more in (dict(), dict(pin_memory=True)):
        with penstock.Preprocessor(JOB, "train", device=GPU, **more) as preprocess:
            problems = []

            def ask():
                for _ in range(5):
                    if not torch.equal(preprocess(paths, index=range(len(paths)), epoch=0).cpu(), wanted):
                        problems.append(1)

            threads = [threading.Thread(target=ask) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not problems
        batches = [(list(range(begin, begin + 8)), paths[begin:begin + 8], torch.arange(8))
                   for begin in range(0, len(paths), 8)]

        class Batches:
            def __iter__(self):
                for indices, some, labels in batches:
                    yield indices, [open(path, "rb").read() for path in some], labels

        with penstock.wrap(Batches(), JOB, split="train", device="auto", **more) as train:
            got = list(train)
        assert torch.equal(torch.cat([images for images, _ in got]).cpu(), wanted)
        assert all(labels.device == GPU for _, labels in got)


run_tests(globals())
