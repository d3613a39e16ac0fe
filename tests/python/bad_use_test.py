"""Wrong use and lost peers: each time an exception of its kind, or an exit code, that names things; nothing hangs."""

import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest.mock

import penstock
from jobs import FULL, PENSTOCK, mpirun_words, run_tests, write_job
from leftovers import BUSY_S, no_leftovers
from photos import JOB, PHOTOS, TRAIN, WORK, raises, script, tiny_job
from watching import ranks

T = penstock.transforms


OUTPUT = "torch" if FULL else "numpy"  # where nothing is said of it: importing torch takes seconds


def loader(*args, **more):
    if not more.keys() & {"output", "device", "pin_memory", "dtype", "channels_last"}:
        more["output"] = OUTPUT
    return penstock.DataLoader(*args, **more)


def test_names_that_are_no_utf8():
    with tempfile.TemporaryDirectory() as top:
        os.makedirs(os.path.join(top, "a"))
        with open(os.fsencode(top) + b"/a/\xff.jpg", "w") as file:
            file.write("no picture")
        data = loader(penstock.ImageFolder(top), batch_size=1, transform=T.Resize([8, 8]))
        raises(penstock.DatasetError, lambda: list(data), "\\xff.jpg")


def test_wrong_jobs():
    raises(penstock.ConfigError, lambda: loader("no/such/job.yaml"), "no/such/job.yaml", "penstock init")
    raises(penstock.ConfigError, lambda: loader("no/such/job.yaml", split="train"), "No such file")
    raises(penstock.ConfigError, lambda: loader(WORK, split="train"), WORK)
    raises(penstock.ConfigError, lambda: loader({}), "splits")
    raises(penstock.ConfigError, lambda: loader({"splits": {}}), "splits")
    raises(penstock.ConfigError, lambda: loader({"splits": 3}, split="train"), "splits")
    raises(penstock.UsageError, lambda: loader({"splits": {"train": object()}}), "object")
    raises(penstock.UsageError, lambda: loader(JOB), "'train', 'val'", "split=")
    raises(penstock.UsageError, lambda: loader(JOB, split="trian"), "trian", "did you mean 'train'")
    raises(penstock.UsageError, lambda: loader(17), "int", "ImageFolder")
    raises(penstock.UsageError, lambda: loader(JOB, split="train", transform=T.CenterCrop(3)), "pipeline")
    raises(penstock.DatasetError, lambda: loader(penstock.ImageFolder("no/such"), transform=T.CenterCrop(3)), "no/such")
    for url in ("http://example.org/train", "s3://bucket/{000..012}.tar"):
        raises(penstock.ConfigError, lambda: loader(penstock.WebDataset(url), transform=T.CenterCrop(3)), url, "is a URL")
    empty = tempfile.mkdtemp(dir=WORK)
    raises(penstock.DatasetError, lambda: loader(penstock.ImageFolder(empty), transform=T.CenterCrop(3)), empty)
    two = raises(penstock.ConfigError, lambda: loader(tiny_job(batch_sise=3, pipeline=[{"CenterCorp": {}}])), "CenterCorp",
                 "batch_sise")
    assert "did you mean 'batch_size'" in str(two) and "did you mean 'CenterCrop'" in str(two)  # all mistakes at once


def test_without_numpy():
    with unittest.mock.patch.dict(sys.modules, {"numpy": None}):  # as where it is not installed
        raises(penstock.UsageError, lambda: loader(tiny_job(), split="train", output="numpy"), "NumPy", "pip install numpy")


def test_a_mistyped_switch():
    os.environ["PENSTOCK_DECODE"] = "libary"
    try:
        raises(penstock.UsageError, lambda: loader(tiny_job(), split="train"), "PENSTOCK_DECODE='libary'", "library")
    finally:
        del os.environ["PENSTOCK_DECODE"]


def test_wrong_arguments():
    for keyword, hint in (("batchsize", "'batch_size'"), ("Batch_Size", "'batch_size'"), ("drop", "'drop_last'"),
                          ("numworkers", "'num_workers'"), ("xyzzy", "loader__threads")):
        for job in (JOB, penstock.ImageFolder(TRAIN)):
            raises(penstock.UsageError, lambda: loader(job, split="train", **{keyword: 4}), repr(keyword), hint)
    raises(penstock.ConfigError, lambda: loader(JOB, split="train", loader__thread=4), "did you mean 'threads'")
    raises(penstock.ConfigError, lambda: loader(JOB, split="train", overrides=["nonsense"]), "key=value")
    raises(penstock.UsageError, lambda: loader(JOB, split="train", overrides=[("a", 1)]), "overrides")
    raises(penstock.UsageError, lambda: loader(JOB, split="train", batch_size=0), "batch_size", "0")
    raises(penstock.UsageError, lambda: loader(JOB, split="train", batch_size=2.5), "batch_size=2.5", "whole number")
    raises(penstock.UsageError, lambda: loader(JOB, "train"), "batch_size='train'", "split='train'")
    raises(penstock.ConfigError, lambda: loader(JOB, split="train", tail="padd"), "'pad'")
    raises(penstock.ConfigError, lambda: loader(JOB, split="train", seed=-1), "seed")
    raises(penstock.UsageError, lambda: loader(JOB, split="train", output="jax"), "jax", "numpy")
    raises(penstock.UsageError, lambda: loader(JOB, split="train", output="numpy", device="cpu"), "torch")
    raises(penstock.UsageError, lambda: loader(JOB, split="train", output="numpy", pin_memory=True), "torch")
    for flag in ("copy", "pin_memory", "channels_last", "attach"):
        raises(penstock.UsageError, lambda: loader(JOB, split="train", **{flag: "no"}), f"{flag}='no'", "True or False")
    raises(penstock.UsageError, lambda: loader(JOB, split="train", batch="tuple"), "list", "dict")
    raises(penstock.UsageError, lambda: loader(JOB, split="train", keys={"image": "x"}), "dict")
    raises(penstock.UsageError, lambda: loader(JOB, split="train", batch="dict", keys={"images": "x"}), "'images'", "'image'")
    raises(penstock.UsageError, lambda: loader(JOB, split="train", batch="dict", keys={"image": "label"}), "same name")
    raises(penstock.UsageError, lambda: loader(JOB, split="train", dtype="int8"), "int8", "bfloat16")
    # A wrong type is complained of by the parameter's name, and a key of the job by its keyword.
    for wrong in ({"num_replicas": 2.0, "rank": 0}, {"num_replicas": 2, "rank": "0"}, {"num_replicas": 2**40, "rank": 0},
                  {"ranks_per_replica": "2"}, {"channels_last": 1}, {"attach": "no"}, {"keys": 3, "batch": "dict"},
                  {"keys": {"image": 3}, "batch": "dict"}, {"sampler": 3}, {"loader__threads": object()}):
        problem = raises(penstock.UsageError, lambda: loader(JOB, split="train", **wrong))
        assert any(name in str(problem) for name in wrong) and "incompatible" not in str(problem), problem
    for wrong in ({"shuffle": "x"}, {"tail": "padd"}, {"cpu_fraction": 3}, {"seed": "x"},
                  {"loader__threads": "x"}, {"loader__thread": 1}):
        problem = raises(penstock.ConfigError, lambda: loader(JOB, split="train", **wrong))
        assert str(problem).startswith(f"{list(wrong)[0]}: error: "), problem
    both = raises(penstock.ConfigError, lambda: loader(JOB, split="train", seed="x", overrides=["nonsense"]))
    assert "seed: error: 'seed': expected" in str(both) and "overrides: error: expected key=value" in str(both), both
    for problem in (raises(penstock.Error, lambda: loader(JOB, split="trian")), raises(penstock.Error, lambda: loader("no.yaml"))):
        again = pickle.loads(pickle.dumps(problem))  # as it comes out of a worker process
        assert type(again) is type(problem) and str(again) == str(problem) and again.remedy == problem.remedy
    assert issubclass(penstock.ConfigError, ValueError) and penstock.PeerLostError.exit_code == 5


def test_pickling():
    import copy
    with loader(JOB, split="train") as one:
        for call in (lambda: pickle.dumps(one), lambda: copy.copy(one), lambda: copy.deepcopy(one)):
            raises(TypeError, call, "DataLoader", "each process")
        raises(TypeError, lambda: pickle.dumps(iter(one)))


def test_unusable_pictures():
    folder = os.path.join(WORK, "spoilt")
    shutil.copytree(TRAIN, folder)
    where = os.path.join(folder, sorted(os.listdir(folder))[1])
    name = sorted(os.listdir(where))[3]
    with open(os.path.join(where, name), "w") as file:
        file.write("this is text")
    with loader(tiny_job(dataset={"folder": folder})) as one:
        steps, good = iter(one), 0

        def run():
            nonlocal good
            for _ in steps:
                good += 1

        raises(penstock.DatasetError, run, name)
        assert 0 < good < 5
        assert next(steps).step == good + 1  # the one with that sample is left out
        raises(penstock.DatasetError, lambda: list(map(len, one)), name)  # another iteration
    with loader(tiny_job(dataset={"folder": folder}), on_error="substitute") as one:
        assert sum(int(batch.substituted.sum()) for batch in one) == 1
        bad = one.stats()["splits"]["train"]["bad_samples"]
        assert len(bad) == 1 and name in bad[0]["path"]


def test_uncaught_errors_end_the_program_with_a_name():
    result = script(f"import penstock\npenstock.DataLoader('no.yaml', output={OUTPUT!r})")
    assert result.returncode == 1 and "penstock.errors.ConfigError: cannot read the job file 'no.yaml'" in result.stderr
    result = script(f"import sys, penstock\ntry:\n  penstock.DataLoader('no.yaml', output={OUTPUT!r})\nexcept penstock.Error as e:\n"
                    "  sys.exit(e.exit_code)")
    assert result.returncode == 3


_NO_RECEIVER = """
import os, signal, threading, time
import penstock
def open():
    return penstock.DataLoader({job!r}, split="train", output="numpy")
for _ in range(2):
    start = time.monotonic()
    try:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        open()
    except KeyboardInterrupt:
        print(f"{{time.monotonic() - start:.3f}}")
if {full}:
    open()
"""


def test_a_receiver_that_is_not_there():
    env = dict(os.environ, PENSTOCK_RECEIVER="@penstock-nobody-home", PENSTOCK_TOKEN="x")
    result = script(_NO_RECEIVER.format(job=JOB, full=FULL), env=env)
    # It would wait 10 s for a receiver that is about to come.
    assert all(float(line) < (8 if BUSY_S else 0.8) for line in result.stdout.splitlines()) and result.stdout.count("\n") == 2, result.stdout
    if FULL:
        assert result.returncode == 1 and "PeerLostError" in result.stderr and "penstock-nobody-home" in result.stderr


_PROGRAM = """
import os, signal, sys, time
import penstock
job, folder, mode = sys.argv[1:]
rank = os.environ["RANK"]
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so that it always hears the reason from its receiver, not from its helper
def say(text):
    with open(os.path.join(folder, rank), "a") as file:
        file.write(text + "\\n")
try:
    more = {"seed": int(rank)} if mode == "other" else {}
    loader = penstock.DataLoader(job, split="train", output="numpy", **more)
    for epoch in range(100000):
        for batch in loader:
            if epoch == 0 and batch.step == 0:
                say(f"begun {os.getpid()} {loader.num_replicas} {loader.rank} {loader.embedded}")
            time.sleep(0.01)
            if mode in ("raise", "kill") and rank == "1" and epoch == 1:
                while not os.path.exists(os.path.join(folder, "0")):  # the other program's interpreter may start much later
                    time.sleep(0.01)
            if mode == "raise" and rank == "1" and epoch == 1:
                raise RuntimeError("the program's own mistake")
            if mode == "kill" and rank == "1" and epoch == 1:
                os.kill(os.getpid(), signal.SIGKILL)
except penstock.Error as problem:
    say(f"{type(problem).__name__}: {problem}")
    sys.exit(problem.exit_code)
"""


class Running:
    """A job under mpirun whose trainers run _PROGRAM."""

    def __init__(self, env, mode="endless", ranks=3):
        self.folder = tempfile.mkdtemp(dir=WORK)
        program = os.path.join(self.folder, "program.py")
        with open(program, "w") as file:
            file.write(_PROGRAM)
        job = write_job(self.folder, PHOTOS, trainers=2)
        self.err = open(os.path.join(self.folder, "stderr"), "w+")
        self.process = subprocess.Popen(
            [*mpirun_words(ranks), PENSTOCK, "run", job, "--quiet", "--", sys.executable, program, job, self.folder, mode],
            env=env, stdin=subprocess.DEVNULL, stdout=self.err, stderr=self.err, start_new_session=True)

    def said(self, rank):
        try:
            with open(os.path.join(self.folder, str(rank))) as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def wait_for_batches(self):
        deadline = time.monotonic() + 40
        while not all("begun" in self.said(rank) for rank in range(2)):
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def end(self, limit_s=40):
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {limit_s} s\n{self.log()}") from None

    def log(self):
        self.err.flush()
        with open(self.err.name) as file:
            return f"{self.said(0)}{self.said(1)}{file.read()[-4000:]}"


def mpirun_is_here():
    if shutil.which("mpirun") is None:
        print("no mpirun in PATH: not tried")
    return shutil.which("mpirun") is not None


def leaving_nothing():
    return no_leftovers(wait_s=8)


def test_receiver_gone_in_mid_epoch():
    if not mpirun_is_here():
        return
    with leaving_nothing() as env:
        running = Running(env)
        running.wait_for_batches()
        os.kill(ranks(env)[1], signal.SIGKILL)
        assert running.end() != 0
        deadline = time.monotonic() + 10
        while "Error" not in running.said(1) and time.monotonic() < deadline:
            time.sleep(0.05)
        said = running.said(1)
        assert "PeerLostError: the receiver of trainer 1 on host" in said, running.log()
        # Epochs are short: it may have been between two of them.
        assert re.search("went away while the program waited for the (next batch|beginning of an epoch)", said), running.log()


def test_program_killed_or_failed():
    if not mpirun_is_here():
        return
    for mode, words in (("kill", ("trainer 1", "SIGKILL")), ("raise", ("trainer 1", "the program's own mistake"))):
        with leaving_nothing() as env:
            running = Running(env, mode)
            code = running.end(60)
            assert code != 0, running.log()
            for word in words:
                assert word in running.log(), (mode, word, running.log())
            assert "False" in running.said(0).split("\n")[0]


def test_different_overrides_on_two_ranks():
    if not mpirun_is_here():
        return
    with leaving_nothing() as env:
        running = Running(env, "other")
        assert running.end(60) != 0
        # Who opens first may have begun before the other is refused.
        refused = [said for said in (running.said(0), running.said(1)) if "ConfigError" in said]
        assert len(refused) == 1 and "seed: " in refused[0] and "begun" not in refused[0], running.log()


run_tests(globals())
