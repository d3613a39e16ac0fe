"""Running the programs of examples/: alone, as several processes, and under `penstock launch`, with sums of floats in one order.

    program = Program("cifar10", "train.py", job)
    said = program.alone("--max-steps", "2")              # its output; an AssertionError with all of it where it fails
    said = program.launched(4, "--max-steps", "2", overrides=["roles.trainers=1"])
    losses(said)                                          # ["step 1 loss 2.3", ...]

Where no --output is among the words, the run gets a folder of its own.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile

from forked import Child
from jobs import FULL, PENSTOCK, free_port, skip_without_mpirun
from leftovers import no_leftovers, run

skip_without_mpirun()
try:
    import penstock  # noqa: F401
    import torch  # noqa: F401
    import torchvision  # noqa: F401
except ImportError as problem:
    print(f"SKIP: {problem}")
    sys.exit(77)

WORK = tempfile.mkdtemp(prefix="programs-test-")
atexit.register(shutil.rmtree, WORK, ignore_errors=True)

EXAMPLES = os.path.join(os.environ["PENSTOCK_SOURCE"], "examples")
FIXED = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
LIMIT_S = 100


def losses(said):
    return [line for line in said.splitlines() if line.startswith("step ")]


class Program:
    """Alone it runs in a child of this process (forked.py); with PENSTOCK_FULL=1 in an interpreter of its own, as users start it."""

    def __init__(self, folder, name, job, python=sys.executable):
        self.words = self.torchrun_words = [python, os.path.join(EXAMPLES, folder, name)]
        self.job = job

    @staticmethod
    def _end(words, limit_s, code, env):
        if FULL or words[0] != sys.executable:
            done = run(words, limit_s, env={**env, **FIXED})
            ended, out, err = done.returncode, done.stdout, done.stderr
        else:
            child = Child(words, {**env, **FIXED})
            out, err = child.communicate(limit_s)
            ended = child.returncode
        log = f"{words}\n{ended}\n{out}\n{err}"
        assert ended == code, log
        assert code == 0 or "Traceback" not in log or "penstock.errors." in log, log  # its own errors may be shown so
        return out if code == 0 else out + err

    def _with_output(self, words):
        own = any(word == "--output" or word.startswith("output=") for word in words) or words[:1] in (("lists",), ("evaluate",))
        return words if own else (*words, *self.output_words(tempfile.mkdtemp(dir=WORK)))

    def output_words(self, folder):
        return "--output", folder

    def alone(self, *words, code=0, limit_s=LIMIT_S):
        words = self._with_output(words)
        with no_leftovers() as env:
            return self._end([*self.words, *words], limit_s, code, env)

    def launched(self, ranks, *words, overrides=(), code=0, limit_s=LIMIT_S):
        """By `penstock launch --run` on so many ranks, of which the job says how many are trainers."""
        words = self._with_output(words)
        with no_leftovers() as env:
            return self._end([PENSTOCK, "launch", "--run", "-n", str(ranks), self.job, "--quiet", *overrides, "--", *self.words, *words],
                             limit_s, code, env)

    def by_torchrun(self, count, *words, limit_s=LIMIT_S):
        words = self._with_output(words)
        with no_leftovers() as env:
            return self._end([self.torchrun_words[0], "-m", "torch.distributed.run", "--nproc_per_node", str(count), "--master_port",
                              str(free_port()), "--log_dir", tempfile.mkdtemp(dir=WORK), *self.torchrun_words[1:], *words], limit_s, 0, env)

    def several(self, count, *words, names=("RANK", "LOCAL_RANK", "WORLD_SIZE"), limit_s=LIMIT_S):
        """So many processes with their places in the variables of these names, each loading for itself; the first one's output."""
        words = self._with_output(words)
        port = str(free_port())
        with no_leftovers() as env, tempfile.TemporaryFile("w+") as others:
            started = []
            for rank in range(count):
                place = {**dict(zip(names, (str(rank), str(rank), str(count)))), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                started.append(subprocess.Popen([*self.words, *words], env={**env, **FIXED, **place}, stdout=subprocess.PIPE if rank == 0 else others,
                                                stderr=others, text=True))
            try:
                said = started[0].communicate(timeout=limit_s)[0]
                codes = [one.wait(limit_s) for one in started]
            finally:
                for one in started:
                    one.kill()
                others.seek(0)
                log = others.read()
            assert codes == [0] * count, (codes, said, log)
        return said


def weights(folder, epoch):
    import torch
    return torch.load(os.path.join(folder, f"epoch-{epoch}.pt"))["model"]


def equal(one, other):
    import torch
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
