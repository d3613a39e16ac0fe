"""Data sets whose samples are the program's own Python: tensors, numbers, texts in tuples and dicts, as torch's DataLoader takes
them, in worker processes and in this process; and collate_fn."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import enum
import gc
import io
import json
import os
import pickle
import random
import signal
import sqlite3
import sys
import threading
import time
import unittest.mock
import warnings

import numpy
import torch
from PIL import Image
from torch.utils.data import default_collate, get_worker_info

import penstock
from jobs import FULL, run_tests
from penstock import _here
from photos import TRAIN, descendants, raises

warnings.filterwarnings("ignore", message=".*read and transformed in Python.*")
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
Point = collections.namedtuple("Point", "x y")


class Rich(torch.utils.data.Dataset):
    """All kinds of leaves."""

    def __len__(self):
        return 37

    def __getitem__(self, index):
        return {"tensor": torch.full((3, 4), index, dtype=torch.float32), "half": torch.ones(2, dtype=torch.bfloat16) * index,
                "flags": torch.tensor([index % 2 == 0, True]), "array": numpy.arange(index, index + 3),
                "number": index, "share": index / 7, "is": index > 5, "name": f"sample {index}",
                "point": Point(index, float(index)), "list": [index, (torch.tensor(index), "x" * (index % 4))]}


class Uneven(torch.utils.data.Dataset):
    """Boxes, as for detection: another number in each picture."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return torch.full((3, 5 + index % 3, 6), index, dtype=torch.float32), {
            "boxes": torch.zeros(index % 4, 4) + index, "labels": torch.arange(index % 4), "picture": Image.new("RGB", (4, 4), index)}


class Speed(torch.Tensor):
    """A class of the program's own."""


class Colour(enum.IntEnum):
    RED = 1


class Sentence(str):
    pass


def with_note(tensor):
    tensor.note = "a note"
    return tensor


class Rare(torch.utils.data.Dataset):
    """More than their numbers: by one shape, and by shapes of their own."""

    def __init__(self, uneven):
        self.uneven = uneven

    def __len__(self):
        return 17

    def __getitem__(self, index):
        n = 2 + index * self.uneven
        pairs = numpy.array([(index, 2.5)] * n, dtype=[("a", "i4"), ("b", ">f8")])
        complexes = torch.full((n,), index + 2j)
        return {"speed": torch.full((n,), float(index)).as_subclass(Speed), "note": with_note(torch.ones(n)),
                "parameter": torch.nn.Parameter(torch.ones(n) * index), "grad": torch.full((n,), float(index), requires_grad=True),
                "coo": torch.eye(n).mul(index).to_sparse(), "csr": torch.eye(n).mul(index + 1).to_sparse_csr(),
                "conjugate": complexes.conj(), "negative": complexes.conj().imag,
                "quantized": torch.quantize_per_tensor(torch.ones(n) * index, 0.1, 0, torch.quint8),
                "big": numpy.arange(n).astype(">f4"), "pairs": pairs, "record": pairs.view(numpy.recarray), "pair": pairs[0],
                "objects": numpy.array([index, "x", None] * n, dtype=object), "u2": numpy.full(n, index, "u2"),
                "dates": numpy.array(["2020-01-01"] * n, dtype="M8[D]"), "fortran": numpy.asfortranarray(numpy.ones((n, 3))),
                "float64": numpy.float64(index), "text": numpy.str_(index), "flag": numpy.bool_(index % 2), "colour": Colour.RED,
                "sentence": Sentence(index), "size": torch.ones(n).shape, "plain": "K:1" if index % 2 else "E:1", "bytes": b"K:%d" % index}


class Drawing(torch.utils.data.Dataset):
    """Draws from every global generator."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return index, random.random(), float(numpy.random.random()), torch.rand(3)


def same(a, b):
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if hasattr(a, "_fields"):
        return type(a) is type(b) and all(map(same, a, b))
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        if type(a) is not type(b) or vars(a) != vars(b) or (a.dtype, a.layout, a.requires_grad) != (b.dtype, b.layout, b.requires_grad):
            return False
        return torch.equal(*(one.dequantize() if one.is_quantized else one.to_dense() if one.layout != torch.strided else one
                             for one in (a, b)))
    if isinstance(a, numpy.ndarray):
        return type(a) is type(b) and a.dtype == b.dtype and a.flags.f_contiguous == b.flags.f_contiguous and numpy.array_equal(a, b)
    return type(a) is type(b) and a == b


def same_as_torchs(dataset, workers, **options):
    compared = 0
    theirs = torch.utils.data.DataLoader(dataset, 8, **options)
    with penstock.DataLoader(dataset, 8, num_workers=workers, **options) as ours:
        assert len(ours) == len(theirs)
        for mine, wanted in zip(ours, theirs):
            assert same(mine, wanted), (mine, wanted)
            compared += 1
    assert compared == len(theirs) > 2


def test_samples_are_collated_as_torch_does():
    # Workers take their time to start: most of it in this process.
    for workers in (0, 2) if FULL else (0,):
        same_as_torchs(Rich(), workers, drop_last=True)
        same_as_torchs(Rich(), workers, collate_fn=list)
        same_as_torchs(Uneven(), workers, collate_fn=list)
    same_as_torchs(Rich(), 0)
    same_as_torchs(Rich(), 1)
    same_as_torchs(Uneven(), 1, collate_fn=lambda samples: tuple(zip(*samples)))  # never pickled
    with penstock.DataLoader(Rich(), 8) as loader:
        batch = next(iter(loader))
        assert batch.indices.tolist() == list(range(8)) and batch["tensor"].shape == (8, 3, 4)


def test_what_is_more_than_its_numbers_comes_as_it_was():
    for uneven, workers in ((False, 1), (True, 0), (False, 0), (True, 1)) if FULL else ((False, 1), (True, 0)):
        same_as_torchs(Rare(uneven), workers, collate_fn=list)

    class Speeds(Numbered):
        def __getitem__(self, index):
            return Rare(False)[index]["speed"]

    same_as_torchs(Speeds(), 0)  # torch's own stack makes a Speed of them


def digest(loader):
    return [[(value.tolist() if hasattr(value, "tolist") else value) for value in batch] for batch in loader]


def test_draws_follow_from_the_sample_wherever_it_is_made():
    streams = []
    for workers in (0, 1, 3) if FULL else (0, 1):
        with penstock.DataLoader(Drawing(), 8, True, num_workers=workers, seed=5) as loader:
            streams.append([digest(loader), digest(loader)])
    assert all(stream == streams[0] for stream in streams) and streams[0][0] != streams[0][1]
    by_sample = {index: row for batch in streams[0][0] for index, *row in zip(*batch)}
    with penstock.DataLoader(Drawing(), 5, sampler=[7, 3, 11], seed=5, num_workers=0) as loader:
        (batch,) = digest(loader)
    assert {index: row for index, *row in zip(*batch)} == {index: by_sample[index] for index in (7, 3, 11)}


def test_the_programs_generators_stay_as_they_were():
    def state():
        return random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with penstock.DataLoader(Drawing(), 8, num_workers=0, collate_fn=lambda samples: (torch.rand(1), random.random())) as loader:
        torch.rand(1)
        before = state()
        first = [(float(a), b) for a, b in loader]
        assert state() == before and len(set(first)) == 3
    with penstock.DataLoader(Drawing(), 8, num_workers=1, collate_fn=lambda samples: (torch.rand(1), random.random())) as loader:
        assert [(float(a), b) for a, b in loader] == first


class Here(torch.utils.data.Dataset):
    """Cannot be pickled, and changes."""

    def __init__(self):
        self.lock = open(os.devnull)
        self.made = 0
        self.shift = 0

    def __len__(self):
        return 12

    def __getitem__(self, index):
        self.made += 1
        return index + self.shift, os.getpid()


def test_without_workers_it_runs_in_this_process():
    dataset = Here()
    with penstock.DataLoader(dataset, 4) as loader:
        for shift in (0, 100):
            dataset.shift = shift
            numbers, pids = map(torch.cat, zip(*loader))
            assert numbers.tolist() == list(range(shift, shift + 12)) and set(pids.tolist()) == {os.getpid()}
        assert dataset.made >= 24
    raises(TypeError, lambda: penstock.DataLoader(Here(), 4, num_workers=2), "Here", "cannot be pickled", "lock")


class OfThisThread(torch.utils.data.Dataset):
    """Whose connection may be used by the thread that made it alone, and that draws from a generator of its own."""

    def __init__(self, size=40):
        self.size = size
        self.database = sqlite3.connect(":memory:")
        self.database.execute("create table numbers as select 3 as factor")
        self.rng = numpy.random.default_rng(7)
        self.made = []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        (factor,), = self.database.execute("select factor from numbers")
        self.made.append((index, threading.get_ident(), torch.is_grad_enabled()))
        return index * factor, self.rng.random()


def test_without_workers_it_runs_in_the_thread_that_waits_and_in_order():
    for options in (dict(), dict(sampler=list(range(39, -1, -1))), dict(shuffle=True, seed=3)):
        draws = []
        for _ in range(2):
            dataset = OfThisThread()
            with penstock.DataLoader(dataset, 8, **options) as loader, torch.no_grad():
                dataset.made.clear()  # to see what samples are
                batches = []
                for batch in loader:
                    batches.append(batch)
                    assert len(dataset.made) == 8 * len(batches), "ahead of the program"
            wanted = torch.cat([batch.indices for batch in batches]).tolist()
            assert dataset.made == [(index, threading.get_ident(), False) for index in wanted]
            draws.append(torch.cat([drawn for _, drawn in batches]).tolist())
        assert draws[0] == draws[1] and len(set(draws[0])) == 40


class Slow(torch.utils.data.Dataset):
    """`slow` seconds a sample, and `length` seconds for each len() but the first."""

    def __init__(self, slow=0.0, length=0.0):
        self.slow, self.length, self.asked = slow, length, 0

    def __len__(self):
        self.asked += 1
        time.sleep(self.length if self.asked > 1 else 0)
        return 64

    def __getitem__(self, index):
        time.sleep(self.slow)
        return index


class Forking(Slow):
    def __getitem__(self, index):
        child = os.fork()
        if child == 0:
            os._exit(3)
        assert os.waitpid(child, 0)[1] == 3 << 8
        return index


class Nesting(Slow):
    def __getitem__(self, index):
        with penstock.DataLoader(Slow(), 32) as inside:
            return index + sum(len(batch) for batch in inside)


def held():
    gc.collect()
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def test_without_workers_ctrl_c_comes_at_once_and_loses_nothing():
    def interrupted(call, after):
        later = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
        later.start()
        begun = time.monotonic()
        raises(KeyboardInterrupt, call)
        later.join()
        return time.monotonic() - begun
    before = held()
    assert interrupted(lambda: penstock.DataLoader(Slow(length=3), 4), 0.3) < 2.5
    until = time.monotonic() + 10
    while held() != before and time.monotonic() < until:
        time.sleep(0.05)
    assert held() == before
    with penstock.DataLoader(Slow(0.02), 16) as loader:
        steps = iter(loader)
        for _ in range(2):
            interrupted(lambda: next(steps), 0.1)
        assert torch.cat(list(steps)).tolist() == list(range(64))


def test_without_workers_samples_may_fork_and_have_loaders_of_their_own():
    with penstock.DataLoader(Forking(), 16) as loader:
        assert torch.cat(list(loader)).tolist() == list(range(64))
    with penstock.DataLoader(Nesting(), 4) as loader:
        assert next(iter(loader)).tolist() == [64, 65, 66, 67]
    loader = penstock.DataLoader(Slow(0.05), 32)
    threading.Timer(0.2, loader.close).start()
    raises(penstock.UsageError, lambda: next(iter(loader)), "was closed while a batch")


def test_without_workers_nothing_is_waited_for_in_vain():
    """Behind a break, and behind samples that cannot be used, the library asks for more than a batch has."""
    begun = time.monotonic()
    with penstock.DataLoader(Slow(), 16) as loader:
        for _ in range(20):
            next(iter(loader))
    with penstock.DataLoader(Broken(range(0, 20, 2), 20), 4, on_error="substitute", bad_samples__max_count=100) as loader:
        assert len(list(loader)) == 5
    assert time.monotonic() - begun < 20 * _here.FURTHER_MS / 1000


def test_threads_with_loaders_of_their_own_do_not_seed_each_other():
    alone = digest(penstock.DataLoader(Drawing(), 4, seed=3))
    found = []
    def epoch():
        for _ in range(3):
            with penstock.DataLoader(Drawing(), 4, seed=3) as loader:
                found.append(digest(loader))
    threads = [threading.Thread(target=epoch) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == [alone] * 9
    # One loader for several threads: each has an iteration of its own.
    with penstock.DataLoader(Numbered(), 4) as loader:
        found.clear()
        threads = [threading.Thread(target=lambda: found.append([index for batch in loader for index in batch[0].tolist()])) for _ in range(3)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert found == [list(range(len(Numbered())))] * 3, found


def test_a_sample_that_asks_for_its_own_batch_is_an_error():
    class Circular(Numbered):
        loader = None

        def __getitem__(self, index):
            return super().__getitem__(index) if self.loader is None else next(iter(self.loader))
    dataset = Circular()
    with penstock.DataLoader(dataset, 4) as loader:
        dataset.loader = loader
        raises(penstock.UsageError, lambda: next(iter(loader)), "a sample asks for a batch of the loader that it is made for")


def test_without_workers_objects_are_the_programs_own():
    weight, thing, lock = torch.nn.Parameter(torch.ones(2)), object(), threading.Lock()
    class Referring(Slow):
        def __getitem__(self, index):
            return {"thing": thing, "lock": lock, "weighted": weight * index, "boxes": collections.defaultdict(list, {"a": index})}
    with penstock.DataLoader(Referring(), 4, collate_fn=list) as loader:
        for samples in loader:
            assert all(one["thing"] is thing and one["lock"] is lock and one["boxes"]["none"] == [] for one in samples)
        sum(one["weighted"].sum() for one in samples).backward()
    assert weight.grad.tolist() == [60 + 61 + 62 + 63] * 2
    with penstock.DataLoader([weight * number for number in range(8)], 4) as loader:
        weight.grad = None
        for batch in loader:
            batch.sum().backward()
    assert weight.grad.tolist() == [28, 28]


def test_threads_may_share_an_iteration():
    for workers in (0, 1):
        with penstock.DataLoader(Slow(), 2, num_workers=workers) as loader:
            steps, found = iter(loader), []
            threads = [threading.Thread(target=lambda: found.extend(batch.tolist() for batch in steps)) for _ in range(3)]
            for one in threads:
                one.start()
            for one in threads:
                one.join()
        assert sorted(found) == [[number, number + 1] for number in range(0, 64, 2)]


def test_interrupts_at_any_moment_lose_nothing():
    """As of a program that limits times by SIGALRM."""
    class Alarm(BaseException):
        pass
    def alarmed(*_):
        raise Alarm
    before = signal.signal(signal.SIGALRM, alarmed)
    draw = random.Random(4)
    with penstock.DataLoader([torch.full((8,), float(number)) for number in range(2000)], 4) as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a connection that was cut is told as a worker that ended
        steps, found, interrupts = iter(loader), [], 0
        try:
            while True:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 5e-5 + draw.random() * 5e-4)
                    batch = next(steps, None)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Alarm:
                    interrupts += 1
                    batch = next(steps, None)
                if batch is None:
                    break
                found.append(batch[:, 0].tolist())
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    # What is interrupted behind the library, between its batch and the program, may be lost to it, as under torch.
    assert interrupts > 50 and all(one == [one[0] + place for place in range(4)] for one in found)
    assert [one[0] for one in found] == sorted(one[0] for one in found) and len(found) > 250, (len(found), interrupts)


def test_an_error_keeps_nothing_of_its_loader():
    before = held()
    gc.disable()
    try:
        loader = penstock.DataLoader(Broken(set(range(20)) - {5}, 20), 4)  # which does not keep what it raises
        try:
            list(loader)
        except ValueError:
            pass
        del loader
        until = time.monotonic() + 5  # the thread of the last call ends behind it
        while len(os.listdir("/proc/self/task")) > before[0] and time.monotonic() < until:
            time.sleep(0.02)
        assert len(os.listdir("/proc/self/task")) == before[0]
    finally:
        gc.enable()


def test_warnings_that_are_errors_lose_no_batch():
    with penstock.DataLoader(Slow(), 16) as loader:
        steps = iter(loader)
        next(steps)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            def said(call):
                call.warnings.append("a word of the library's")
                return steps._loader._given.here.run(call, 16)
            with unittest.mock.patch("penstock.data_loader._with_warnings", lambda call, run, old=penstock.data_loader._with_warnings: old(call, said)):
                raises(RuntimeWarning, lambda: next(steps), "a word")
        assert [batch[0].item() for batch in steps] == [16, 32, 48]


def test_parts_of_iterations_that_were_broken_off_are_dropped():
    with penstock.DataLoader(Outliers(), 4, collate_fn=list) as loader:
        for _ in range(5):
            for _, batch in zip(range(3), loader):
                pass
        parts = loader._given.here.dataset.large._here
        assert len(parts) <= 4, len(parts)  # of what was under way, a batch at most


def test_a_sample_may_wait_for_another_threads():
    inner = penstock.DataLoader(Slow(), 4)
    with concurrent.futures.ThreadPoolExecutor(1) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        class Waiting(Slow):
            def __getitem__(self, index):
                return index + int(pool.submit(lambda: next(iter(inner))[0]).result())
        with unittest.mock.patch.object(_here, "ANOTHERS_SAMPLE_S", 0.3), penstock.DataLoader(Waiting(), 2) as outer:
            assert torch.cat(list(outer)).tolist() == list(range(64))
    inner.close()
    _here._in_child()  # as before


def test_samples_without_parts():
    boxes = [[] if index != 7 else [index] for index in range(40)]
    for samples in ([{}] * 8, [([], {})] * 8, boxes):
        for workers in (0, 1):
            with penstock.DataLoader(samples, 4, collate_fn=list, num_workers=workers) as loader:
                assert [one for batch in loader for one in batch] == samples
    with penstock.DataLoader([{}] * 8, 4) as loader:
        assert list(loader) == list(torch.utils.data.DataLoader([{}] * 8, 4))


def test_what_else_samples_may_be():
    name = os.fsdecode(b"caf\xe9.jpg")
    for workers in (0, 1):
        with penstock.DataLoader([(number, name, numpy.array(number)) for number in range(4)], 4, collate_fn=list, num_workers=workers) as loader:
            samples = next(iter(loader))
            assert [one for _, one, _ in samples] == [name] * 4
            assert all(type(one) is numpy.ndarray and one.shape == () and int(one) == number for number, _, one in samples)
    dataset = Slow()
    dataset.version, dataset.classes = lambda what: 1, [name]  # mean something else than penstock's
    with penstock.DataLoader(dataset, 32) as loader:
        assert len(list(loader)) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = penstock.DataLoader(Slow(), 32)
        list(loader)
        del loader
        gc.collect()  # no socket is left to it


def test_without_workers_classes_may_be_defined_inside_functions():
    @dataclasses.dataclass
    class Boxes:
        count: int

    class Local:
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return Boxes(index), Boxes

    with penstock.DataLoader(Local(), 3, collate_fn=list) as loader:
        for _ in range(2):
            samples = sum(map(list, loader), [])
            assert [boxes for boxes, _ in samples] == [Boxes(index) for index in range(6)]
            assert all(kind is Boxes for _, kind in samples)
    raises(TypeError, lambda: penstock.DataLoader(Local(), 3, collate_fn=list, num_workers=1), "Local", "num_workers=0")


class Raising(torch.utils.data.Dataset):
    """Of 12 samples one raises what it is told to, `times` times."""

    def __init__(self, error, times=1000, at=5):
        self.error, self.times, self.at = error, times, at

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == self.at and self.times > 0:
            self.times -= 1
            raise self.error
        return torch.tensor(index)


class Failing(Raising):
    def __init__(self, at):
        super().__init__(KeyError("no such page"), at=at)


class Growing(Failing):
    def __getitem__(self, index):
        return torch.zeros(2 if index != self.at else 5)


def test_any_number_of_batches_may_be_kept():
    for workers in (0, 1) if FULL else (0,):
        with penstock.DataLoader(Rich(), 3, num_workers=workers) as loader:
            kept = list(loader)
    assert len(kept) == 13
    assert torch.cat([batch["number"] for batch in kept]).tolist() == list(range(37))
    assert torch.cat([batch.indices for batch in kept]).tolist() == list(range(37))


def test_what_fails_is_named():
    for workers in (0, 1) if FULL else (0,):
        with penstock.DataLoader(Failing(5), 4, num_workers=workers) as loader:
            raises(penstock.DatasetError, lambda: list(loader), "Failing[5]", "KeyError", "no such page", "own_samples_test.py")
        with penstock.DataLoader(Growing(5), 4, num_workers=workers) as loader:
            error = raises(penstock.DatasetError, lambda: list(loader), "samples [5] are not like", "stack expects each tensor to be equal size")
            assert isinstance(error, RuntimeError)
        with penstock.DataLoader(Failing(-1), 4, num_workers=workers, collate_fn=lambda samples: 1 // 0) as loader:
            raises(ZeroDivisionError, lambda: list(loader))


class Odd(torch.utils.data.Dataset):
    """Of 40 samples number 13 and 26 are not like the others, which alone are looked at."""

    usual = {"picture": torch.ones(3, 4), "label": 1}

    def __init__(self, odd):
        self.odd = odd

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return self.odd if index in (13, 26) else self.usual


def test_samples_that_are_not_like_the_others():
    def same_batches(dataset, collate_fn=None, workers=0):
        theirs = torch.utils.data.DataLoader(dataset, 8, collate_fn=collate_fn)
        with penstock.DataLoader(dataset, 8, collate_fn=collate_fn, num_workers=workers) as ours:
            mine, wanted = iter(ours), iter(theirs)
            for _ in range(len(theirs)):
                try:
                    batch = next(wanted)
                except Exception as error:
                    found = raises(type(error), lambda: next(mine))
                    assert str(error).strip("'") in str(found), (error, found)
                else:
                    found = next(mine)
                    assert same(found, batch), (found, batch)
            assert next(mine, "the end") == "the end"
    picture = torch.ones(3, 4)
    odd = [None, {"picture": picture, "label": 0.5}, {"label": 2, "picture": picture}, {"picture": picture, "label": 1, "more": 3},
           {"picture": picture}, {"picture": picture.double(), "label": 1}, {"picture": picture[:2], "label": 1}, (picture, 1), picture]
    for one in odd:
        for collate_fn in (None, list, lambda samples: default_collate([one for one in samples if one is not None])):
            same_batches(Odd(one), collate_fn)
    for one in odd if FULL else odd[:1]:
        same_batches(Odd(one), list, 1)
    assert all(type(one["picture"]) is torch.Tensor for one in penstock.DataLoader(Odd(None), 8, sampler=[0, 1, 2, 13], collate_fn=list).__iter__()
               .__next__() if one)
    # Also where they are among those looked at, and where one leaf alone has two kinds.
    class None5(Odd):
        def __getitem__(self, index):
            return None if index == 0 else (picture, None if index == 39 else index)
    same_batches(None5(None), list)
    with penstock.DataLoader(None5(None), 8, collate_fn=list) as loader:
        assert all(type(one[0]) is torch.Tensor for batch in loader for one in batch if one)


def test_behind_an_error_the_next_batch_comes():
    for workers in (0, 1):
        with penstock.DataLoader(Failing(5), 4, num_workers=workers) as loader:
            steps, found = iter(loader), []
            while True:
                try:
                    found.append(next(steps).tolist())
                except StopIteration:
                    break
                except KeyError:
                    found.append("error")
            assert found == [[0, 1, 2, 3], "error", [8, 9, 10, 11]], found
            assert loader.state_dict()["epoch"] == 1
        with penstock.DataLoader(Failing(11), 4, num_workers=workers) as loader:
            steps = iter(loader)
            next(steps), next(steps)
            raises(KeyError, lambda: next(steps), "index 11")
            assert next(steps, None) is None and next(steps, None) is None


class NoPage(LookupError):
    """Wants more than a text."""

    def __init__(self, book, page):
        super().__init__(book, page)
        self.page = page


def first_error(dataset, **options):
    """What a loader raises behind the batches that can be made."""
    with penstock.DataLoader(dataset, 4, **options) as loader:
        steps, given = iter(loader), 0
        try:
            for batch in steps:
                given += 1
                assert batch.tolist() == list(range(4 * given - 4, 4 * given))
        except BaseException as error:
            assert given == 1, (given, error)
            if isinstance(error, Exception):  # it comes with its batch, and the next one follows
                assert next(steps).tolist() == [8, 9, 10, 11] and list(steps) == []
            else:                             # the program was interrupted: the sample is made again
                assert raises(BaseException, lambda: next(steps)) is error
            return error
    raise AssertionError("no error")


def test_an_error_is_of_its_own_class_as_well():
    own = [KeyError("no such page"), ValueError(), FileNotFoundError(2, "No such file", "x.jpg"), PermissionError(13, "No"), OSError("cut"),
           ImportError("no module", name="m"), NoPage("book", 7), AssertionError(), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")]
    for raised in own:
        begun = time.monotonic()
        error = first_error(Raising(raised))
        assert isinstance(error, type(raised)) and isinstance(error, penstock.DatasetError) and error.__cause__ is raised
        assert error.args == raised.args and "Raising[5]" in str(error) and "index 5" in str(error), error
        assert time.monotonic() - begun < 10  # such do not pass, and are not tried again
        assert isinstance(pickle.loads(pickle.dumps(error)), penstock.DatasetError)
    assert first_error(Raising(own[2])).filename == "x.jpg" and first_error(Raising(own[6])).page == 7
    for raised in own if FULL else (own[2], own[6], own[8]):
        begun = time.monotonic()
        error = first_error(Raising(raised), num_workers=1)
        assert isinstance(error, type(raised) if raised is not own[8] else UnicodeError), type(error).__mro__
        assert isinstance(error, penstock.DatasetError) and "Raising[5]" in str(error) and time.monotonic() - begun < 10
        assert "Original traceback" in str(error) and ", in __getitem__" in str(error) and "_worker.py" not in str(error), str(error)


def test_no_class_is_imported_for_an_error():
    """What a message names is looked up in modules that are there."""
    from penstock import errors
    def classes(names):
        text = f"sample 1: X: y\nOriginal traceback (most recent call last), of {names}:\n  File x"
        return type(errors.make(4, text, "")).__mro__
    assert ValueError in classes("no.such:Class, builtins:ValueError") and KeyError in classes("builtins:KeyError, builtins:LookupError")
    assert NoPage in classes("__mp_main__:NoPage, builtins:LookupError")
    for names in ("builtins:SystemExit", "builtins:KeyboardInterrupt", "builtins:StopIteration", "builtins:print", "os:path", "SystemExit",
                  "antigravity:Error", "builtins:ValueError.real", "builtins:", ""):
        assert classes(names)[0] is penstock.DatasetError, names
    assert "antigravity" not in sys.modules


def test_what_may_pass_is_tried_again():
    for error in (OSError(5, "the disk fails"), TimeoutError("slow"), MemoryError()):
        with penstock.DataLoader(Raising(error, times=2), 4, balancer__retry_s=20) as loader:
            assert torch.cat(list(loader)).tolist() == list(range(12)), error
    with penstock.DataLoader(Raising(OSError(5, "the disk fails")), 4, balancer__retry_s=0) as loader:
        error = raises(OSError, lambda: list(loader), "sample 5", "the disk fails")
    assert isinstance(error, penstock.Error) and error.__cause__.errno == error.errno == 5


def test_an_exit_is_an_exit():
    for raised in (SystemExit(3), KeyboardInterrupt("now"), GeneratorExit()):
        assert first_error(Raising(raised)) is raised and raised.__cause__ is None
    # As with torch's workers a RuntimeError, which says what happened.
    for raised in (SystemExit(3), KeyboardInterrupt("now")):
        begun = time.monotonic()
        error = first_error(Raising(raised), num_workers=1)
        assert type(error) is penstock.DatasetError and isinstance(error, RuntimeError) and time.monotonic() - begun < 10
        assert "Raising[5]' (index 5)" in str(error) and f"{type(raised).__name__}: {raised}" in str(error)
    # Another sample may stand in for a bad one, and none for an exit.
    for raised in (SystemExit(3), KeyboardInterrupt("now")):
        with penstock.DataLoader(Raising(raised, times=1), 4, on_error="substitute", bad_samples__max_count=5) as loader:
            steps = iter(loader)
            assert next(steps).tolist() == [0, 1, 2, 3]
            assert raises(BaseException, lambda: next(steps)) is raised
            assert [batch.tolist() for batch in steps] == [[4, 5, 6, 7], [8, 9, 10, 11]]
    # It would end the program's loop as if there were no more batches.
    assert type(first_error(Raising(StopIteration()))) is penstock.DatasetError


class Broken(torch.utils.data.Dataset):
    """Only some samples can be made; they differ from the others."""

    def __init__(self, good, size=40):
        self.good, self.size, self.made = set(good), size, []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.made.append(index)
        if index not in self.good:
            raise ValueError(f"sample {index} is torn")
        return torch.full((2 + index // 20,), index), f"name {index}"


def test_samples_that_nobody_asks_for_may_be_broken():
    good = [7, 9, 21, 25]
    for options in (dict(sampler=good), dict(sampler=torch.utils.data.SubsetRandomSampler(good)), dict(batch_sampler=penstock.BatchSampler(good, 1, False)),
                    dict(sampler=torch.utils.data.WeightedRandomSampler([float(one in good) for one in range(40)], 8)), dict(sampler=iter(good))):
        dataset = Broken(good)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="none of the samples that were looked at")  # the last of them is no list
            loader = penstock.DataLoader(dataset, **options)
        with loader:
            names = [name for _, (name,) in loader]
        assert set(names) <= {f"name {one}" for one in good} and names
        if not hasattr(options.get("sampler"), "__next__"):
            assert set(dataset.made) <= set(good), dataset.made
    with penstock.DataLoader(Broken(good), sampler=good, num_workers=1) as loader:
        assert [name for _, (name,) in loader] == [f"name {one}" for one in good]


class Generators(Slow):
    def __getitem__(self, index):
        return (one for one in range(3))


def test_a_broken_sample_fails_when_it_is_asked_for():
    for at in (0, 1, 6, 11):  # all of them are looked at
        with penstock.DataLoader(Raising(KeyError("torn"), at=at), 1) as loader:
            steps = iter(loader)
            assert [next(steps).item() for _ in range(at)] == list(range(at))
            raises(KeyError, lambda: next(steps), f"index {at}")
    # Nothing can be made: the constructor says what it looked at, and the iteration fails.
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loader = penstock.DataLoader(Broken([2]), 2)
    assert [str(one.message) for one in told if "looked at" in str(one.message) and "sample 0: ValueError: sample 0 is torn" in str(one.message)]
    with loader:
        raises(ValueError, lambda: next(iter(loader)), "index 0", "sample 0 is torn")
    # What no sample may have, a generator, is named.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        raises(TypeError, lambda: penstock.DataLoader(Generators(), 2, collate_fn=list, num_workers=1), "sample 0, which was looked at", "pickle")
    with penstock.DataLoader(Generators(), 2, collate_fn=list) as loader:  # no worker has to send it
        assert [list(one) for one in next(iter(loader))] == [[0, 1, 2]] * 2


class Lengthening(torch.utils.data.Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index >= self.size:
            raise IndexError(index)
        return torch.tensor(index)


def test_the_length_is_asked_for_in_each_epoch():
    for make in (torch.utils.data.DataLoader, penstock.DataLoader):
        dataset = Lengthening(10)
        loader = make(dataset, 4)
        for size in (10, 13, 5):
            dataset.size = size
            assert len(loader) == -(-size // 4)
            assert torch.cat(list(loader)).tolist() == list(range(size)), (make, size)
        steps = iter(loader)
        next(steps)
        dataset.size = 7  # behind the beginning of an epoch it is the next one's
        assert torch.cat(list(steps)).tolist() == [4]
        assert torch.cat(list(loader)).tolist() == list(range(7))
        for options in (dict(shuffle=True), dict(sampler=Order(dataset))):
            dataset.size = 6
            loader = make(dataset, 4, **options)
            list(loader)
            dataset.size = 9
            assert sorted(torch.cat(list(loader)).tolist()) == list(range(9)), (make, options)
    state = loader.state_dict()
    with penstock.DataLoader(dataset, 4, sampler=Order(dataset)) as other:
        other.load_state_dict(state)
    loader.load_state_dict(state)
    dataset.size = 0
    assert list(loader) == []


class Order:
    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __iter__(self):
        return iter(range(len(self.dataset)))


class Boxes(torch.utils.data.Dataset):
    """Most pictures have one box; those that are looked at first all do."""

    def __len__(self):
        return 200

    def __getitem__(self, index):
        return torch.zeros(3, 16, 16), torch.full((3 if index in (53, 77) else 1, 4), float(index))


def test_a_collate_fn_gets_small_tensors_of_any_shape():
    for workers in (0, 1) if FULL else (0,):
        with penstock.DataLoader(Boxes(), 20, num_workers=workers, collate_fn=list) as loader:
            samples = [sample for batch in loader for sample in batch]
        assert [len(boxes) for _, boxes in samples] == [len(boxes) for _, boxes in (Boxes()[i] for i in range(200))]
        assert all((boxes == index).all() for index, (_, boxes) in enumerate(samples))


class Outliers(torch.utils.data.Dataset):
    """Those that are looked at when the loader is made are small, and two are not: one of them a megabyte, as a picture may be."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        size = {5: 1_000_000, 13: 300_000}.get(index, 10 + index)
        return torch.full((size,), index, dtype=torch.uint8), numpy.arange(size // 20), Image.new("L", (size // 10 + 1, 10), index)


def kept_parts():
    """Bytes of large parts in this process and its children."""
    total = 0
    for process in ("self", *descendants()):
        numbers = []
        with contextlib.suppress(OSError):  # it may have ended
            numbers = os.listdir(f"/proc/{process}/fd")
        for number in numbers:
            with contextlib.suppress(OSError):
                path = f"/proc/{process}/fd/{number}"
                if os.readlink(path).startswith("/memfd:penstock-large"):
                    total += os.stat(path).st_size
    return total


def test_parts_that_are_much_larger_than_the_others():
    hashes = set()
    for workers in (0, 1):
        same_as_torchs(Outliers(), workers, collate_fn=list)
        with penstock.DataLoader(Outliers(), 4, shuffle=True, collate_fn=list, num_workers=workers, seed=2) as loader:
            for _ in range(3):
                for _, batch in zip(range(3), loader):  # broken off
                    pass
                assert {index: len(sample[0]) for batch in loader for index, sample in zip(batch.indices.tolist(), batch)}[5] == 1_000_000
            assert kept_parts() < 20_000_000  # of what was broken off
            hashes.add(loader.stats()["pixel_hash"])
        del loader, batch  # which keeps the loader's end of the socket
        until = time.monotonic() + 5  # the thread, or the worker, ends behind close()
        while kept_parts() and time.monotonic() < until:
            gc.collect()
            time.sleep(0.05)
        assert kept_parts() == 0, (workers, kept_parts())
    assert len(hashes) == 1, hashes
    with penstock.DataLoader(Outliers(), 8, collate_fn=list, limits__max_field_bytes=1 << 21) as roomy:
        assert [len(sample[0]) for batch in roomy for sample in batch][5] == 1_000_000 and kept_parts() == 0


class Ragged(torch.utils.data.Dataset):
    """Those looked at have one shape; all others are much larger."""

    def __len__(self):
        return 1200

    def __getitem__(self, index):
        return torch.full((4 if index in (0, 1, 600, 1199) else 20_000,), index % 100, dtype=torch.uint8)


def test_nearly_all_samples_may_be_unlike_those_looked_at():
    for workers in (0, 1):
        # More than a thousand large parts ahead of the program, which has 1,024 files open by default.
        with penstock.DataLoader(Ragged(), 300, collate_fn=list, num_workers=workers, prefetch_factor=4) as loader:
            time.sleep(2 * workers)
            assert all(len(one) in (4, 20_000) and int(one[-1]) == index % 100
                       for batch in loader for one, index in zip(batch, batch.indices.tolist()))


def test_room_follows_the_largest_but_for_a_few_huge_ones():
    from penstock._own_samples import Layout, room_for
    layout = Layout.of([b"bytes"])
    assert room_for([10] * 13 + [300_000] * 2, layout, True) == room_for([300_000] * 15, layout, True) == 65536 + 375_000
    assert room_for([10] * 13 + [50_000_000] * 2, layout, True) == room_for([10] * 15, layout, True) == 65576
    assert room_for([50_000_000] * 15, layout, True) == 65536 + (4 << 20)
    assert room_for([10] * 14 + [50_000_000], layout, False) > 50_000_000


class Batched:
    """No Dataset of torch's, and without __getitem__."""

    def __len__(self):
        return 19

    def __getitems__(self, indices):
        return [torch.tensor(index) * 3 for index in indices] * (2 if 7 in indices and len(indices) == 1 else 1)


class Both(torch.utils.data.Dataset):
    def __len__(self):
        return 19

    def __getitem__(self, index):
        raise NotImplementedError

    def __getitems__(self, indices):
        return [(index, f"text {index}") for index in indices]


def test_getitems_gives_the_samples_where_there_is_one():
    for workers in (0, 1) if FULL else (0,):
        with penstock.DataLoader(Both(), 4, num_workers=workers) as loader:
            assert [list(texts) for _, texts in loader] == [[f"text {i}" for i in range(at, min(at + 4, 19))] for at in range(0, 19, 4)]
    with penstock.DataLoader(Batched(), 4, sampler=[2, 3, 5]) as loader:
        assert [batch.tolist() for batch in loader] == [[6, 9, 15]]
    with penstock.DataLoader(Batched(), 4) as loader:
        raises(penstock.DatasetError, lambda: list(loader), "Batched[7]", "__getitems__([7]) gave 2 samples")


def test_a_dict_of_samples_is_a_data_set():
    samples = {index: (torch.full((2,), index), f"text {index}") for index in range(20)}
    for workers in (0, 1):
        same_as_torchs(samples, workers)
    with penstock.DataLoader({1: 2, 2: 3}) as loader:
        raises(KeyError, lambda: list(loader), "dict[0]")
    raises(penstock.ConfigError, lambda: penstock.DataLoader({"first": 1}), "first")


def test_epochs_without_a_batch():
    few = [(torch.tensor(index), f"text {index}") for index in range(3)]
    order = torch.utils.data.DistributedSampler([], 2, 1)
    for dataset, options in (([], {}), (few, {"drop_last": True}), (few, {"shuffle": True, "drop_last": True}), ([], {"sampler": order}),
                             (few, {"sampler": []}), (few, {"sampler": [2], "drop_last": True}), ([], {"num_workers": 1}),
                             (few, {"batch_sampler": penstock.BatchSampler([], 4, False)}),
                             (few, {"num_replicas": 2, "rank": 1, "drop_last": True, "ranks_per_replica": 2}), (few, {"drop_last": True, "collate_fn": list})):
        size = {} if "batch_sampler" in options else {"batch_size": 4}
        with penstock.DataLoader(dataset, **size, **options) as loader:
            assert len(loader) == len(loader.batch_sampler) == 0 and list(loader) == list(loader.batch_sampler) == [], options
            assert loader.num_samples == 0 and loader.dataset is dataset and loader.epoch == 1
            assert loader.batch_size == 4 and "0 batches" in repr(loader) and loader.stats()["batches"] == 0
            state = loader.state_dict()
            loader.load_state_dict(state)
            assert list(loader) == [] and loader.state_dict()["epoch"] == 2, options
    raises(penstock.DatasetError, lambda: penstock.DataLoader([], 4, shuffle=True), "list is empty")  # torch: a ValueError
    with penstock.DataLoader([], 4, sampler=[0]) as loader:
        raises(penstock.DatasetError, lambda: list(loader), "index 0", "empty")
    with penstock.DataLoader(few, 2) as loader:
        raises(penstock.ConfigError, lambda: loader.load_state_dict(state))
        state = loader.state_dict()
    with penstock.DataLoader([], 2) as loader:
        raises(penstock.ConfigError, lambda: loader.load_state_dict(state), "no batch now")


def test_a_data_set_may_become_empty_and_be_filled_again():
    samples = []
    with penstock.DataLoader(samples, 2, drop_last=True) as loader:
        for count in (0, 1, 5, 4, 1, 0, 2):
            samples[:] = [(index, f"text {index}") for index in range(count)]
            assert [batch[0].tolist() for batch in loader] == [[at, at + 1] for at in range(0, count - 1, 2)], count
            assert len(loader) == count // 2


class OneHuge(torch.utils.data.Dataset):
    """The second sample has 20 MB, in each of its parts; others have ten bytes."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        size = 10 if index != 1 else 20_000_000
        return numpy.full(size, index, numpy.uint8), "x" * size, bytes(size)


def test_one_huge_sample_among_the_first_takes_no_room_in_the_others():
    # Chunk buffers for parts of 50 MB each would not fit into loader.memory_gb.
    with penstock.DataLoader(OneHuge(), 16, collate_fn=list) as loader:
        assert json.loads(loader._given.job)["limits"]["max_field_bytes"] < 1 << 17
        samples = [sample for batch in loader for sample in batch]
    assert [len(part) for part in samples[1]] == [20_000_000] * 3
    assert all(len(set(map(len, sample))) == 1 for sample in samples) and len(samples) == 40


def test_values_are_of_torchs_types():
    class Mixed(Numbered):
        def __getitem__(self, index):
            return torch.ones(2), f"text {index}", numpy.int64(index), {"text": f"{index}"}

    with penstock.DataLoader(Mixed(), 4) as ours:
        mine, wanted = next(iter(ours)), next(iter(torch.utils.data.DataLoader(Mixed(), 4)))
    assert type(mine[1]) is type(wanted[1]) is tuple and mine[1] == wanted[1]
    assert type(mine[3]["text"]) is type(wanted[3]["text"]) is list and torch.equal(mine[2], wanted[2])
    with penstock.DataLoader(Mixed(), 4, collate_fn=list) as ours:
        assert {next(iter(ours))[2][2]: "hashable"} == {2: "hashable"}


class Numbered(torch.utils.data.Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        info = get_worker_info()
        return index, -1 if info is None else info.id, -1 if info is None else info.num_workers, int(os.environ.get("STARTED", -1))


def started(number):
    os.environ["STARTED"] = str(10 + number)
    os.environ["SEEDS"] = f"{torch.initial_seed()} {get_worker_info().seed} {random.random()} {numpy.random.random()}"


class Seeds(torch.utils.data.Dataset):
    """What worker_init_fn found."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.01)  # for both workers to have some
        return (get_worker_info().id, os.environ["SEEDS"]) if get_worker_info() else (-1, "")


def slow_start(number):
    time.sleep(1.5)


def test_a_timeout_is_for_batches_and_not_for_the_start_of_workers():
    begun = time.monotonic()
    penstock.DataLoader(Numbered(), 3, num_workers=1, worker_init_fn=slow_start, timeout=1).close()
    assert time.monotonic() - begun > 1.5


def test_workers_know_their_numbers():
    with penstock.DataLoader(Numbered(), 3, num_workers=2, worker_init_fn=started) as loader:
        _, ids, counts, said = map(torch.cat, zip(*loader))
    assert set(ids.tolist()) <= {0, 1} and set(counts.tolist()) == {2} and said.tolist() == [10 + one for one in ids.tolist()]
    with penstock.DataLoader(Numbered(), 3) as loader:
        assert {tuple(row) for batch in loader for row in zip(*(one.tolist() for one in batch[1:]))} == {(-1, -1, -1)}
    found = {}
    for seed in (3, 3, 40):
        with penstock.DataLoader(Seeds(), 8, num_workers=2, worker_init_fn=started, seed=seed) as loader:
            for ids, texts in loader:
                for worker, text in zip(ids.tolist(), texts):
                    assert found.setdefault((seed, worker), text) == text
    assert len(found) >= 3 and len(set(found.values())) == len(found)
    for (seed, worker), text in found.items():
        assert text.split()[:2] == [str(seed + worker)] * 2


class Listing(torch.utils.data.Dataset):
    """As ImageNet's: a long list of paths, which no compression makes short."""

    def __init__(self):
        draw = random.Random(3)
        self.samples = [("%032x" % draw.getrandbits(128), number) for number in range(120_000)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def test_a_large_data_set_reaches_the_workers():
    dataset = Listing()
    with penstock.DataLoader(dataset, 50, num_workers=2, sampler=[0, 119_999, 60_000]) as loader:
        ((names, numbers),) = list(loader)
        state = loader.state_dict()
        assert list(names) == [dataset.samples[number][0] for number in (0, 119_999, 60_000)] and numbers.tolist() == [0, 119_999, 60_000]
    assert len(str(state)) < 100_000
    with penstock.DataLoader(Listing(), 50, num_workers=1, sampler=[0, 119_999, 60_000]) as loader:
        loader.load_state_dict(state)


def test_resuming():
    for workers in (0, 2) if FULL else (0,):
        with penstock.DataLoader(Drawing(), 4, True, num_workers=workers, seed=2) as whole:
            wanted = digest(whole)
        with penstock.DataLoader(Drawing(), 4, True, num_workers=workers, seed=2) as first:
            steps = iter(first)
            got = digest([next(steps), next(steps)])
            state = first.state_dict()
        with penstock.DataLoader(Drawing(), 4, True, num_workers=1 if workers == 0 else 0, seed=2) as second:
            second.load_state_dict(state)
            assert got + digest(second) == wanted


def negative(picture):
    assert isinstance(picture, Image.Image) and picture.size == (32, 32)
    return Image.eval(picture, lambda value: 255 - value)


def test_the_first_steps_are_the_loaders():
    from torch.utils.data import Subset
    from torchvision import transforms as V
    from torchvision.datasets import ImageFolder
    first = [V.RandomResizedCrop(32), V.RandomHorizontalFlip()]
    options = dict(batch_size=16, shuffle=True, seed=4)
    for rows in (range(80), range(20, 60)) if FULL else (range(20, 60),):
        with penstock.DataLoader(Subset(ImageFolder(TRAIN, V.Compose([*first, V.PILToTensor()])), rows), **options) as native:
            wanted = [(255 - images, labels.clone()) for images, labels in native]
        for workers in (0, 1):
            with penstock.DataLoader(Subset(ImageFolder(TRAIN, V.Compose([*first, negative, V.PILToTensor()])), rows),
                                     num_workers=workers, **options) as loader:
                got = [(images.clone(), labels.clone()) for images, labels in loader]
            assert len(got) == len(wanted) > 1
            for (images, labels), (others, numbers) in zip(got, wanted):
                assert torch.equal(images, others) and torch.equal(labels, numbers)
            said = penstock.describe_transforms(loader, file=io.StringIO())
            assert said.count("runs: Python worker, by penstock") == 2 and said.count("runs: Python worker") == 4, said
    # Without a size at its end nothing of it is penstock's.
    with penstock.DataLoader(ImageFolder(TRAIN, V.Compose([V.Resize(40), Image.Image.copy, V.CenterCrop(32), V.PILToTensor()])), 16) as loader:
        said = penstock.describe_transforms(loader, file=io.StringIO())
        assert said.count("runs: Python worker") == 4 and "by penstock" not in said, said


def test_collate_fn_of_pictures_that_loaders_make():
    from penstock import transforms as T
    steps = [T.Resize(40), T.CenterCrop(32), T.ToDtype("float32", scale=True)]
    options = dict(transform=steps, seed=1, tail="torch")
    with penstock.DataLoader(penstock.ImageFolder(TRAIN), 16, **options) as plain, \
            penstock.DataLoader(penstock.ImageFolder(TRAIN), 16, collate_fn=default_collate, **options) as collated, \
            penstock.DataLoader(penstock.ImageFolder(TRAIN), 16, collate_fn=list, batch="dict", **options) as rows:
        compared = 0
        for (images, labels), (others, numbers), samples in zip(plain, collated, rows):
            assert torch.equal(images, others) and torch.equal(labels, numbers)
            assert [int(one["label"]) for one in samples] == labels.tolist() and torch.equal(samples[3]["image"], images[3])
            compared += 1
        assert compared == 5
        assert plain.stats()["pixel_hash"] == collated.stats()["pixel_hash"]


def one_process_that_imports():
    """While a loader is open the process that imports torch for its workers stays, and forks those of other loaders, too. With
    PENSTOCK_FULL=1 nearly every loader has its own."""
    return contextlib.nullcontext() if FULL else penstock.DataLoader(Rich(), 8, num_workers=1)


if __name__ == "__main__":
    with one_process_that_imports():
        run_tests(globals())
