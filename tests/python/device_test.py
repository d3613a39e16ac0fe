"""Tensors on a CUDA device and in page-locked memory, without one (simulated_cuda.py): copies that read a batch's memory
late, and memory that goes back behind them. With a GPU: cuda_tensors_test.py; images finished on it: gpu_images_test.py."""

import gc
import os
import warnings
from unittest import mock

import torch

import penstock
from jobs import run_tests
from photos import JOB, TRAIN, raises, tiny_job
from simulated_cuda import Cuda, gone_too_early


def plain(**more):
    with penstock.DataLoader(JOB, split="train", copy=True, batch_size=8, **more) as train:
        return [(batch[0], batch[1], batch.indices) for batch in train]


def test_a_batch_goes_back_behind_its_copy():
    wanted = plain()
    with Cuda() as cuda, penstock.DataLoader(JOB, split="train", device="cuda:0", batch_size=8) as train:
        steps, got = iter(train), []
        for batch in steps:
            images, labels = batch
            got.append((images, labels, batch.indices))
            del batch, images, labels
            gc.collect()
            # Nothing has been copied yet, and all that it reads is there: image, label, indices, valid, substituted.
            assert all(cuda.reading[address] in (0, 1) for address in cuda.reading)
            assert sum(cuda.reading.values()) == cuda.alive() == 5, (cuda.reading, cuda.alive())
            assert bool((got[-1][0] == 7).all())
            # The consumer's stream has been told to wait for this copy, and the allocator that it uses the tensors.
            assert cuda.consumer.waited[-1].stream is cuda.streams[0] and not cuda.consumer.waited[-1].query()
            assert [s for _, s in cuda.recorded[-5:]] == [cuda.consumer] * 5
        assert not cuda.alive() and cuda.gone == 5 * len(wanted) and not cuda.gone_too_early
        assert len(cuda.streams) == 1 and cuda.streams[0].device == torch.device("cuda:0") and len(got) == len(wanted)
        for one, other in zip(got, wanted):
            assert all(torch.equal(a, b) for a, b in zip(one, other))


def test_close_del_and_break_wait_for_the_copy():
    with Cuda() as cuda:
        for how in ("close", "del", "break"):
            train = penstock.DataLoader(JOB, split="train", device="cuda:0")
            wanted, steps = next(iter(penstock.DataLoader(JOB, split="train", copy=True)))[0], iter(train)
            images, _ = next(steps)
            assert cuda.alive()
            if how == "close":
                train.close()
            elif how == "del":
                del steps, train
            else:
                del steps  # what a loop's break does: nobody asks for another batch
                assert not cuda.alive()
                next(iter(train))
                train.close()
            gc.collect()
            assert not cuda.alive() and torch.equal(images, wanted), how
        assert cuda.gone and not cuda.gone_too_early


def test_a_pass_may_end_anywhere():
    """As where the garbage collector finds one while another one's batch is being copied."""
    with Cuda(), penstock.DataLoader(JOB, split="train", device="cuda:0") as train:
        left = iter(train)
        next(left)
        cycle = [left]
        cycle.append(cycle)
        del left, cycle
        steps, to = iter(train), torch.Tensor.to

        def collecting(*args, **more):
            gc.collect()
            return to(*args, **more)

        with mock.patch.object(torch.Tensor, "to", collecting):
            next(steps)


def test_the_watch_sees_a_batch_that_goes_too_early():
    assert gone_too_early(lambda: penstock.DataLoader(JOB, split="train", device="cuda:0")) == 5


def test_page_locked_tensors():
    wanted = plain()
    with Cuda() as cuda, penstock.DataLoader(JOB, split="train", pin_memory=True, batch_size=8) as train:
        got = [(*batch, batch.indices) for batch in train]  # all of them: they are torch's memory, not batch buffers
        assert all(tensor.is_pinned() for batch in got for tensor in batch) and not cuda.alive()
    assert len(got) == len(wanted) > 5
    for one, other in zip(got, wanted):
        assert all(torch.equal(a, b) for a, b in zip(one, other))
    # With a device: through page-locked memory, so that the batch itself goes back at once.
    with Cuda() as cuda, penstock.DataLoader(JOB, split="train", pin_memory=True, device="cuda", batch_size=8) as train:
        got = []
        for images, labels in train:
            assert not cuda.alive()
            got.append((images, labels))
        assert cuda.streams[0].device == torch.device("cuda")
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(got, wanted)) and len(got) == len(wanted)


def test_auto_takes_the_local_ranks_gpu():
    with Cuda(gpus=4) as cuda, mock.patch.dict(os.environ, LOCAL_RANK="6"):
        with penstock.DataLoader(JOB, split="train", device="auto") as train:
            next(iter(train))
        assert cuda.streams[0].device == torch.device("cuda:2")
    with penstock.DataLoader(JOB, split="train", device="auto") as train:  # no GPU: a view of the batch, not a copy
        images, _ = next(iter(train))
        assert images.device.type == "cpu" and not torch.cuda.is_available()


def test_text_stays_text():
    with Cuda(), penstock.DataLoader(tiny_job(), split="train", device="cuda:0") as train:
        tensors = train._tensors
        with penstock.DataLoader(tiny_job(), split="train") as other:
            batch = next(iter(other))
            out = tensors.of([["a", "b"], batch._native["label"], [b"c"]])
        tensors.settle()
        assert out[0] == ["a", "b"] and out[2] == [b"c"] and torch.equal(out[1], batch[1])


def test_wrap_and_preprocessor_do_the_same():
    paths = [os.path.join(folder, name) for folder, _, names in sorted(os.walk(TRAIN)) for name in sorted(names)]
    plain_images = penstock.Preprocessor(JOB, "train")(paths[:4], index=range(4), epoch=0)

    class Batches:
        def __iter__(self):
            for begin in (0, 2):
                images = []
                for path in paths[begin:begin + 2]:
                    with open(path, "rb") as file:
                        images.append(file.read())
                yield [begin, begin + 1], images, torch.tensor([5, 6])

    for more in (dict(device="cuda:0"), dict(device="cuda:0", pin_memory=True), dict(pin_memory=True)):
        with Cuda() as cuda:
            with penstock.Preprocessor(JOB, "train", **more) as preprocess:
                images = preprocess(paths[:4], index=range(4), epoch=0)
            assert torch.equal(images, plain_images) and not cuda.gone_too_early and not cuda.alive(), more
            with penstock.wrap(Batches(), JOB, split="train", **more) as train:
                got = list(train)
            assert torch.equal(torch.cat([images for images, _ in got]), plain_images), more
            assert cuda.gone and not cuda.gone_too_early and not cuda.alive()
            if "device" not in more:
                assert all(images.is_pinned() and labels.is_pinned() for images, labels in got)


def test_a_device_that_torch_does_not_know():
    for device in ("tpu", 1.5):
        raises(penstock.UsageError, lambda: penstock.DataLoader(JOB, split="train", device=device), f"device={device!r}", "auto")


def test_a_gpu_that_is_not_there():
    for make in (lambda **more: penstock.DataLoader(JOB, split="train", **more),
                 lambda **more: penstock.Preprocessor(JOB, "val", **more),
                 lambda **more: penstock.wrap([], JOB, split="val", **more)):
        raises(penstock.UsageError, lambda: make(device="cuda:0"), "cuda:0", "sees no CUDA device", 'device="auto"')
        raises(penstock.UsageError, lambda: make(device=torch.device("cuda", 1)), "sees no CUDA device")
        with Cuda(gpus=2):
            raises(penstock.UsageError, lambda: make(device="cuda:2"), "cuda:2", "2 CUDA devices", "LOCAL_RANK")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            make(pin_memory=True)
        assert any("pin_memory" in str(one.message) for one in seen), seen


run_tests(globals())
