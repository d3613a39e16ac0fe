"""penstock.wrap: a torch DataLoader that is kept, with the pixels of penstock's own loader for the same index and epoch;
bad samples, epochs, breaking off, errors of the user's code; and the example."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import numpy as np
import torch

import penstock
from jobs import demo_photos, run_tests, write_job

SOURCE = os.environ.get("PENSTOCK_SOURCE") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
FOLDER = tempfile.TemporaryDirectory()
JOB = write_job(FOLDER.name, demo_photos(), trainers=1)


class Photos(torch.utils.data.Dataset):
    """What a user has: files in class folders. `broken`: indices whose bytes are cut."""

    def __init__(self, split, broken=(), kind=bytes, root=None):
        root = os.path.join(root or demo_photos(), split)
        self.files = [(os.path.join(root, name, file), label) for label, name in enumerate(sorted(os.listdir(root)))
                      for file in sorted(os.listdir(os.path.join(root, name)))]
        self.broken = set(broken)
        self.kind = kind

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path, label = self.files[index]
        with open(path, "rb") as file:
            content = file.read()
        if index in self.broken:
            content = content[:20]
        return index, self.kind(content), label


def as_array(content):
    return np.frombuffer(content, np.uint8)


def torch_loader(split, dataset=None, **options):
    options.setdefault("collate_fn", penstock.collate_bytes)
    return torch.utils.data.DataLoader(dataset or Photos(split), batch_size=16, **options)


def raises(kind, part, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as error:
        assert part in str(error), f"{error!s} does not say {part!r}"
        return error
    raise AssertionError(f"no {kind.__name__}")


def own(split, epoch=0, job=JOB, **options):
    """{index: (image, label)} of penstock's own loader."""
    out = {}
    loader = penstock.DataLoader(job, split=split, num_replicas=1, rank=0, **options)
    loader.set_epoch(epoch)
    for batch in loader:
        for place, index in enumerate(batch.indices.tolist()):
            if batch.valid[place]:
                out[index] = batch[0][place].clone(), int(batch[1][place])
    return out


def check_same(batches, wanted):
    seen = 0
    for batch in batches:
        images, labels = batch
        assert images.dtype == torch.float32 and labels.dtype == torch.int64
        assert len(images) == len(labels) == len(batch.indices) == len(batch.valid)
        for place, index in enumerate(batch.indices.tolist()):
            image, label = wanted[index]
            assert torch.equal(images[place], image), f"index {index}"
            assert int(labels[place]) == label
            seen += 1
    return seen


def test_pixels_are_the_own_loaders_whatever_carries_the_bytes():
    wanted = {(split, epoch): own(split, epoch) for split, epoch in (("train", 0), ("train", 1), ("val", 0))}
    assert not torch.equal(wanted["train", 0][3][0], wanted["train", 1][3][0])
    for options in (dict(num_workers=0), dict(num_workers=2), dict(num_workers=2, collate_fn=None),
                    dict(num_workers=1, dataset=Photos("train", kind=as_array)),
                    dict(num_workers=1, dataset=Photos("train", kind=memoryview)),
                    dict(num_workers=0, dataset=Photos("train", kind=lambda c: torch.tensor(as_array(c)))),
                    dict(num_workers=0, dataset=Photos("train", kind=bytearray))):
        train = penstock.wrap(torch_loader("train", shuffle=True, **options), JOB, split="train")
        assert len(train) == 5 and train.batch_size == 16 and len(train.dataset) == 80
        for epoch in (0, 1):  # advances by itself
            assert check_same(train, wanted["train", epoch]) == 80
    val = penstock.wrap(torch_loader("val"), JOB, split="val")
    for _ in range(2):  # replays epoch 0
        assert check_same(val, wanted["val", 0]) == 26
    train.set_epoch(1)
    assert train.epoch == 1 and check_same(train, wanted["train", 1]) == 80 and train.epoch == 2


def test_prefetch_numpy_dtype_and_more_columns():
    wanted = own("val")
    for prefetch in (0, 3, 100):
        assert check_same(penstock.wrap(torch_loader("val"), JOB, split="val", prefetch=prefetch), wanted) == 26
    half = penstock.wrap(torch_loader("val"), JOB, split="val", dtype="float16", channels_last=True)
    images, labels = next(iter(half))
    assert images.dtype == torch.float16 and images.is_contiguous(memory_format=torch.channels_last)

    def lists():  # any iterable of batches will do
        photos = Photos("val")
        for begin in (0, 13):
            indices, images, labels = zip(*(photos[i] for i in range(begin, begin + 13)))
            yield list(indices), list(images), list(labels), [f"photo {i}" for i in indices], torch.ones(13)

    class Lists:
        __iter__ = staticmethod(lists)

    for batch in penstock.wrap(Lists(), JOB, split="val", output="numpy"):
        images, labels, names, ones = batch
        assert isinstance(images, np.ndarray) and isinstance(labels, np.ndarray) and isinstance(ones, np.ndarray)
        for place, index in enumerate(batch.indices.tolist()):
            assert np.array_equal(images[place], wanted[index][0].numpy()) and labels[place] == wanted[index][1]
            assert names[place] == f"photo {index}"


def test_repeated_indices_draw_again():
    loader = torch_loader("train", sampler=[7, 7, 8, 7])
    images, _ = next(iter(penstock.wrap(loader, JOB, split="train")))
    preprocess = penstock.Preprocessor(JOB, split="train")
    path = Photos("train").files[7][0]
    for place, occurrence in ((0, 0), (1, 1), (3, 2)):
        assert torch.equal(images[place], preprocess(path, index=7, epoch=0, occurrence=occurrence)[0])
    assert not torch.equal(images[0], images[1])


def test_bad_samples():
    broken = Photos("train", broken=[5, 40])
    train = penstock.wrap(torch_loader("train", broken), JOB, split="train")
    given = []
    error = raises(penstock.DatasetError, "unusable sample 5 in epoch 0", lambda: given.extend(train))
    assert "premature end" in str(error) and not given
    # The same substitutes, with the same draws, as penstock's own loader has for files broken in that way.
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, "photos")
        os.makedirs(root)
        os.symlink(os.path.join(demo_photos(), "val"), os.path.join(root, "val"))
        for index, (path, _) in enumerate(broken.files):
            copy = os.path.join(root, "train", *path.split(os.sep)[-2:])
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            with open(copy, "wb") as file:
                file.write(broken[index][1])
        job = write_job(folder, root, trainers=1, name="broken.yaml")
        reference = penstock.DataLoader(job, split="train", shuffle=False, on_error="substitute", num_replicas=1, rank=0)
        wrapped = penstock.wrap(torch_loader("train", broken), job, split="train", on_error="substitute")
        substituted = 0
        for mine, theirs in zip(wrapped, reference):
            assert torch.equal(mine[0], theirs[0]) and torch.equal(mine[1], theirs[1])
            assert torch.equal(mine.indices, theirs.indices) and torch.equal(mine.substituted, theirs.substituted)
            substituted += int(mine.substituted.sum())
        assert substituted == 2
        reference.close()
    # An eval split masks them.
    val = penstock.wrap(torch_loader("val", Photos("val", broken=[3])), JOB, split="val", on_error="substitute")
    batch = next(iter(val))
    assert batch[1][3] == -100 and not batch.valid[3] and batch.num_valid == 15 and batch.valid[:3].all()
    few = penstock.wrap(torch_loader("val", Photos("val", broken=[3, 4])), JOB, split="val", on_error="substitute",
                        bad_samples__max_count=1)
    raises(penstock.DatasetError, "more than 1 samples", lambda: list(few))


def test_errors_of_the_users_code_come_after_the_batches_before_them():
    class Failing(Photos):
        def __getitem__(self, index):
            if index == 40:
                raise KeyError("my own mistake")
            return super().__getitem__(index)

    for workers in (0, 2):
        given = []

        def run():
            for batch in penstock.wrap(torch_loader("train", Failing("train"), num_workers=workers), JOB, split="train"):
                given.append(batch.step)

        error = raises(KeyError, "my own mistake", run)
        assert given == [0, 1], given
        # torch's own frame and its exception hold each other, and so its iterator: when the garbage collector finds it,
        # every worker is waited for 5 s. Without that cycle nothing of ours keeps it.
        traceback.clear_frames(error.__traceback__)
        del error
        assert not torch.multiprocessing.active_children()

    wrong = [(torch.utils.data.DataLoader([(torch.zeros(3), 1)] * 4, batch_size=2), "not (indices, encoded images"),
             ([(["a"], [b""], [0])], "not with indices"), ([([1], ["a.jpg"], [0])], "of texts"),
             ([([1, 2], [b""], [0])], "1 images, but 2 indices"), ([([1], [7], [0])], "image 0 is a int")]
    for loader, part in wrong:
        raises(penstock.UsageError, part, lambda: list(penstock.wrap(loader, JOB, split="val")))
    raises(penstock.UsageError, "a sample is a tuple", penstock.collate_bytes, [b"abc"])
    raises(penstock.UsageError, "prefetch=-1", penstock.wrap, [], JOB, split="val", prefetch=-1)


def test_break_reset_and_close_leave_nothing():
    def threads_of_pool():
        names = []
        for task in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{task}/comm") as file:
                    names.append(file.read().strip())
            except OSError:  # it has ended meanwhile
                pass
        return names.count("penstock-pre")

    def become(count):
        deadline = time.monotonic() + 10  # threads name themselves, and end, when they get to run
        while threads_of_pool() != count and time.monotonic() < deadline:
            time.sleep(0.01)
        return threads_of_pool() == count

    gc.collect()
    become(0)
    before, python_before = threads_of_pool(), threading.active_count()
    train = penstock.wrap(torch_loader("train"), JOB, split="train", prefetch=4, threads=3)
    assert become(before + 3) and threading.active_count() <= python_before
    kept = []
    for _ in range(3):
        for images, _ in train:
            kept.append((images, images.clone()))
            break
    assert train.epoch == 3
    passing = iter(train)
    next(passing)
    train.reset()
    raises(penstock.UsageError, "ended by reset()", next, passing)
    assert train.epoch == 4 and sum(1 for _ in train) == 5
    train.reset()
    two = iter(train), iter(train)  # two passes alive
    assert [next(one).epoch for one in two] == [5, 6]
    train.close()
    raises(penstock.UsageError, "ended by close()", next, two[0])
    raises(penstock.UsageError, "closed", lambda: next(iter(train)))
    assert become(before)
    assert all(torch.equal(images, copy) for images, copy in kept)


_INTERRUPTED = """
import os, time, torch, penstock
from wrap_test import Photos, JOB

def say(line):  # print() writes a line and its end apart, and processes share this pipe
    os.write(1, (line + "\\n").encode())

def greet(worker):  # the user's own, which is still called
    say(f"worker {worker}")

photos = Photos("train")
photos.files *= 40  # more encoded bytes than a pipe holds
loader = torch.utils.data.DataLoader(photos, batch_size=16, num_workers=2, worker_init_fn=greet, prefetch_factor=8)
for batch in penstock.wrap(loader, JOB, split="train"):
    assert loader.worker_init_fn is greet
    say("a batch")
    time.sleep(0.2)
"""


def test_ctrl_c_ends_the_workers_at_once():
    # As a terminal does it: to every process of the program. torch waits 5 s for each worker that ends itself.
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([os.environ.get("PYTHONPATH", ""), os.path.dirname(__file__)]))
    program = subprocess.Popen([sys.executable, "-c", _INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, start_new_session=True, env=env)
    try:
        lines = []
        while lines.count("a batch") < 3:
            line = program.stdout.readline()
            assert line, program.stderr.read()
            lines.append(line.strip())
        assert {"worker 0", "worker 1"} <= set(lines), lines
        sent = time.monotonic()
        os.killpg(program.pid, signal.SIGINT)
        _, said = program.communicate(timeout=30)
        assert program.returncode == -signal.SIGINT and "KeyboardInterrupt" in said, (program.returncode, said)
        assert time.monotonic() - sent < 8, "torch waited for its workers"  # 5 s for each
    finally:
        with contextlib.suppress(ProcessLookupError):  # workers too: they would wait on full pipes for each other
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate()


def test_decoding_overlaps_the_programs_step():
    # While the program does something else, the next batch is decoded: it is there when asked for.
    train = penstock.wrap(torch_loader("train"), JOB, split="train")
    passing = iter(train)
    next(passing)
    deadline = time.monotonic() + 20
    while not passing._begun[0].pending.ready and time.monotonic() < deadline:
        time.sleep(0.01)
    assert passing._begun[0].pending.ready and len(passing._begun) == 1


def test_set_epoch_reaches_the_sampler():
    sampler = torch.utils.data.DistributedSampler(Photos("train"), num_replicas=2, rank=1, shuffle=True, seed=3)
    train = penstock.wrap(torch_loader("train", sampler=sampler), JOB, split="train")
    wanted = own("train", 2)
    train.set_epoch(2)
    assert sampler.epoch == 2
    batches = list(train)
    assert check_same(batches, wanted) == 40 and {batch.epoch for batch in batches} == {2}
    assert [i for b in batches for i in b.indices.tolist()] == list(sampler)


def test_example():
    run = subprocess.run([sys.executable, os.path.join(SOURCE, "examples", "wrap_existing_loader.py"), JOB,
                          demo_photos(), "--epochs=2"], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert "epoch 1: loss" in run.stdout and "accuracy" in run.stdout, run.stdout


if __name__ == "__main__":
    run_tests(globals())
