"""num_workers=0: the program's own code makes the samples in the thread that asks for a batch."""

import collections
import concurrent.futures
import dataclasses
import gc
import os
import random
import signal
import sqlite3
import sys
import threading
import time
import types
import unittest.mock
import warnings

import numpy
import torch

import penstock
from jobs import run_tests
from own_data import Boxes, Broken, Drawing, Numbered, Outliers, Slow, digest, one_process_that_imports
from penstock import _generators, _here
from photos import raises

warnings.filterwarnings("ignore", message=".*read and transformed in Python.*")


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


def test_it_runs_in_this_process():
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


def test_it_runs_in_the_thread_that_waits_and_in_order():
    for options in (dict(), dict(sampler=list(range(39, -1, -1))), dict(shuffle=True, seed=3)):
        draws = []
        for _ in range(2):
            dataset = OfThisThread()
            # However late the library puts a batch together, it has all its samples: no more are made for it.
            with penstock.DataLoader(dataset, 8, **options) as loader, torch.no_grad(), \
                    unittest.mock.patch.object(_here, "FURTHER_MS", 60_000):
                dataset.made.clear()  # to see what samples are
                batches = []
                for batch in loader:
                    batches.append(batch)
                    assert len(dataset.made) == 8 * len(batches), "ahead of the program"
            wanted = torch.cat([batch.indices for batch in batches]).tolist()
            assert dataset.made == [(index, threading.get_ident(), False) for index in wanted]
            draws.append(torch.cat([drawn for _, drawn in batches]).tolist())
        assert draws[0] == draws[1] and len(set(draws[0])) == 40


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


class Closing(Slow):
    loader = None

    def __getitem__(self, index):
        if index == 5:
            threading.Thread(target=self.loader.close).start()
        return super().__getitem__(index)


def held():
    gc.collect()
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


class Interrupted(Slow):
    """Ctrl-C comes in the middle of sample `at`, once, or where the length is asked for."""

    def __init__(self, at=None):
        super().__init__(0.002, length=0.0 if at is not None else 30.0)
        self.at = at

    def __len__(self):
        if self.at is None and self.asked:
            os.kill(os.getpid(), signal.SIGINT)
        return super().__len__()

    def __getitem__(self, index):
        if index == self.at:
            self.at = -1
            os.kill(os.getpid(), signal.SIGINT)
        return super().__getitem__(index)


def test_ctrl_c_comes_at_once_and_loses_nothing():
    before = held()
    begun = time.monotonic()
    raises(KeyboardInterrupt, lambda: penstock.DataLoader(Interrupted(), 4))
    assert time.monotonic() - begun < 15
    until = time.monotonic() + 30
    while any(now > then for now, then in zip(held(), before)) and time.monotonic() < until:
        time.sleep(0.05)
    assert all(now <= then for now, then in zip(held(), before)), (held(), before)
    data = Interrupted(100)
    with penstock.DataLoader(data, 16) as loader:
        steps = iter(loader)
        for data.at in (5, 8):
            raises(KeyboardInterrupt, lambda: next(steps))
        assert torch.cat(list(steps)).tolist() == list(range(64))


def test_samples_may_fork_and_have_loaders_of_their_own():
    with penstock.DataLoader(Forking(), 16) as loader:
        assert torch.cat(list(loader)).tolist() == list(range(64))
    with penstock.DataLoader(Nesting(), 4) as loader:
        assert next(iter(loader)).tolist() == [64, 65, 66, 67]
    data = Closing(0.01)
    data.loader = penstock.DataLoader(data, 32)
    raises(penstock.UsageError, lambda: next(iter(data.loader)), "was closed while a batch")


def test_nothing_is_waited_for_in_vain():
    """Behind a break, and behind samples that cannot be used, the library asks for more than a batch has."""
    in_vain = []

    def ready(here, only_the_end_ms, real=_here.Here._ready):
        begun = time.monotonic()
        found = real(here, only_the_end_ms)
        if only_the_end_ms is not None and time.monotonic() - begun >= only_the_end_ms / 1000:
            in_vain.append(only_the_end_ms)
        return found

    with unittest.mock.patch.object(_here.Here, "_ready", ready):
        with penstock.DataLoader(Slow(), 16) as loader:
            for _ in range(20):
                next(iter(loader))
        with penstock.DataLoader(Broken(range(0, 20, 2), 20), 4, on_error="substitute", bad_samples__max_count=100) as loader:
            assert len(list(loader)) == 5
    assert len(in_vain) < 20, in_vain


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


def test_objects_are_the_programs_own():
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


class OwnDraws(Slow):
    """Generators of its own, one of them inside a transform; and how often it was asked."""

    def __init__(self):
        super().__init__()
        self.draws = {"numpy": numpy.random.default_rng(0), "python": [random.Random(1)], "torch": torch.Generator().manual_seed(2)}
        self.transform = types.SimpleNamespace(random=numpy.random.RandomState(3))
        self.dataset = numpy.arange(9)  # whose truth value is an error
        self.system = random.SystemRandom()  # which has no state

    def __getitem__(self, index):
        return (index, self.draws["numpy"].random(), self.draws["python"][0].random(), self.transform.random.rand(),
                torch.rand((), generator=self.draws["torch"]))


def test_a_data_sets_own_generators_draw_as_under_torch():
    wanted = digest(torch.utils.data.DataLoader(OwnDraws(), 8))
    with penstock.DataLoader(OwnDraws(), 8) as loader:
        assert digest(loader) == wanted


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


def test_an_interrupt_at_any_moment_loses_one_batch_at_most():
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
    assert [one[0] for one in found] == sorted(one[0] for one in found) and len(found) >= 500 - interrupts, (len(found), interrupts)


class Owning(Slow):
    """A lock, which cannot be pickled; a tensor with a gradient; a text that now and then has no room in a batch."""

    def __init__(self):
        super().__init__()
        self.locks = [threading.Lock() for _ in range(64)]
        self.weight = torch.nn.Parameter(torch.ones(2))

    def __getitem__(self, index):
        return self.locks[index], self.weight * index, "x" * (3 << 20 if index in (6, 7) else 10)


def test_a_batch_whose_collate_fn_was_interrupted_is_whole_when_it_comes():
    data, calls = Owning(), []
    def collate(samples):
        calls.append(len(samples))
        if len(calls) % 2:
            raise KeyboardInterrupt
        return samples
    with penstock.DataLoader(data, 4, collate_fn=collate) as loader:
        steps = iter(loader)
        for at in range(0, 64, 4):
            raises(KeyboardInterrupt, lambda: next(steps))
            for number, (lock, product, text) in enumerate(next(steps), at):
                assert lock is data.locks[number] and product.grad_fn is not None and len(text) in (10, 3 << 20)
        assert len(loader._given.layout.stayed) == 0


def test_a_connection_that_an_interrupt_cut_is_seen_beside_a_forked_child():
    with penstock.DataLoader(Slow(), 4) as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is told as a worker that ended
        steps = iter(loader)
        assert next(steps).tolist() == [0, 1, 2, 3]
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        try:
            begun = time.monotonic()
            loader._given.here._connections[0].whole = False  # as if it had struck in the middle of a message
            assert torch.cat(list(steps)).tolist() == list(range(4, 64))
            assert time.monotonic() - begun < 30
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_the_programs_path_stays():
    before = list(sys.path)
    try:
        sys.path.append("beside")
        with penstock.DataLoader(Slow(), 4) as loader:
            next(iter(loader))
        assert sys.path == [*before, "beside"]
    finally:
        sys.path[:] = before


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
        until = time.monotonic() + 30  # the thread of the last call ends behind it
        while len(os.listdir("/proc/self/task")) > before[0] and time.monotonic() < until:
            time.sleep(0.02)
        assert len(os.listdir("/proc/self/task")) <= before[0]
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
        parts = loader._given.layout.stayed
        assert len(parts) <= 4 * 3 + 2, len(parts)  # of what was under way, a batch at most


def test_a_sample_may_wait_for_another_threads():
    inner = penstock.DataLoader(Slow(), 4)
    with concurrent.futures.ThreadPoolExecutor(1) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        class Waiting(Slow):
            def __getitem__(self, index):
                return index + int(pool.submit(lambda: next(iter(inner))[0]).result())
        with unittest.mock.patch.object(_generators, "ANOTHERS_SAMPLE_S", 0.3), penstock.DataLoader(Waiting(), 2) as outer:
            assert torch.cat(list(outer)).tolist() == list(range(64))
    inner.close()
    _generators._in_child()  # as before


def test_classes_may_be_defined_inside_functions():
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


if __name__ == "__main__":
    with one_process_that_imports():
        run_tests(globals())
