"""`penstock.DataLoader(attach=True)`: fed by a `penstock serve`; killed and started again, the loaders stay."""

import os
import signal
import sys

from jobs import run_job, run_tests, write_job
from leftovers import no_leftovers, run
from photos import PHOTOS, WORK, raises
from trainers import Serving

import penstock

job = write_job(WORK, PHOTOS, trainers=1, name="attached.yaml")

PROGRAM = """
import os, signal, sys
import penstock
train = penstock.DataLoader(sys.argv[1], split="train", attach=True)
assert not train.embedded
for batch in train:
    if len(sys.argv) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
print(train.stats()["ranks"][0]["splits"]["train"]["ranges"][-1]["pixel_hash"])
"""


def attached(env, *words):
    return run([sys.executable, "-c", PROGRAM, job, *words], 30, env=env)


def test_fed_by_a_serving_job_again_and_again():
    expected = run_job(job).report["splits"]["train"]
    with no_leftovers() as env, Serving(job, env) as serving:
        serving.wait_for("--stop")
        first = attached(env)
        assert first.returncode == 0, first.stderr
        assert expected["pixel_hash"] in first.stdout, (expected, first.stdout)
        assert attached(env, "kill").returncode == -signal.SIGKILL
        again = attached(env)
        assert again.returncode == 0 and expected["pixel_hash"] in again.stdout, again.stderr
        serving.end()


def test_nobody_serves():
    raises(penstock.PeerLostError, lambda: penstock.DataLoader(job, "train", attach=True, trainer__timeout_s=1),
           "penstock serve")


def test_not_attached_by_mistake():
    os.environ["PENSTOCK_ATTACH"] = "1"
    try:
        with penstock.DataLoader(job, "train", attach=False) as loader:
            assert loader.embedded
    finally:
        del os.environ["PENSTOCK_ATTACH"]


if __name__ == "__main__":
    run_tests(globals())
