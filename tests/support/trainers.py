"""What torchrun does, in small: starts a program once for each trainer of this host, with RANK, WORLD_SIZE and
LOCAL_RANK, and ends all of them when one fails. And a `penstock serve` for them to attach to.

    with Serving(job, env, ranks=4) as serving:
        results = run_trainers([PATTERNS, "all", job, out], 2, env)     # [(exit code, stdout, stderr)]
        report = serving.end()                                          # `--stop`; the report of --json

ranks=0 serves in one process, without mpirun; launch=True lets `penstock launch` write the mpirun line.
seen_by() runs a program that writes what it was given to seen*.json, alone, under mpirun or under torchrun.
"""

import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from jobs import PENSTOCK, mpirun_words
from leftovers import no_leftovers, run


def place(rank, world, local=None):
    return {"PENSTOCK_ATTACH": "1", "RANK": str(rank), "WORLD_SIZE": str(world),
            "LOCAL_RANK": str(rank if local is None else local)}


def seen_by(program, job, folder, *words, ranks=0, torchrun=0, timeout=150):
    """What each trainer of a Python program wrote to FOLDER/seen*.json, which are removed."""
    command = [sys.executable, program, job, folder, *words]
    if torchrun:
        command[1:1] = ["-m", "torch.distributed.run", f"--nproc_per_node={torchrun}", "--rdzv_backend=c10d",
                        "--rdzv_endpoint=localhost:0", f"--log_dir={folder}"]
    if ranks:
        command = [*mpirun_words(ranks), PENSTOCK, "run", job, "--quiet", "--", *command]
    with no_leftovers(wait_s=8) as env:
        # One thread: sums of floats in one order.
        done = run(command, timeout, env={**env, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-4000:]
    out = []
    for path in sorted(glob.glob(os.path.join(folder, "seen*.json"))):
        with open(path) as file:
            out.append(json.load(file))
        os.remove(path)
    return out


def outside(env):
    """The environment without what a launcher around the test may have said."""
    return {name: value for name, value in env.items()
            if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "PENSTOCK_ATTACH", "PENSTOCK_RECEIVER")}


class Trainer:
    def __init__(self, words, env):
        self.out = tempfile.TemporaryFile("w+")
        self.err = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err,
                                        start_new_session=True)

    @property
    def pid(self):
        return self.process.pid

    def text(self, which="out"):
        file = getattr(self, which)
        return os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")

    def wait_for(self, what, limit_s=40):
        deadline = time.monotonic() + limit_s
        while what not in self.text():
            assert time.monotonic() < deadline and self.process.poll() is None, f"no '{what}': {self.result()}"
            time.sleep(0.02)
        return self

    def kill(self):
        self.process.kill()
        self.process.wait()

    def result(self, limit_s=30):
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {limit_s} s: {self.text()}{self.text('err')}") from None
        return code, self.text(), self.text("err")


def start_trainers(words, world, env, places=None):
    return [Trainer(words, dict(outside(env), **place))
            for place in places or [place(rank, world) for rank in range(world)]]


def wait_trainers(trainers, limit_s=30, together_s=0.2):
    """Results in order; when one fails the others are killed, as torchrun does, if they have not ended `together_s` later: the
    failures of one cause come together, and each may say why."""
    deadline = time.monotonic() + limit_s
    while any(t.process.poll() is None for t in trainers) and time.monotonic() < deadline:
        if any(t.process.poll() not in (None, 0) for t in trainers):
            together = time.monotonic() + together_s
            while any(t.process.poll() is None for t in trainers) and time.monotonic() < together:
                time.sleep(0.02)
            for trainer in trainers:
                trainer.process.kill()
        time.sleep(0.02)
    return [trainer.result(0.1) for trainer in trainers]


def run_trainers(words, world, env, places=None, **limits):
    return wait_trainers(start_trainers(words, world, env, places), **limits)


class Serving:
    def __init__(self, job, env, ranks=0, overrides=(), options=(), cwd=None, launch=False):
        self.job = job
        self.env = env
        words = (mpirun_words(ranks) if ranks else []) + [PENSTOCK, "serve", job]
        if launch:
            words = [PENSTOCK, "launch", "--run", "--serve", "-n", str(ranks), job]
        words += ["--json", *options, *overrides]
        self.out = tempfile.TemporaryFile("w+")
        self.err = tempfile.TemporaryFile("w+")
        self.overrides = overrides
        self.process = subprocess.Popen(words, env=outside(env), stdin=subprocess.DEVNULL, stdout=self.out,
                                        stderr=self.err, start_new_session=True, cwd=cwd)

    def text(self, which="err"):
        return os.pread(getattr(self, which).fileno(), 1 << 22, 0).decode(errors="replace")

    def wait_for(self, what, limit_s=40):
        deadline = time.monotonic() + limit_s
        while what not in self.text():
            assert time.monotonic() < deadline and self.process.poll() is None, f"no '{what}': {self.text()}"
            time.sleep(0.02)
        return self

    def report(self, limit_s=40):
        """Waits for the end, which must be a good one."""
        code = self.process.wait(limit_s)
        assert code == 0, f"exit code {code}\n{self.text()}"
        return json.loads(self.text("out").strip().splitlines()[-1])

    def end(self):
        names = [text for text in self.overrides if text.startswith("name=")]
        result = subprocess.run([PENSTOCK, "serve", "--stop", self.job, *names], env=outside(self.env), timeout=30,
                                capture_output=True, text=True)
        assert result.returncode == 0, result.stderr + self.text()
        return self.report()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
