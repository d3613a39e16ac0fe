"""Tensors on a CUDA device and in page-locked memory, without one: torch.cuda as far as penstock uses it, played by
streams whose copies happen when somebody waits for them. A copy reads by address then, so memory that went back too early
would give other bytes; and every batch's memory is watched until it goes. With a card: cuda_tensors_test.py."""

import contextlib
import ctypes
import gc
import os
import sys
import warnings
import weakref
from unittest import mock

import torch
import torch.utils.dlpack

import penstock
from jobs import run_tests
from photos import JOB, TRAIN, raises, tiny_job

if torch.cuda.is_available():
    print("SKIP: torch sees a CUDA device, which cuda_tensors_test uses")
    sys.exit(77)


class Event:
    def __init__(self):
        self.done = False
        self.stream = None

    def record(self, stream):
        self.stream = stream
        stream.work.append(self)

    def query(self):
        return self.done

    def synchronize(self):
        while not self.done:
            self.stream.advance()


class Stream:
    def __init__(self, device=None):
        self.device = device
        self.work = []    # copies and events, oldest first
        self.waited = []  # events that it lets go first

    def wait_event(self, event):
        self.waited.append(event)

    def advance(self):
        one = self.work.pop(0)
        if isinstance(one, Event):
            one.done = True
        else:
            one()


class Cuda:
    """`with Cuda() as cuda:` replaces what penstock needs of torch, and watches every array that it takes of a batch."""

    def __init__(self, cards=1):
        self.cards = cards
        self.consumer = Stream()   # current, until somebody says otherwise
        self.current = self.consumer
        self.streams = []
        self.reading = {}          # by address: copies that have not happened
        self.watched = []          # arrays that were taken of batches, weakly
        self.gone = 0
        self.gone_too_early = 0    # while a copy still read them
        self.recorded = []
        self.pinned = set()

    def alive(self):
        return sum(one() is not None for one in self.watched)

    def __enter__(self):
        real_to = torch.Tensor.to
        real_from_dlpack = torch.utils.dlpack.from_dlpack

        def to(tensor, *args, **more):
            if not (args and isinstance(args[0], torch.device) and args[0].type == "cuda"):
                return real_to(tensor, *args, **more)
            assert more == {"non_blocking": True} and self.current is not self.consumer
            out = torch.full_like(tensor, 7)
            address, into, size = tensor.data_ptr(), out.data_ptr(), tensor.numel() * tensor.element_size()
            self.reading[address] = self.reading.get(address, 0) + 1

            def copy(kept=out):
                ctypes.memmove(into, address, size)
                self.reading[address] -= 1
            self.current.work.append(copy)
            return out

        def from_dlpack(array):
            tensor = real_from_dlpack(array)
            address = tensor.data_ptr()

            def went(_):
                self.gone += 1
                self.gone_too_early += bool(self.reading.get(address))
            self.watched.append(weakref.ref(tensor, went))
            return tensor

        def pin_memory(tensor):
            out = tensor.clone()
            self.pinned.add(out.data_ptr())
            return out

        @contextlib.contextmanager
        def stream(which):
            before, self.current = self.current, which
            yield
            self.current = before

        def make_stream(device=None):
            self.streams.append(Stream(device))
            return self.streams[-1]

        self._patches = [
            mock.patch.object(torch.cuda, "is_available", lambda: True),
            mock.patch.object(torch.cuda, "device_count", lambda: self.cards),
            mock.patch.object(torch.cuda, "Stream", make_stream),
            mock.patch.object(torch.cuda, "Event", Event),
            mock.patch.object(torch.cuda, "stream", stream),
            mock.patch.object(torch.cuda, "current_stream", lambda device=None: self.current),
            mock.patch.object(torch.Tensor, "to", to),
            mock.patch.object(torch.Tensor, "pin_memory", pin_memory),
            mock.patch.object(torch.Tensor, "is_pinned", lambda tensor: tensor.data_ptr() in self.pinned),
            mock.patch.object(torch.Tensor, "record_stream", lambda tensor, s: self.recorded.append((tensor, s))),
            mock.patch.object(torch.utils.dlpack, "from_dlpack", from_dlpack)]
        for one in self._patches:
            one.start()
        return self

    def __exit__(self, *exc):
        for one in self._patches:
            one.stop()


def plain(**more):
    with penstock.DataLoader(JOB, "train", copy=True, batch_size=8, **more) as train:
        return [(batch[0], batch[1], batch.indices) for batch in train]


def test_a_batch_goes_back_behind_its_copy():
    wanted = plain()
    with Cuda() as cuda, penstock.DataLoader(JOB, "train", device="cuda:0", batch_size=8) as train:
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
            train = penstock.DataLoader(JOB, "train", device="cuda:0")
            wanted, steps = next(iter(penstock.DataLoader(JOB, "train", copy=True)))[0], iter(train)
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
    with Cuda(), penstock.DataLoader(JOB, "train", device="cuda:0") as train:
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
    from penstock._tensors import _OnCard

    def careless(self, arrays, of=_OnCard.of):
        out = of(self, arrays)
        self._under_way = (self._under_way[0], None)
        return out

    with Cuda() as cuda, mock.patch.object(_OnCard, "of", careless), \
            penstock.DataLoader(JOB, "train", device="cuda:0") as train:
        next(iter(train))
        gc.collect()
        assert cuda.gone_too_early == 5


def test_page_locked_tensors():
    wanted = plain()
    with Cuda() as cuda, penstock.DataLoader(JOB, "train", pin_memory=True, batch_size=8) as train:
        got = [(*batch, batch.indices) for batch in train]  # all of them: they are torch's memory, not slots
        assert all(tensor.is_pinned() for batch in got for tensor in batch) and not cuda.alive()
    assert len(got) == len(wanted) > 5
    for one, other in zip(got, wanted):
        assert all(torch.equal(a, b) for a, b in zip(one, other))
    # With a device: through page-locked memory, so that the batch itself goes back at once.
    with Cuda() as cuda, penstock.DataLoader(JOB, "train", pin_memory=True, device="cuda", batch_size=8) as train:
        got = []
        for images, labels in train:
            assert not cuda.alive()
            got.append((images, labels))
        assert cuda.streams[0].device == torch.device("cuda")
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(got, wanted)) and len(got) == len(wanted)


def test_auto_takes_the_local_ranks_card():
    with Cuda(cards=4) as cuda, mock.patch.dict(os.environ, LOCAL_RANK="6"):
        with penstock.DataLoader(JOB, "train", device="auto") as train:
            next(iter(train))
        assert cuda.streams[0].device == torch.device("cuda:2")
    with penstock.DataLoader(JOB, "train", device="auto") as train:  # no card: a view of the batch, not a copy
        images, _ = next(iter(train))
        assert images.device.type == "cpu" and not torch.cuda.is_available()


def test_text_stays_text():
    with Cuda(), penstock.DataLoader(tiny_job(), "train", device="cuda:0") as train:
        tensors = train._tensors
        with penstock.DataLoader(tiny_job(), "train") as other:
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


def test_a_card_that_is_not_there():
    for make in (lambda **more: penstock.DataLoader(JOB, "train", **more),
                 lambda **more: penstock.Preprocessor(JOB, "val", **more),
                 lambda **more: penstock.wrap([], JOB, split="val", **more)):
        raises(penstock.UsageError, lambda: make(device="cuda:0"), "cuda:0", "sees no CUDA device", 'device="auto"')
        raises(penstock.UsageError, lambda: make(device=torch.device("cuda", 1)), "sees no CUDA device")
        with Cuda(cards=2):
            raises(penstock.UsageError, lambda: make(device="cuda:2"), "cuda:2", "2 CUDA devices", "LOCAL_RANK")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            make(pin_memory=True)
        assert any("pin_memory" in str(one.message) for one in seen), seen


run_tests(globals())
