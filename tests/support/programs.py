"""Running the programs of examples/: alone, as several processes, and under mpirun, with sums of floats in one order.

    program = Program("cifar10", "train.py", job)
    said = program.alone("--max-steps", "2")              # its output; an AssertionError with all of it where it fails
    said = program.under_mpirun(4, "--max-steps", "2", overrides=["roles.trainers=1"])
    losses(said)                                          # ["step 1 loss 2.3", ...]
"""

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile

from jobs import PENSTOCK, mpirun_words, skip_without_mpirun
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
    def __init__(self, folder, name, job, python=sys.executable):
        self.words = [python, os.path.join(EXAMPLES, folder, name)]
        self.job = job

    @staticmethod
    def _end(words, limit_s, code, env):
        done = run(words, limit_s, env={**env, **FIXED})
        assert (done.returncode == 0) == (code == 0), f"{words}\n{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if code == 0 else done.stdout + done.stderr

    def alone(self, *words, code=0, limit_s=LIMIT_S):
        with no_leftovers() as env:
            return self._end([*self.words, *words], limit_s, code, env)

    def under_mpirun(self, ranks, *words, overrides=(), code=0, limit_s=LIMIT_S):
        with no_leftovers() as env:
            return self._end([*mpirun_words(ranks), PENSTOCK, "run", self.job, "--quiet", *overrides, "--", *self.words, *words],
                             limit_s, code, env)

    def several(self, count, *words, limit_s=LIMIT_S):
        """So many processes as torchrun would start them, each loading for itself; the first one's output."""
        port = str(free_port())
        with no_leftovers() as env:
            started = []
            for rank in range(count):
                place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
                         "MASTER_PORT": port}
                started.append(subprocess.Popen([*self.words, *words], env={**env, **FIXED, **place}, stdout=subprocess.PIPE,
                                                stderr=subprocess.PIPE, text=True))
            ends = [one.communicate(timeout=limit_s) for one in started]
            assert all(one.returncode == 0 for one in started), ends
        return ends[0][0]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
