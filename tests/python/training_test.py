"""examples/train_ddp.py: the losses are equal to the last digit, whoever loads, and over a checkpoint."""

import os
import socket
import subprocess
import sys
import tempfile

from jobs import FULL, demo_photos, mpirun_words, PENSTOCK, run_tests, skip_without_mpirun, write_job
from leftovers import no_leftovers, run
from photos import WORK

skip_without_mpirun()
try:
    import torch  # noqa: F401
except ImportError as problem:
    print(f"SKIP: {problem}")
    sys.exit(77)

PROGRAM = os.path.join(os.environ["PENSTOCK_SOURCE"], "examples", "train_ddp.py")
job = write_job(WORK, demo_photos(), trainers=2, name="train.yaml")
# One thread: sums of floats in one order.
FIXED = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def losses(text):
    return [line for line in text.splitlines() if line.startswith("epoch ")]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def by_themselves(*words):
    """Two trainers as torchrun would start them, each loading in threads of its own."""
    port = str(free_port())
    with no_leftovers() as env:
        trainers = []
        for rank in range(2):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": port}
            trainers.append(subprocess.Popen([sys.executable, PROGRAM, job, *words], env={**env, **FIXED, **place},
                                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        ends = [trainer.communicate(timeout=60) for trainer in trainers]
        assert all(trainer.returncode == 0 for trainer in trainers), ends
        assert losses(ends[1][0]) == []
        return losses(ends[0][0])


def under_mpirun(*words):
    with no_leftovers() as env:
        done = run([*mpirun_words(4), PENSTOCK, "run", job, "--quiet", "--", sys.executable, PROGRAM, job, *words], 60,
                   env={**env, **FIXED})
    assert done.returncode == 0, done.stderr
    return losses(done.stdout)


def test_the_same_losses_whoever_loads():
    expected = by_themselves()
    assert len(expected) == 6 and len(set(expected)) == 6, expected  # 80 pictures, 2 x 16 a step, 2 epochs
    assert under_mpirun() == expected


def test_a_checkpoint_goes_on_where_it_stopped():
    if not FULL:
        print("a checkpoint, begun alone and ended under mpirun: with PENSTOCK_FULL=1 only")
        return
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        words = ("--checkpoint", os.path.join(folder, "checkpoint.pt"))
        first = by_themselves("--epochs", "1", *words)
        assert first + under_mpirun("--epochs", "3", *words) == by_themselves("--epochs", "3")


if __name__ == "__main__":
    run_tests(globals())
