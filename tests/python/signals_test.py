"""Ctrl-C while the loader is waited for, other threads meanwhile, and fork() in the program."""

import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings

import torch

import penstock
from jobs import FULL, run_tests
from leftovers import BUSY_S
from photos import raises, script, tiny_job
from small_photos import JOB, TRAIN

LIMIT_S = 0.5 + BUSY_S  # a wait that no signal ends takes trainer.timeout_s


def interrupted(steps, after_s):
    """Ctrl-C while next() waits. It comes no earlier than raises() is there for it, however late that gets a core."""
    sent_at = []

    def send():
        time.sleep(after_s)
        sent_at.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    raises(KeyboardInterrupt, lambda: (thread.start(), next(steps)))
    assert time.monotonic() - sent_at[0] < LIMIT_S
    thread.join()


def waiting(loader):
    """An iteration whose next() waits until something in `held` is dropped, for trainer.timeout_s at most."""
    steps, held = iter(loader), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        next(steps)  # given back: a program that keeps all of them has some seconds only
        for _ in range(5):
            held.append(next(steps))
    return steps, held


def all_held_job(**trainer):
    job = tiny_job(batch_size=8)  # 10 batches; hold 2 and prefetch 2 make 5 batch buffers
    job["trainer"] = {"timeout_s": 20, "hold": 2, **trainer}
    return job


def test_ctrl_c_while_next_waits():
    warnings.simplefilter("ignore")
    with penstock.DataLoader(all_held_job()) as loader:
        plain = [batch.indices.tolist() for batch in loader]
        loader.set_epoch(0)
        steps, held = waiting(loader)
        state = loader.state_dict()
        for _ in range(3):
            interrupted(steps, 0.2)
        assert loader.state_dict() == state
        seen = [batch.indices.tolist() for batch in held]
        held.clear()
        seen += [batch.indices.tolist() for batch in steps]  # not one batch lost or given twice
        assert seen == plain[1:]
        assert [batch.indices.tolist() for batch in penstock.DataLoader(all_held_job())] == plain


def test_an_interrupted_pass_may_be_left():
    warnings.simplefilter("ignore")
    with penstock.DataLoader(all_held_job()) as loader:
        plain = [batch.indices.tolist() for batch in loader]
        for _ in range(3):
            loader.set_epoch(0)
            steps, held = waiting(loader)
            interrupted(steps, 0.1)
            del steps, held
            loader.set_epoch(0)
            assert [batch.indices.tolist() for batch in loader] == plain


def test_other_handlers_and_timeouts_of_the_programs_own():
    warnings.simplefilter("ignore")

    class TooLate(Exception):
        pass

    def handler(number, frame):
        raise TooLate

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with penstock.DataLoader(all_held_job()) as loader:
            steps, held = waiting(loader)
            start = time.monotonic()
            raises(TooLate, lambda: (signal.setitimer(signal.ITIMER_REAL, 0.2), next(steps)))
            assert time.monotonic() - start < 0.2 + LIMIT_S
            held.clear()
            assert sum(1 for _ in steps) == 4
    finally:
        signal.signal(signal.SIGALRM, before)


_CONSTRUCTOR = """
import os, signal, sys, threading, time
import penstock
job, other = {job!r}, {other!r}
at = [0.0]
def interrupt():
    time.sleep({after})
    at[0] = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)
try:
    threading.Thread(target=interrupt).start()
    penstock.DataLoader(job, output="numpy")
    for _ in range(1000):
        time.sleep(0.01)  # a signal just before a sleep is seen when that is over
except KeyboardInterrupt:
    print(f"interrupted {{time.monotonic() - at[0]:.3f}}")
loader = penstock.DataLoader(other, output="numpy")
print("usable", sum(1 for _ in loader))
"""


def test_ctrl_c_in_the_constructor():
    folder = os.path.join(os.environ["PENSTOCK_BUILD"], "tests", "many_files")
    make_many_files(folder)
    for after in (0.02, 0.05, 0.1) if FULL else (0.05,):  # while it connects, lists the folder, or has just opened
        result = script(_CONSTRUCTOR.format(job=tiny_job(dataset={"folder": folder}), other=tiny_job(), after=after))
        assert result.returncode == 0, result.stderr
        first, second = result.stdout.splitlines()
        assert first.startswith("interrupted") and float(first.split()[1]) < LIMIT_S and second == "usable 5", result.stdout


def make_many_files(folder, count=20_000):
    """Links to one picture: a folder whose listing takes a while."""
    if os.path.exists(folder + ".made"):
        return
    source = next(os.path.join(where, names[0]) for where, _, names in os.walk(TRAIN) if names)
    ending = os.path.splitext(source)[1]
    for i in range(10):
        os.makedirs(os.path.join(folder, f"class{i}"), exist_ok=True)
    first = os.path.join(folder, "class0", "0" + ending)
    if not os.path.exists(first):
        with open(source, "rb") as read, open(first, "wb") as write:
            write.write(read.read())
    for i in range(1, count):
        path = os.path.join(folder, f"class{i % 10}", f"{i}{ending}")
        if not os.path.lexists(path):
            os.symlink(first, path)
    open(folder + ".made", "w").close()


def test_other_threads_go_on_while_next_waits():
    warnings.simplefilter("ignore")
    with penstock.DataLoader(all_held_job()) as loader:
        steps, held = waiting(loader)
        counted = [0]

        def count():
            time.sleep(0.3)  # for next() to begin
            while counted[0] < 20_000:
                counted[0] += 1
            held.clear()

        thread = threading.Thread(target=count)
        thread.start()
        next(steps)  # until the other thread drops a batch
        assert counted[0] == 20_000
        thread.join()


def test_fork():
    with penstock.DataLoader(JOB, split="train") as loader:
        plain = [batch.indices.tolist() for batch in loader]
        loader.set_epoch(0)
        steps = iter(loader)
        kept = next(steps)
        seen = [kept.indices.tolist()]
        for ending in ("exit", "drop", "use"):
            pid = os.fork()
            if pid == 0:
                code = 99
                try:
                    if ending == "drop":
                        del kept, steps
                        loader.close()
                    if ending == "use":
                        for call in (lambda: next(steps), lambda: iter(loader), loader.stats):
                            raises(penstock.UsageError, call, "forked", "child's own")
                        len(loader), repr(loader), loader.state_dict()
                    code = 0
                finally:
                    os._exit(code)
            assert wait_for(pid) == 0, ending
            seen.append(next(steps).indices.tolist())
        seen += [batch.indices.tolist() for batch in steps]
        assert seen == plain


def wait_for(pid, limit_s=20):
    deadline = time.monotonic() + limit_s
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("the forked child hangs")
        time.sleep(0.01)


def test_fork_while_another_thread_waits():
    warnings.simplefilter("ignore")
    with penstock.DataLoader(all_held_job()) as loader:
        steps, held = waiting(loader)
        got = []
        thread = threading.Thread(target=lambda: got.append(next(steps)))
        thread.start()
        time.sleep(0.2)  # it sits in next(), with the loader's lock
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                code = 99
                try:
                    raises(penstock.UsageError, lambda: next(steps), "forked")
                    raises(penstock.UsageError, loader.stats, "forked")
                    held.clear()
                    loader.close()
                    code = 0
                finally:
                    os._exit(code)
            assert wait_for(pid) == 0
        held.clear()
        thread.join(10)
        assert got and got[0].step == 6


def _use_parents(loader, results):
    try:
        next(iter(loader))
        results.put("a batch")
    except Exception as problem:
        results.put(f"{type(problem).__name__}: {problem}")


def _make_own(results):
    try:
        torch.set_num_threads(1)
        with penstock.DataLoader(JOB, split="train", output="numpy") as own:
            results.put([batch.indices.tolist() for batch in own])
    except Exception as problem:
        results.put(f"{type(problem).__name__}: {problem}")


def test_multiprocessing():
    with penstock.DataLoader(JOB, split="train", output="numpy") as loader:
        plain = [batch.indices.tolist() for batch in loader]
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        child = context.Process(target=_use_parents, args=(loader, results))
        child.start()
        said = results.get(timeout=20)
        child.join(20)
        assert child.exitcode == 0 and "UsageError" in said and "child's own" in said, (child.exitcode, said)
        child = context.Process(target=_make_own, args=(results,))  # the same job: threads of the child's own
        child.start()
        assert results.get(timeout=20) == plain
        child.join(20)
        assert child.exitcode == 0
        raises(TypeError, lambda: multiprocessing.get_context("spawn").Process(
            target=_use_parents, args=(loader, None)).start(), "pickled")
        loader.set_epoch(0)
        assert [batch.indices.tolist() for batch in loader] == plain


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, i):
        return torch.tensor(i)


def test_torchs_workers_beside_it():
    with penstock.DataLoader(JOB, split="train") as loader:
        plain = [batch.indices.tolist() for batch in loader]
        for start in ("fork", "fork") if FULL else ("fork",):
            loader.set_epoch(0)
            others = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, multiprocessing_context=start)
            both = [(batch.indices.tolist(), numbers.tolist()) for batch, numbers in zip(loader, others)]
            assert [mine for mine, _ in both] == plain
            assert [theirs for _, theirs in both] == [list(range(k, k + 8)) for k in range(0, 40, 8)]


if __name__ == "__main__":
    run_tests(globals())
