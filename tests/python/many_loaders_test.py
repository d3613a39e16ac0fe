"""Loaders of torch's data sets, made again and again as notebooks and hyperparameter searches do: nothing of them stays.

(lifetime_test.py has the same for jobs, signals_test.py has fork().)"""

import contextlib
import gc
import os
import sys
import threading
import time
import warnings

import numpy as np
import torch
from torch.utils.data import Dataset
from torchvision import transforms as V
from torchvision.datasets import ImageFolder

import penstock
from jobs import FULL, run_tests
from photos import TRAIN, descendants, open_files, rss_mb, script

STEPS = V.Compose([V.Resize(40), V.CenterCrop(32), V.ToTensor()])


class Own(Dataset):
    """What penstock cannot read itself."""

    def __init__(self, size=12):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.full((3, 8, 8), float(index)), index


class Standing:
    """What a process has that lasts: descriptors, threads, children and memory."""

    def __init__(self):
        gc.collect()
        self.descriptors = open_files()
        self.threads = len(os.listdir("/proc/self/task"))
        self.children = len(descendants())
        self.memory_mb = rss_mb()

    def stays(self, megabytes, limit_s=30):
        """No more of anything within `limit_s`: threads of dropped loaders may be on their way out."""
        deadline = time.monotonic() + limit_s
        while True:
            now = Standing()
            if now.descriptors <= self.descriptors and now.threads <= self.threads and now.children <= self.children:
                break
            assert time.monotonic() < deadline, (vars(self), vars(now))
            time.sleep(0.05)
        assert now.memory_mb < self.memory_mb + megabytes, (vars(self), vars(now))


def use(loader, how):
    """Reads a batch, or all; then closes the loader, drops it, or leaves it to the collector."""
    steps = iter(loader)
    next(steps)
    if how % 2:
        for _ in steps:
            pass
    if how % 3 == 0:
        loader.close()
    elif how % 3 == 1:
        loader.cycle = loader


def test_hundreds_of_loaders_leave_nothing():
    def make(number):
        if number % 4 == 0:
            use(penstock.DataLoader(ImageFolder(TRAIN, STEPS), 16, shuffle=True, num_workers=1), number)
        elif number % 20 == 1:
            use(penstock.DataLoader(Own(), 4, num_workers=2), number)
        else:
            use(penstock.DataLoader(Own(), 4, collate_fn=list if number % 2 else None), number)

    warnings.simplefilter("ignore")
    for number in range(60 if FULL else 8):  # within fifty malloc's arenas of threads that come and go have reached their size
        make(number)
    before = Standing()
    for number in range(200 if FULL else 24):
        make(number)
    before.stays(megabytes=40)


def test_loaders_in_threads():
    expected = [int(labels.sum()) for _, labels in penstock.DataLoader(Own(), 4)]
    pictures = [labels.tolist() for _, labels in penstock.DataLoader(ImageFolder(TRAIN, STEPS), 16)]
    before = Standing()
    problems = []

    def work(number):
        try:
            for _ in range(10 if FULL else 2):
                with penstock.DataLoader(Own(), 4, num_workers=number % 2) as loader:
                    assert [int(labels.sum()) for _, labels in loader] == expected
                with penstock.DataLoader(ImageFolder(TRAIN, STEPS), 16) as loader:
                    assert [labels.tolist() for _, labels in loader] == pictures
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not problems, problems
    before.stays(megabytes=60)


def test_one_loader_in_a_thread_beside_another_in_the_main_thread():
    with penstock.DataLoader(Own(40), 4) as first, penstock.DataLoader(Own(40), 4) as second:
        found = []
        thread = threading.Thread(target=lambda: found.extend(int(labels.sum()) for _, labels in first))
        thread.start()
        alone = [int(labels.sum()) for _, labels in second]
        thread.join(60)
        assert found == alone and len(alone) == 10


class Notebook:
    """Pieces of a program in one namespace, whose last value and last traceback are kept, as Jupyter does."""

    def __init__(self):
        self.names = {"penstock": penstock, "Own": Own, "np": np}
        self.out = []

    def run(self, text):
        try:
            exec(compile(text, f"piece {len(self.out)}", "exec"), self.names)
            self.out.append(self.names.get("_"))
        except BaseException:  # KeyboardInterrupt, too: what the stop button raises
            sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
            return sys.last_value


def test_a_notebook_that_is_run_again_and_again():
    warnings.simplefilter("ignore")
    notebook = Notebook()
    pieces = ["loader = penstock.DataLoader(Own(), 4, num_workers=workers)",
             "for step, (x, y) in enumerate(loader):\n    if step == 1: raise KeyboardInterrupt",
             "for step, (x, y) in enumerate(loader):\n    1 / 0",
             "x, y = _ = next(iter(loader))",
             "total = sum(int(y.sum()) for x, y in loader)"]

    def run(times, workers):
        notebook.names["workers"] = workers
        for _ in range(times):
            said = [type(notebook.run(piece)) for piece in pieces]
            assert said == [type(None), KeyboardInterrupt, ZeroDivisionError, type(None), type(None)], (said, sys.last_value)
            assert notebook.names["total"] == sum(range(12))

    run(3, workers=0)
    run(1, workers=1)
    before = Standing()
    run(20, workers=0)
    run(3, workers=1)
    del notebook.out[:]
    before.stays(megabytes=40)


ENDS = """
import warnings
warnings.simplefilter("ignore")
import penstock
class Texts:
    def __len__(self): return 400
    def __getitem__(self, index): return "x" * 10 if index != 115 else torn
def main():
    loader = penstock.DataLoader(Texts(), 16, output={output!r})
    for step, batch in enumerate(loader):
        if step == {step}: raise SystemExit(3)
main()
"""


def test_a_program_that_ends_in_the_middle():
    """By an error of a sample, or by itself: threads of the loader must not wait for an interpreter that has gone."""
    for step, code in ((100, 1), (1, 3)):
        done = script(ENDS.format(step=step, output="torch" if FULL else "numpy"), timeout=60)  # importing torch takes seconds
        assert done.returncode == code, (done.returncode, done.stderr)
        assert code == 3 or "NameError: name 'torn'" in done.stderr, done.stderr


def one_process_that_imports():
    """While a loader is open the process that imports torch for its workers stays, and forks those of other loaders, too. With
    PENSTOCK_FULL=1 nearly every loader has its own, which goes with it."""
    return contextlib.nullcontext() if FULL else penstock.DataLoader(Own(), 4, num_workers=1)


if __name__ == "__main__":
    with one_process_that_imports():
        run_tests(globals())
