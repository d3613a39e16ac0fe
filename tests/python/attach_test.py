"""`penstock.DataLoader(attach=True)`: fed by a `penstock serve`; killed and started again, the loaders stay."""

import os
import shutil
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


GROWING = """
import os, shutil, sys
import penstock
old = penstock.DataLoader(sys.argv[1], split="train", attach=True)
passing = iter(old)
seen = [int(index) for index in next(passing).indices]
for number in range(int(sys.argv[4])):
    shutil.copy(sys.argv[2], os.path.join(sys.argv[3], f"0000-new-{os.getpid()}-{number}.jpg"))
new = penstock.DataLoader(sys.argv[1], split="train", attach=True)
fresh = sum(len(batch[1]) for batch in new)
for batch in passing:
    seen += [int(index) for index in batch.indices]
print(old.dataset_size, len(set(seen)), new.dataset_size, len(new), fresh)
"""


def test_files_that_come_while_it_serves():
    """A loader made later sees them, and a pass that runs keeps its list; so does the next program."""
    photos = os.path.join(WORK, "growing")
    shutil.copytree(PHOTOS, photos)
    folder = os.path.join(photos, "train", sorted(os.listdir(os.path.join(photos, "train")))[0])
    picture = os.path.join(folder, sorted(os.listdir(folder))[0])
    growing = write_job(WORK, photos, trainers=1, name="growing.yaml")
    with no_leftovers() as env, Serving(growing, env) as serving:
        serving.wait_for("--stop")
        for more, wanted in ((1, "80 80 81 6 96"), (0, "81 81 81 6 96"), (15, "81 81 96 6 96")):
            program = run([sys.executable, "-c", GROWING, growing, picture, folder, str(more)], 30, env=env)
            assert program.returncode == 0 and program.stdout.strip() == wanted, (program.stdout, program.stderr)
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
