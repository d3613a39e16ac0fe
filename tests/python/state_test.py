"""state_dict() and load_state_dict(): a resumed program sees what the uninterrupted one would have.

The cases are those of torchdata's StatefulDataLoader (test/stateful_dataloader/test_state_dict.py), as far as they make
sense without worker processes:
  TestStateInitializationDataset_shard0, …1..3     state at every step, loaded before iter()
  TestFullIteration / TestSnapshotZero             state at step 0, before and after iter()
  TestSnapshotEnd                                  state after StopIteration: the next epoch, whole
  TestNumWorkersMismatch                           here: any number of loader threads, the same stream
  TestConcurrentDataLoaders                        two loaders and two iterations, states apart
  TestFastStateDictRequest                         state_dict() at once after iter(), without a batch
  TestJsonSerDe                                    json and torch.save round trips
  TestMultiEpochState, TestMultiEpochSDL           states of later epochs, several epochs after a load
  TestEndOfEpoch / load_then_end                   state after the last batch, before StopIteration
  TestOutOfOrder, TestSingleIterCalled             one iteration alive, a second one made, no batch lost; samples that take
                                                   longer than those behind them
  TestFastStateDictRequest, …RoundRobin            saved again a batch or two after a load, and loaded again
  TestInitialState, TestSnapshotZero (interrupted) a loader that loads its own earlier states, again and again
  TestStatefulSampler, TestNotStatefulSampler      a program's sampler: samplers_test.py
  drop_last, shuffle, several replicas             every tail and mode, states at every step
  ErrorDataset (test_iteration_error)              an iteration that fails: its state is the last good one

Not here: what StatefulDataLoader keeps of worker processes, of snapshots every n steps and of IterableDatasets, none of
which penstock has. Its state after the last batch, before StopIteration, gives one empty epoch (TestEndOfEpoch); ours
begins the next, unless set_epoch names the finished one.
"""

import io
import itertools
import json
import os
import pickle
import re
import shutil
import threading
import time
import warnings
from unittest import mock

import torch

import own_functions
import penstock
from jobs import FULL, run_tests
from photos import WORK, digest, raises, tiny_job
from small_photos import JOB, TRAIN, VAL

LENGTH = 5


def train(**more):
    return penstock.DataLoader(JOB, split="train", **more)


def key(batch):
    return batch.epoch, batch.step, batch.indices.tolist(), digest(batch[0])


def stream(epochs=4):
    with train() as loader:
        return [key(batch) for _ in range(epochs) for batch in loader]


STREAM = stream()


def after(loader, count):
    """The next so many batches, over epochs, the way a training program takes them."""
    out = []
    while len(out) < count:
        got = [key(batch) for batch in itertools.islice(loader, count - len(out))]
        assert got, "an empty epoch"
        out += got
    return out


def test_state_of_every_step_loaded_before_iter():
    with train() as loader:
        states = [loader.state_dict()]
        for _ in range(2):
            for _ in loader:
                states.append(loader.state_dict())
    for taken, state in enumerate(states):
        if not FULL and taken not in (0, 3, 5, 6):
            continue
        with train() as resumed:
            resumed.load_state_dict(state)
            assert after(resumed, 7) == STREAM[taken:taken + 7], taken
        assert state["batch"] == (taken - 1) % LENGTH + 1 if taken else state["batch"] == 0


def test_loaded_after_iter_and_on_a_live_iterator():
    with train() as loader:
        for _ in itertools.islice(loader, 3):
            pass
        state = loader.state_dict()
    with train() as resumed:  # Lightning: iter() before the restore
        steps = iter(resumed)
        resumed.load_state_dict(state)
        assert [key(batch) for batch in steps] == STREAM[3:5]
        assert [key(batch) for batch in resumed] == STREAM[5:10]
    with train() as resumed:  # in mid-epoch, in another epoch
        resumed.set_epoch(2)
        steps = iter(resumed)
        next(steps), next(steps)
        resumed.load_state_dict(state)
        assert key(next(steps)) == STREAM[3]
        assert resumed.state_dict()["batch"] == 4
        assert [key(batch) for batch in steps] == STREAM[4:5]
        raises(StopIteration, lambda: next(steps))
        assert [key(batch) for batch in resumed] == STREAM[5:10]
    with train() as resumed:  # an iteration that has ended stays ended, the next one goes on
        steps = iter(resumed)
        for _ in steps:
            pass
        resumed.load_state_dict(state)
        raises(StopIteration, lambda: next(steps))
        assert [key(batch) for batch in resumed] == STREAM[3:5]
    with train() as resumed:  # a newer iteration takes the loaded place, the older one keeps its own
        old = iter(resumed)
        next(old)
        resumed.load_state_dict(state)
        new = iter(resumed)
        assert key(next(new)) == STREAM[3] and key(next(old)) == STREAM[1]


def test_epoch_end():
    with train() as loader:
        for _ in loader:
            last = loader.state_dict()  # of the last batch, in the end: StopIteration is still to come
        over = loader.state_dict()
        assert (last["epoch"], last["batch"]) == (0, 5) and (over["epoch"], over["batch"]) == (1, 0)
        assert loader.state_dict() == over
    for state in (last, over):
        with train() as resumed:  # Lightning, for one, saves before StopIteration and begins the next epoch
            resumed.load_state_dict(state)
            assert resumed.epoch == 1 and resumed.state_dict() == state
            assert [key(batch) for batch in resumed] == STREAM[5:10]
        with train() as resumed:
            resumed.load_state_dict(state)
            resumed.set_epoch(1)
            assert [key(batch) for batch in resumed] == STREAM[5:10]
    with train() as resumed:  # a loop that goes on with the epoch that the checkpoint was made in finds nothing left of it
        resumed.load_state_dict(last)
        seen = []
        for epoch in range(0, 2):
            resumed.set_epoch(epoch)
            seen += [key(batch) for batch in resumed]
        assert seen == STREAM[5:10]
    with train() as resumed:  # and so does the live iteration
        steps = iter(resumed)
        next(steps)
        resumed.load_state_dict(last)
        raises(StopIteration, lambda: next(steps))
        assert [key(batch) for batch in resumed] == STREAM[5:10]


def test_states_without_a_batch_between():
    with train() as loader:
        fresh = loader.state_dict()
        for _ in range(2):
            iter(loader)  # dropped before its first batch (Lightning looks whether it can): it does not count
        assert loader.state_dict() == fresh and loader.epoch == 0
        first = iter(loader)
        steps = iter(loader)  # a second iteration beside the first, that is alive: the next epoch
        assert loader.state_dict()["epoch"] == 1
        del first
        next(steps)
        state = loader.state_dict()
        assert (state["epoch"], state["batch"]) == (1, 1)
    with train() as resumed:
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state == resumed.state_dict()  # at once after loading, twice
        iter(resumed)
        assert resumed.state_dict() == state
        assert [key(batch) for batch in itertools.islice(resumed, 1)] == STREAM[6:7]  # the loaded place was not used up
        resumed.load_state_dict(state)
        resumed.load_state_dict(resumed.state_dict())
        steps = iter(resumed)
        assert resumed.state_dict() == state
        assert key(next(steps)) == STREAM[6]
        resumed.load_state_dict(state)
        steps = iter(resumed)
        steps = iter(resumed)  # a notebook's cell, run again: the iteration before it still lives
        assert key(next(steps)) == STREAM[6] and key(next(iter(resumed))) == STREAM[10]
    with train() as resumed:  # a place that somebody wrote into the state, where it is not looked for
        for wrong in (dict(epoch=5), dict(batch=2), dict(epoch="x"), dict(batch=None)):
            raises(penstock.ConfigError, lambda: resumed.load_state_dict({**state, **wrong}), "its position is epoch 1, batch 1")
    with train() as resumed:  # two loads in a row: the last one counts
        resumed.load_state_dict(state)
        resumed.load_state_dict(fresh)
        assert after(resumed, 3) == STREAM[:3]
        resumed.load_state_dict(state)
        assert after(resumed, 6) == STREAM[6:12]


def test_set_epoch_after_loading():
    with train() as loader:
        loader.set_epoch(1)
        for _ in itertools.islice(loader, 3):
            pass
        state = loader.state_dict()
    with train() as resumed:  # the usual loop: epoch in range(checkpoint's, …), with set_epoch
        resumed.load_state_dict(state)
        seen = []
        for epoch in range(1, 3):
            resumed.set_epoch(epoch)
            seen += [key(batch) for batch in resumed]
        assert seen == STREAM[8:15]
    with train() as resumed:  # another epoch: the program has decided otherwise
        resumed.load_state_dict(state)
        resumed.set_epoch(3)
        assert [key(batch) for batch in resumed] == STREAM[15:20]
    with train() as resumed:
        resumed.set_epoch(3)
        resumed.load_state_dict(state)  # the later one counts
        assert after(resumed, 2) == STREAM[8:10]


def test_consumed():
    with train() as loader:  # a reader that is one batch ahead of the program
        steps = iter(loader)
        next(steps)
        for used in range(LENGTH):
            following = next(steps, None)
            assert (following is None) == (used == LENGTH - 1)
            state = loader.state_dict(consumed=used)
            assert (state["epoch"], state["batch"]) == (0, used)
            with train() as resumed:
                resumed.load_state_dict(state)
                assert after(resumed, 3) == STREAM[used:used + 3]
        assert loader.state_dict(consumed=LENGTH)["batch"] == LENGTH
        for wrong in (-1, LENGTH + 1):
            raises(penstock.UsageError, lambda: loader.state_dict(consumed=wrong), str(wrong), "5 batches")
    with train() as resumed:  # counted from the epoch's beginning, also where the iteration began later
        resumed.load_state_dict(state)
        steps = iter(resumed)
        next(steps)
        assert resumed.state_dict(consumed=4) == state


def test_round_trips_and_size():
    with train() as loader:
        for _ in itertools.islice(loader, 2):
            pass
        state = loader.state_dict()
    assert len(json.dumps(state)) < 4096
    buffer = io.BytesIO()
    torch.save({"data": state}, buffer)
    buffer.seek(0)
    for again in (json.loads(json.dumps(state)), pickle.loads(pickle.dumps(state)), torch.load(buffer)["data"]):
        assert again == state
        with train() as resumed:
            resumed.load_state_dict(again)
            assert after(resumed, 4) == STREAM[2:6]


def test_files_of_states():
    path = os.path.join(WORK, "data.state")
    with train() as loader:
        for _ in itertools.islice(loader, 3):
            pass
        penstock.save_state(path, {"train": loader.state_dict(), "note": "three batches"})
    states = penstock.load_state(path)
    assert states["note"] == "three batches"
    with train() as resumed:
        resumed.load_state_dict(states["train"])
        assert after(resumed, 4) == STREAM[3:7]
    with open(path, "rb") as file:
        good = file.read()
    assert len(good) < 64 * 1024
    with open(path, "wb") as file:
        file.write(good[:-5])
    raises(penstock.ConfigError, lambda: penstock.load_state(path), "data.state", "damaged, or was cut off")
    raises(penstock.RunError, lambda: penstock.load_state(path + ".not_there"), "not_there")
    raises(penstock.UsageError, lambda: penstock.save_state(path, [1]), "save_state")
    raises(penstock.UsageError, lambda: penstock.save_state(path, {"model": object()}), "save_state")


def test_other_threads_go_on_while_a_state_is_saved_or_loaded():
    path, text = os.path.join(WORK, "large.state"), json.dumps({"note": "x" * 40_000_000})
    for call in (lambda: penstock._penstock.save_state(path, text), lambda: penstock._penstock.load_state(path)):
        ticks, over = [], threading.Event()

        def tick():
            while not over.wait(0.001):
                ticks.append(time.monotonic())

        thread = threading.Thread(target=tick)
        thread.start()
        begun = time.monotonic()
        call()
        ended = time.monotonic()
        over.set()
        thread.join()
        between = sum(begun < one < ended for one in ticks)
        assert between >= 5, (between, ended - begun)  # holding the GIL it is 0, or 1 right at an end
    os.remove(path)


def test_several_loaders_and_passes():
    with train() as one, train() as other, penstock.DataLoader(JOB, split="val") as val:
        a, b = iter(one), iter(other)
        next(a), next(a), next(b)
        assert one.state_dict()["batch"] == 2 and other.state_dict()["batch"] == 1
        second = iter(one)
        next(second)
        assert (one.state_dict()["epoch"], one.state_dict()["batch"]) == (1, 1)  # the iteration that moved last
        next(a)
        assert (one.state_dict()["epoch"], one.state_dict()["batch"]) == (0, 3)
        val_steps = iter(val)
        first = key(next(val_steps))
        state = val.state_dict()
        assert (state["epoch"], state["batch"]) == (0, 1)
        rest = [key(batch) for batch in val_steps]
        assert (val.state_dict()["epoch"], val.state_dict()["batch"]) == (0, 0)
        val.load_state_dict(state)
        assert [key(batch) for batch in val] == rest
        assert [key(batch) for batch in val] == [first] + rest
        raises(penstock.ConfigError, lambda: val.load_state_dict(one.state_dict()), "'train'", "'val'")


def test_machinery_may_change():
    with train(loader__threads=1) as loader:
        for _ in itertools.islice(loader, 2):
            pass
        state = loader.state_dict()
    moved = os.path.join(WORK, "moved")
    shutil.copytree(TRAIN, moved)
    with train(loader__threads=4, loader__chunk_samples=3, loader__prefetch=1, dtype="float16", channels_last=True,
               output="numpy", splits__train__dataset__folder=moved) as resumed:
        resumed.load_state_dict(state)
        assert [(b.epoch, b.step, b.indices.tolist()) for b in resumed] == [one[:3] for one in STREAM[2:5]]


def test_refusals_name_the_key():
    with penstock.DataLoader(tiny_job()) as loader:
        for _ in itertools.islice(loader, 2):
            pass
        state = loader.state_dict()

    def refused(words, job=None, **more):
        with penstock.DataLoader(job or tiny_job(), **more) as other:
            before = other.state_dict()
            raises(penstock.ConfigError, lambda: other.load_state_dict(state), *words)
            assert other.state_dict() == before  # nothing has changed by a refusal

    refused(["seed", "3", "4"], seed=4)
    refused(["batch_size", "16", "8"], batch_size=8)
    refused(["shuffle"], shuffle=True)
    refused(["tail"], tail="drop")
    refused(["mode"], mode="eval")
    refused(["size", "32", "33"], tiny_job(pipeline=[{"CenterCrop": {"size": 33}}]))
    refused(["pipeline"], tiny_job(pipeline=[{"CenterCrop": {"size": 32}}, {"RandomVerticalFlip": {}}]))
    refused(["dataset", "80", "26"], tiny_job(dataset={"folder": VAL}))
    refused(["on_error"], on_error="substitute")
    other = os.path.join(WORK, "other")  # as many pictures, one under another name
    shutil.copytree(TRAIN, other)
    folder = os.path.join(other, sorted(os.listdir(other))[0])
    first = sorted(os.listdir(folder))[0]
    os.rename(os.path.join(folder, first), os.path.join(folder, "zzz" + os.path.splitext(first)[1]))
    refused(["dataset", "other samples"], tiny_job(dataset={"folder": other}))
    with penstock.DataLoader(tiny_job()) as loader:
        for wrong in ({}, {**state, "penstock_state": 99}, {**state, "position": "nonsense"}, {**state, "spec": "{}"},
                      {k: v for k, v in state.items() if k != "dataset"}, {**state, "position": state["position"][:-9]},
                      {**state, "spec": "x" * 3_000_000}):
            raises(penstock.ConfigError, lambda: loader.load_state_dict(wrong))
        raises(penstock.UsageError, lambda: loader.load_state_dict(None), "the dict that state_dict() gave", "NoneType")
        raises(penstock.UsageError, lambda: loader.load_state_dict({"epoch": object()}), "load_state_dict", "object")
        raises(penstock.ConfigError, lambda: loader.load_state_dict({**state, "decoders": "another-jpeg 1.0"}),
               "decoders: another-jpeg 1.0 then", state["decoders"] + " now")
        # Another libjpeg-turbo may give other pixels, one library less other statuses; the others at most a warning.
        older = {name: re.sub(rf"(?<={name} )[^;]*", "0.1", state["decoders"]) for name in ("libjpeg-turbo", "libspng")}
        without = state["decoders"][:state["decoders"].rindex("; ")]
        for decoders in (older["libjpeg-turbo"], without):
            raises(penstock.ConfigError, lambda: loader.load_state_dict({**state, "decoders": decoders}), decoders + " then")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            loader.load_state_dict({**state, "decoders": older["libspng"]})
        assert any("other versions of decoders: " + older["libspng"] in str(one.message) for one in said), said


def test_chain_of_resumes():
    """Saved soon after a load, each time by another loader: no batch is lost at any joint, in whatever epoch."""
    for steps in ((2, 1, 3, 5, 1), (0, 1, 0, 6, 0, 3), (1,) * 12, (4, 1, 1, 4, 2), (5, 5, 2))[:5 if FULL else 2]:
        seen, state = [], None
        for count in steps:
            with train(loader__threads=1) as loader:
                if state is not None:
                    kept = json.dumps(state)
                    loader.load_state_dict(state)
                    assert json.dumps(state) == kept  # what was given is not changed
                seen += after(loader, count)
                state = loader.state_dict()
        assert seen == STREAM[:len(seen)] and len(seen) == sum(steps), steps


def test_a_loader_loads_its_own_earlier_states():
    with train() as loader:
        states = [loader.state_dict()]
        for _ in range(7):
            after(loader, 1)  # broken off each time, and begun again by the load below
            states.append(loader.state_dict())
            loader.load_state_dict(states[-1])
        for _ in range(2 if FULL else 1):
            for taken in (3, 0, 6, 7, 5, 1):  # forwards, backwards, over the epoch's end
                loader.load_state_dict(states[taken])
                assert loader.state_dict() == states[taken]
                assert after(loader, 4) == STREAM[taken:taken + 4], taken
                next(steps := iter(loader))  # and one alive in the background
        del steps


def test_every_tail_and_mode_for_two_replicas():
    """5 batches of 9 or less for each of two: states at every step of two epochs, each loaded by a loader that has moved."""
    for tail, drop_last, mode in (("torch", False, "train"), ("pad", False, "eval"), ("pad", False, "train"),
                                  ("drop", False, "train"), ("torch", True, "train"))[:5 if FULL else 2]:
        job = tiny_job(tail=tail, drop_last=drop_last, mode=mode, sampler={"shuffle": mode == "train"}, batch_size=9)
        for rank in range(2):
            with penstock.DataLoader(job, num_replicas=2, rank=rank) as loader, \
                    penstock.DataLoader(job, num_replicas=2, rank=rank) as resumed:
                def keys(batches):
                    return [(*key(batch), batch.valid.tolist()) for batch in batches]

                states, rest = [loader.state_dict()], []
                for _ in range(2):
                    for batch in loader:
                        states.append(loader.state_dict())
                        rest += keys([batch])
                assert len(rest) == 2 * len(loader) and len(loader) in (4, 5), (tail, len(loader))
                for taken, state in enumerate(states[:-1]):
                    resumed.load_state_dict(json.loads(json.dumps(state)))
                    place = taken % len(loader)  # of an epoch's last batch: the next epoch
                    end = taken - place + len(loader)
                    assert keys(resumed) == rest[taken:end], (tail, drop_last, mode, rank, taken)


def test_state_of_a_pass_that_failed():
    folder = os.path.join(WORK, "failing")
    shutil.copytree(TRAIN, folder)
    job = tiny_job(dataset={"folder": folder})
    with penstock.DataLoader(job) as loader:
        whole = [key(batch) for batch in loader]
    files = [os.path.join(folder, name, file) for name in sorted(os.listdir(folder))
             for file in sorted(os.listdir(os.path.join(folder, name)))]
    with open(files[50], "rb") as file:  # in batch 3: the order is that of the names
        content = file.read()
    with open(files[50], "wb") as file:
        file.write(content[:40])
    seen = []
    with penstock.DataLoader(job) as loader:
        raises(penstock.DatasetError, lambda: [seen.append(key(batch)) for batch in loader], "index 50")
        state = loader.state_dict()
    assert seen == whole[:3] and (state["epoch"], state["batch"]) == (0, 3)
    with open(files[50], "wb") as file:
        file.write(content)
    with penstock.DataLoader(job) as resumed:  # once the file is repaired
        resumed.load_state_dict(state)
        assert [key(batch) for batch in resumed] == whole[3:]


def test_an_interrupted_iter_was_none():
    def interrupted(call):
        with mock.patch.object(Interrupting, "armed", True):
            raises(KeyboardInterrupt, call)

    class Interrupting:
        armed = False

        def __init__(self, native):
            self._native = native

        def __getattr__(self, name):
            return getattr(self._native, name)

        def start_at(self, epoch, step):
            if self.armed:
                raise KeyboardInterrupt
            return self._native.start_at(epoch, step)

    with train() as loader:
        loader._native = Interrupting(loader._native)
        interrupted(lambda: iter(loader))
        assert [key(b) for b in loader] == STREAM[:LENGTH]  # epoch 0, as if nothing had been
        steps = iter(loader)
        assert key(next(steps)) == STREAM[LENGTH]
        state = loader.state_dict()
        interrupted(lambda: iter(loader))
        assert loader.state_dict() == state
        loader.load_state_dict(state)
        interrupted(lambda: next(steps))  # which would have gone to the loaded place
        assert key(next(steps)) == STREAM[LENGTH + 1]
        loader.set_epoch(0)
        interrupted(lambda: iter(loader))
        assert key(next(iter(loader))) == STREAM[0]


def test_own_dataset_with_slow_samples():
    """States count batches in order, also while a later one is ready and this one is not."""
    def own():
        return penstock.DataLoader(own_functions.Slow(), batch_size=4, shuffle=True, seed=3, output="numpy",
                                   transform=penstock.transforms.CenterCrop(8), loader__threads=2)

    with own() as loader:
        whole, states = [], [loader.state_dict()]
        for batch in loader:
            whole.append(key(batch))
            states.append(loader.state_dict())
        for taken in (1, 3):
            loader.load_state_dict(states[taken])
            assert [key(batch) for batch in loader] == whole[taken:]
    assert [state["batch"] for state in states] == list(range(len(whole) + 1)) and len(whole) == 5


def test_elastic():
    """1 -> 2 -> 4 replicas with replicas x batch_size kept: the same samples in the same global steps."""
    def pieces(replicas, state, steps):
        """The next global steps as sets of (index, valid), and the state after them."""
        loaders = [train(num_replicas=replicas, rank=rank, batch_size=16 // replicas) for rank in range(replicas)]
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(state)
        iterations = [iter(loader) for loader in loaders]
        out = []
        for _ in range(steps):
            rows = [next(one).indices.tolist() for one in iterations]
            out.append([index for row in zip(*rows) for index in row])  # striding: position p is replica p % replicas
        states = [loader.state_dict() for loader in loaders]
        assert all(one == states[0] for one in states)  # any replica may save it
        for loader in loaders:
            loader.close()
        return out, states[0]

    first, state = pieces(1, None, 2)
    second, state = pieces(2, state, 1)
    third, state = pieces(4, state, 2)
    assert first + second + third == [one[2] for one in STREAM[:5]]
    fourth, _ = pieces(2, state, 5)
    assert fourth == [one[2] for one in STREAM[5:10]]
    with train(num_replicas=2, rank=0) as other:  # another global batch
        raises(penstock.ConfigError, lambda: other.load_state_dict(state), "global batch", "16", "32")


run_tests(globals())
