"""DistributedDataParallel and FSDP over two processes, under mpirun and under torchrun beside a `penstock serve`: the same
losses, to the last digit, as one process has that loads the global batch itself."""

import functools
import os
import sys
import tempfile

from jobs import PENSTOCK, mpirun_words, run_tests, skip_without_mpirun, write_job
from leftovers import no_leftovers, run
from photos import PHOTOS, WORK
from trainers import Serving

skip_without_mpirun()
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "distributed_program.py")
ALONE = write_job(WORK, PHOTOS, trainers=1, name="alone.yaml")
TWO = write_job(WORK, PHOTOS, trainers=2, name="two.yaml")
FIXED = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def losses(command, env):
    """Of each rank, in order. The command's last word says how to train."""
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        done = run([*command[:-1], folder, command[-1]], 120, env={**env, **FIXED})
        assert done.returncode == 0, done.stderr[-4000:]
        out = []
        for rank in range(2):
            with open(os.path.join(folder, str(rank))) as file:
                out.append(file.read().splitlines())
        return out


def program(job, how, *before):
    with no_leftovers(wait_s=8) as env:
        return losses([*before, sys.executable, PROGRAM, job, how], env)


@functools.lru_cache(maxsize=1)
def expected():
    return program(ALONE, "alone")


def check_under_mpirun(how):
    found = program(TWO, how, *mpirun_words(4), PENSTOCK, "run", TWO, "--quiet", "--")
    assert found == expected(), (how, found, expected())


def test_ddp():
    check_under_mpirun("ddp")
    assert [len(set(one)) for one in expected()] == [6, 6], expected()  # 3 steps of 2 x 16, 2 epochs


def test_fsdp():
    check_under_mpirun("fsdp2")
    check_under_mpirun("fsdp1")


def test_torchrun_beside_a_serving_job():
    with no_leftovers(wait_s=8) as env, Serving(TWO, env, ranks=4) as serving:
        serving.wait_for("--stop")
        for _ in range(2):  # the second time the loaders are there already
            found = losses([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d",
                            "--rdzv-endpoint=localhost:0", f"--log-dir={WORK}", PROGRAM, TWO, "ddp"],
                           {**env, "PENSTOCK_ATTACH": "1"})
            assert found == expected(), (found, expected())
        serving.end()


if __name__ == "__main__":
    run_tests(globals())
