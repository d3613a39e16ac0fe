"""penstock.wrap: a torch DataLoader that is kept, with the pixels of penstock's own loader for the same index and epoch;
bad samples, epochs, breaking off, errors of the user's code; and the example."""

import contextlib
import gc
import io
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from unittest import mock

import numpy as np
import torch

import penstock
from jobs import FULL, left_to_full, run_tests, write_job
from small_photos import SMALL

SOURCE = os.environ.get("PENSTOCK_SOURCE") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
FOLDER = tempfile.TemporaryDirectory()
JOB = write_job(FOLDER.name, SMALL, trainers=1)


class Photos(torch.utils.data.Dataset):
    """What a user has: files in class folders. `broken`: indices whose bytes are cut."""

    def __init__(self, split, broken=(), kind=bytes, root=None):
        root = os.path.join(root or SMALL, split)
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
    ways = (dict(num_workers=2), dict(num_workers=0, dataset=Photos("train", kind=lambda c: torch.tensor(as_array(c)))),
            dict(num_workers=0), dict(num_workers=2, collate_fn=None), dict(num_workers=1, dataset=Photos("train", kind=as_array)),
            dict(num_workers=1, dataset=Photos("train", kind=memoryview)), dict(num_workers=0, dataset=Photos("train", kind=bytearray)))
    for options in ways if FULL else ways[:2]:
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
    for prefetch in (0, 3, 100) if FULL else (3,):
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


GPU_LIST = [{"Resize": {"size": 64}}, {"CenterCrop": {"size": 64}}, {"RandomGrayscale": {"p": 0.3}},
             {"ToDtype": {"dtype": "float32", "scale": True}},
             {"Normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}]


def two_lists(split="train", share=0.3):
    return [f"splits.{split}.gpu_pipeline={json.dumps(GPU_LIST)}", f"splits.{split}.cpu_fraction={share}"]


def test_two_lists_share_the_samples_by_a_draw():
    every = {share: own("train", 1, overrides=two_lists(share=share)) for share in (0, 0.3, 0.6, 1)}
    first = own("train", 1)  # the job's one list
    chosen = {share: {i for i in first if torch.equal(images[i][0], first[i][0])} for share, images in every.items()}
    assert len(chosen[0]) <= 2 and len(chosen[1]) == 80, chosen  # a random crop may happen to be the second list's
    assert 10 < len(chosen[0.3]) < 40 and chosen[0.3] < chosen[0.6] and len(chosen[0.6]) < 70
    for index in set(first) - chosen[0.3]:
        assert torch.equal(every[0.3][index][0], every[0][index][0])  # the others are the second list's
    # The same whoever reads, makes or batches them; the argument wins over the job's number.
    for options in (dict(num_workers=2), dict(num_workers=0)) if FULL else (dict(num_workers=0),):
        for share, words in ((None, dict(overrides=two_lists())), (0.6, dict(overrides=two_lists(share=0.9), threads=1)),
                             (0.3, dict(overrides=two_lists(share=0.9))),
                             (0.3, dict(overrides=[*two_lists(share=1), "loader.executor=auto"])))[:4 if FULL else 2]:
            train = penstock.wrap(torch_loader("train", shuffle=True, **options), JOB, split="train", cpu_fraction=share,
                                  **words)
            train.set_epoch(1)
            assert check_same(train, every[share or 0.3]) == 80
            train.close()
    # With a GPU (one that is this CPU): it makes images of the second list alone.
    os.environ["PENSTOCK_GPUS"] = "host"
    try:
        for share in (0.3, 1) if FULL else (0.3,):
            train = penstock.wrap(torch_loader("train"), JOB, split="train", overrides=two_lists(share=share), threads=1,
                                  loader__executor="gpu")
            train.set_epoch(1)
            assert check_same(train, every[share]) == 80 and train.preprocessor.threads == 1
            made = [gpu["images"] for gpu in train.preprocessor.gpus]
            assert len(made) == 1 and (0 < made[0] <= 80 - len(chosen[0.3]) + 2 if share < 1 else made[0] == 0), made
            kept = next(iter(train))[0]
            train.close()
            assert kept.shape == (16, 3, 64, 64)
        val = penstock.wrap(torch_loader("val", Photos("val", broken=[3])), JOB, split="val", on_error="substitute",
                            loader__executor="auto", prefetch=4)
        plain = penstock.wrap(torch_loader("val", Photos("val", broken=[3])), JOB, split="val", on_error="substitute")
        for mine, theirs in zip(val, plain):
            assert torch.equal(mine[0], theirs[0]) and torch.equal(mine.valid, theirs.valid)
        assert val.preprocessor.gpus[0]["images"] > 0 and plain.preprocessor.gpus == []
        for _ in zip(range(1), val):
            break  # what is under way is taken back or awaited
        val.reset()
        os.environ["PENSTOCK_GPUS"] = "none"
        raises(penstock.RunError, "no GPU can be used", penstock.Preprocessor, JOB, "val", loader__executor="gpu")
        without = penstock.Preprocessor(JOB, "val", loader__executor="auto")
        assert without.gpus == [] and "no GPU can be used" in without.no_gpu
        assert penstock.Preprocessor(JOB, "val", loader__executor="cpu").no_gpu == ""
    finally:
        del os.environ["PENSTOCK_GPUS"]
    # An eval split as well; and it counts for the state of a checkpoint.
    val = penstock.wrap(torch_loader("val"), JOB, split="val", overrides=two_lists("val", 0.5))
    assert check_same(val, own("val", overrides=two_lists("val", 0.5))) == 26
    state = val.preprocessor.state_dict()
    val.preprocessor.check(state)
    other = penstock.Preprocessor(JOB, "val", overrides=two_lists("val", 0.5), cpu_fraction=0.25)
    raises(penstock.ConfigError, "splits.val.cpu_fraction (saved: 0.5, now: 0.25)", other.check, state)
    assert other.fingerprint != val.preprocessor.fingerprint
    raises(penstock.ConfigError, "splits.val.cpu_fraction", penstock.Preprocessor(JOB, "val").check, state)
    # Which list it is, is drawn: without an index nobody can say.
    assert other.random_transforms == ["cpu_fraction", "RandomGrayscale"]
    raises(penstock.UsageError, "draws (cpu_fraction, RandomGrayscale)", other, Photos("val").files[0][0])


def test_with_one_list_the_share_changes_nothing():
    wanted, plain = own("val"), penstock.Preprocessor(JOB, "val")
    for share in (0, 0.5, 1, "auto"):
        val = penstock.wrap(torch_loader("val"), JOB, split="val", cpu_fraction=share, loader__executor="auto")
        assert check_same(val, wanted) == 26
        assert val.preprocessor.fingerprint == plain.fingerprint and not val.preprocessor.random_transforms
    for share in (-0.1, 1.5, float("nan")):
        raises(penstock.UsageError, "between 0 and 1", penstock.wrap, [], JOB, split="val", cpu_fraction=share)
    raises(penstock.UsageError, '"auto"', penstock.wrap, [], JOB, split="val", cpu_fraction="all")
    raises(penstock.ConfigError, "write loader.cpu_fraction", penstock.wrap, [], JOB, split="val",
           splits__val__cpu_fraction=0.5)
    smaller = [{"CenterCrop": {"size": 32}}, *GPU_LIST[3:]]
    raises(penstock.ConfigError, "split 'val': gpu_pipeline ends in 32 x 32 pixels, and pipeline in 64 x 64 pixels",
           penstock.wrap, [], JOB, split="val", splits__val__cpu_fraction=0.5,
           splits__val__gpu_pipeline=smaller)


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
        os.symlink(os.path.join(SMALL, "val"), os.path.join(root, "val"))
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
    # As long as one is left it is found.
    count = len(Photos("train").files)
    hardly = Photos("train", broken=[i for i in range(count) if i != 9])
    last = penstock.wrap(torch_loader("train", hardly), JOB, split="train", on_error="substitute",
                         bad_samples__max_fraction=1.0)
    assert {int(index) for batch in last for index in batch.indices} == {9}
    nothing = penstock.wrap(torch_loader("train", Photos("train", broken=range(count))), JOB, split="train",
                            on_error="substitute", bad_samples__max_fraction=1.0)
    raises(penstock.DatasetError, f"none of {count - 1} substitutes is usable", lambda: next(iter(nothing)))
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

    for workers in (0, 2) if FULL else (2,):
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
        until = time.monotonic() + 20
        while torch.multiprocessing.active_children() and time.monotonic() < until:
            time.sleep(0.02)  # one that torch gave up waiting for, and ended
        assert not torch.multiprocessing.active_children()

    wrong = [(torch.utils.data.DataLoader([(torch.zeros(3), 1)] * 4, batch_size=2), "not (indices, encoded images"),
             ([(["a"], [b""], [0])], "not with indices"), ([([1], ["a.jpg"], [0])], "of texts"),
             ([([1, 2], [b""], [0])], "1 images, but 2 indices"), ([([1], [7], [0])], "image 0 is a int")]
    for loader, part in wrong:
        raises(penstock.UsageError, part, lambda: list(penstock.wrap(loader, JOB, split="val")))
    raises(penstock.UsageError, "a sample is a tuple", penstock.collate_bytes, [b"abc"])
    raises(penstock.UsageError, "prefetch=-1", penstock.wrap, [], JOB, split="val", prefetch=-1)


def test_an_iter_that_fails_uses_up_no_epoch():
    class Moody:
        fails = True

        def __iter__(self):
            if self.fails:
                self.fails = False
                raise RuntimeError("not now")
            return iter([])

    with penstock.wrap(Moody(), JOB, split="train") as wrapped:
        wrapped.set_epoch(3)
        raises(RuntimeError, "not now", iter, wrapped)
        assert wrapped.epoch == 3 and list(wrapped) == [] and wrapped.epoch == 4


class Stateful:
    """As torchdata's StatefulDataLoader: its state is the number of batches that it gave in the epoch that is under way."""

    def __init__(self):
        self.batches, self.given, self.first = list(torch_loader("train")), 0, 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        first, self.first = self.first, 0
        for self.given, batch in enumerate(self.batches[first:], first + 1):
            yield batch
        self.given = 0

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.first = state["given"]


def test_a_wrapped_loaders_state_is_of_what_was_given():
    def batches(steps):
        return [(batch.epoch, batch.indices.tolist(), batch[0].clone()) for batch in steps]

    def equal(some, others):
        return [one[:2] for one in some] == [one[:2] for one in others] and all(torch.equal(a[2], b[2]) for a, b in zip(some, others))

    with penstock.wrap(Stateful(), JOB, split="train", prefetch=0) as train:
        wanted = [batches(train) for _ in range(3)]
    states = []
    for prefetch in (0, 1, 3):
        with penstock.wrap(Stateful(), JOB, split="train", prefetch=prefetch) as train:
            train.set_epoch(1)
            steps = iter(train)
            got = batches(next(steps) for _ in range(2))
            states.append(json.dumps(train.state_dict()))
            got += batches(steps)
            assert equal(got, wanted[1])
            end = train.state_dict()
            next(iter(train))
            train.reset()
            assert train.state_dict() == {"penstock_epoch": 2, "loader": {"given": 1}}  # what was given
    assert len(set(states)) == 1, states
    middle = json.loads(states[0])
    for state, then in ((middle, [wanted[1][2:], wanted[2]]), (end, [wanted[2]])):
        with penstock.wrap(Stateful(), JOB, split="train") as again:
            again.load_state_dict(state)
            for epoch in then:
                assert equal(batches(again), epoch)
            assert again.state_dict() == {"penstock_epoch": 3, "loader": {"given": 0}}
            again.load_state_dict({"given": 4})  # the loader's own
            assert len(list(again)) == 1
    with penstock.wrap(torch_loader("train"), JOB, split="train") as plain:
        assert not hasattr(plain, "state_dict") and not hasattr(plain, "load_state_dict")


def test_labels_and_images_are_as_many():
    index, image, _ = Photos("train")[0]
    for labels in ([1], torch.zeros(1)):
        with penstock.wrap([([index, index], [image, image], labels)], JOB, split="train") as wrapped:
            raises(penstock.UsageError, "1 labels for 2 images", next, iter(wrapped))


def test_ctrl_c_loses_no_batch():
    wanted = [batch.indices.tolist() for batch in penstock.wrap(torch_loader("train"), JOB, split="train")]
    with penstock.wrap(torch_loader("train"), JOB, split="train") as train:
        steps, finish, got = iter(train), train.preprocessor._finish, []
        got.append(next(steps).indices.tolist())
        with mock.patch.object(train.preprocessor, "_finish", side_effect=KeyboardInterrupt):
            raises(KeyboardInterrupt, "", lambda: next(steps))
        with mock.patch.object(train.preprocessor._tensors, "of", side_effect=KeyboardInterrupt):
            raises(KeyboardInterrupt, "", lambda: next(steps))
        with mock.patch.object(steps, "_finish", side_effect=KeyboardInterrupt):
            raises(KeyboardInterrupt, "", lambda: next(steps))
        got += [batch.indices.tolist() for batch in steps]
        assert got == wanted


def test_break_reset_and_close_leave_nothing():
    def threads_of_pool():
        names = []
        for task in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{task}/comm") as file:
                    names.append(file.read().strip())
            except OSError:  # it has ended meanwhile
                pass
        return names.count("penstock-cpu")

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
    two = iter(train), iter(train)  # two iterations alive
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
loader = torch.utils.data.DataLoader(photos, batch_size=16, num_workers=4, worker_init_fn=greet, prefetch_factor=8)
for batch in penstock.wrap(loader, JOB, split="train"):
    assert loader.worker_init_fn is greet
    say("a batch")
    time.sleep(0.2)
"""


@left_to_full("test_ctrl_c_loses_no_batch: KeyboardInterrupt where nothing else runs")
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
        assert {f"worker {worker}" for worker in range(4)} <= set(lines), lines
        sent = time.monotonic()
        os.killpg(program.pid, signal.SIGINT)
        _, said = program.communicate(timeout=60)
        assert program.returncode == -signal.SIGINT and "KeyboardInterrupt" in said, (program.returncode, said)
        assert time.monotonic() - sent < 18, "torch waited for its workers"  # 5 s for each
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


def test_set_epoch_reaches_the_sampler_of_a_batch_sampler():
    data = Photos("train")
    inner = penstock.DistributedSampler(len(data), 1, 0, seed=2)
    loader = torch.utils.data.DataLoader(data, batch_sampler=torch.utils.data.BatchSampler(inner, 16, False),
                                         collate_fn=penstock.collate_bytes)
    with penstock.wrap(loader, JOB, split="train") as train:
        orders = []
        for epoch in (0, 1):
            train.set_epoch(np.int64(epoch))
            orders.append([index for batch in train for index in batch.indices.tolist()])
            inner.set_epoch(epoch)
            assert orders[-1] == list(inner)
        assert orders[0] != orders[1]
        raises(penstock.UsageError, "set_epoch(1.5)", train.set_epoch, 1.5)


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
    words = [os.path.join(SOURCE, "examples", "wrap_existing_loader.py"), JOB, SMALL, "--epochs=2"]
    if FULL:
        run = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=100)
        assert run.returncode == 0, run.stderr
        said = run.stdout
    else:  # in this process, which has imported torch
        with contextlib.redirect_stdout(io.StringIO()) as out, mock.patch.object(sys, "argv", [*words, "--workers=1"]):
            runpy.run_path(words[0], run_name="__main__")
        said = out.getvalue()
    assert "epoch 1: loss" in said and "accuracy" in said, said


if __name__ == "__main__":
    run_tests(globals())
