"""What the program gets where its own code cannot make a sample, or makes one that is not like the others."""

import errno
import os
import pickle
import re
import sys
import time
import warnings

import torch
from torch.utils.data import default_collate

import penstock
from penstock import _worker
from jobs import FULL, run_tests
from own_data import Broken, Outliers, Slow, one_process_that_imports, same
from photos import JOB, WORK, raises

warnings.filterwarnings("ignore", message=".*read and transformed in Python.*")


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


def test_what_fails_is_named():
    for workers in (0, 1) if FULL else (0,):
        with penstock.DataLoader(Failing(5), 4, num_workers=workers) as loader:
            raises(penstock.DatasetError, lambda: list(loader), "Failing[5]", "KeyError", "no such page", "own_samples_errors_test.py")
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


class Torn(Slow):
    """One sample of each batch of four cannot be made."""

    def __getitem__(self, index):
        if index % 4 == 1:
            raise ValueError(f"sample {index} is torn")
        return torch.full((8,), index)


def test_errors_that_are_kept_hold_no_batch():
    """A loader has memory for a few batches, and an error has the frames that it came through."""
    def fails(samples):
        raise LookupError(str(samples[0]))
    for workers in (0, 1):
        for loader in (penstock.DataLoader(Torn(), 4, num_workers=workers, timeout=20),
                       penstock.DataLoader(Slow(), 4, num_workers=workers, timeout=20, collate_fn=fails)):
            with loader:
                steps, errors = iter(loader), []
                for _ in range(16):
                    try:
                        next(steps)
                    except (ValueError, LookupError) as error:
                        errors.append(error)
                assert len(errors) == 16 and next(steps, None) is None
    with penstock.DataLoader(JOB, split="train", batch_size=4, collate_fn=fails, timeout=20) as loader:
        steps = iter(loader)
        errors = [raises(LookupError, lambda: next(steps)) for _ in range(12)]
        with penstock.DataLoader(Torn(), 4, num_workers=workers, timeout=20, on_error="substitute", bad_samples__max_count=100) as loader:
            assert len(list(loader)) == 16


class HandsOn:
    def __init__(self, dataset):
        self.dataset = dataset

    def __getattr__(self, name):
        return getattr(self.dataset, name)

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[index]


def test_a_batch_whose_collate_fn_was_interrupted_comes_again():
    calls = []
    def collate(samples):
        calls.append(samples)
        if len(calls) % 2:
            raise KeyboardInterrupt
        return samples
    with penstock.DataLoader(Slow(), 4, num_workers=1, collate_fn=collate) as loader:
        steps, found = iter(loader), []
        for _ in range(16):
            raises(KeyboardInterrupt, lambda: next(steps))
            found += next(steps)
        assert found == list(range(64)) and next(steps, None) is None


def test_a_batch_with_large_parts_comes_again():
    for workers in (0, 1):
        interrupts = [KeyboardInterrupt, KeyboardInterrupt]
        def collate(samples):
            if len(samples[1][1]) == 50_000 and interrupts:
                raise interrupts.pop()
            return samples
        with penstock.DataLoader(Outliers(), 4, num_workers=workers, collate_fn=collate) as loader:
            steps = iter(loader)
            next(steps)
            for _ in range(2):
                raises(KeyboardInterrupt, lambda: next(steps))
            assert [len(numbers) for _, numbers, _ in next(steps)] == [0, 50_000, 0, 0] and len(list(steps)) == 4


def test_what_workers_cannot_be_sent_is_named():
    raises(TypeError, lambda: penstock.DataLoader(HandsOn(Slow()), 4, num_workers=1), "HandsOn does not survive pickling", "__getattr__")
    assert len(list(penstock.DataLoader(HandsOn(Slow()), 16))) == 4
    class Local(Slow):
        pass
    Local.__qualname__, Local.__module__ = "Guarded", "__main__"
    vars(sys.modules["__main__"])["Guarded"] = Local
    raises(penstock.DatasetError, lambda: next(iter(penstock.DataLoader(Local(), 4, num_workers=1))), "Guarded",
           'if __name__ == "__main__":')


class Late(Slow):
    """In workers."""

    def __init__(self):
        super().__init__()
        self.quick = os.getpid()

    def __getitem__(self, index):
        time.sleep(0 if os.getpid() == self.quick else 30)
        return index


def test_a_time_that_is_over_is_torchs_error():
    with penstock.DataLoader(Late(), 4, num_workers=1, timeout=1) as loader:
        raises(RuntimeError, lambda: next(iter(loader)), "waited 1 s", "timeout=")
    begun = time.monotonic()  # the sample that hangs keeps nobody
    with penstock.DataLoader(Slow(), 4, num_workers=1) as loader:
        assert next(iter(loader)).tolist() == [0, 1, 2, 3] and time.monotonic() - begun < 15


class LateOnce(Late):
    """In workers, its first sample comes once the program has waited in vain."""

    def __init__(self, waited):
        super().__init__()
        self.waited = waited

    def __getitem__(self, index):
        until = time.monotonic() + 60
        while index == 0 and os.getpid() != self.quick and not os.path.exists(self.waited) and time.monotonic() < until:
            time.sleep(0.01)
        return index


def test_a_batch_that_came_too_late_is_the_next_ones():
    waited = os.path.join(WORK, "waited")
    with penstock.DataLoader(LateOnce(waited), 4, num_workers=1, timeout=1) as loader:
        batches, late = iter(loader), 0
        while True:
            try:
                batch = next(batches)
                break
            except RuntimeError as error:
                late += 1
                assert "waited 1 s" in str(error) and late < 20, error
                open(waited, "w").close()
        assert late > 0 and batch.tolist() == [0, 1, 2, 3]
        assert next(batches).tolist() == [4, 5, 6, 7]


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


def test_the_same_errors_may_pass_in_python_and_in_cpp():
    """_worker.py runs without the compiled module, so there are two lists; regular files cannot meet the rest of Python's."""
    with open(os.path.join(os.environ["PENSTOCK_SOURCE"], "runtime", "base", "file_system.cpp")) as file:
        body = file.read().partition("bool may_pass(int code) noexcept {")[2].partition("default:")[0]
    in_cpp = {getattr(errno, name) for name in re.findall(r"case (E\w+):", body)}
    assert len(in_cpp) > 10 and _worker.MAY_PASS - in_cpp == {errno.EINTR, errno.ECOMM, errno.ESHUTDOWN, errno.EPIPE}, in_cpp
    assert in_cpp <= _worker.MAY_PASS, in_cpp - _worker.MAY_PASS


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


if __name__ == "__main__":
    with one_process_that_imports():
        run_tests(globals())
