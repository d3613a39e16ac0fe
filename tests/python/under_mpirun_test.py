"""A Python program under `mpirun … penstock run`: the same stream as embedded, its stats, and its state."""

import json
import os
import shutil
import sys
import tempfile

import penstock
from jobs import FULL, run_job, run_tests, write_job
from leftovers import no_leftovers
from photos import PHOTOS, WORK

if shutil.which("mpirun") is None:
    print("SKIP: no mpirun in PATH")
    sys.exit(77)

_PROGRAM = """
import json, os, sys
import penstock
job, folder = sys.argv[1:]
train = penstock.DataLoader(job, split="train")
val = penstock.DataLoader(job, split="val", output="numpy")
out = {"place": [train.num_replicas, train.rank, train.embedded, repr(train)], "rank": os.environ["RANK"], "states": []}
for epoch in range(2):
    for images, labels in train:
        out["states"].append(train.state_dict())
        images.add_(1)
    assert sum(batch.num_valid for batch in val) == val.num_samples
out["stats"] = train.stats()
with open(os.path.join(folder, out["rank"]), "w") as file:
    json.dump(out, file)
"""


def added(sums):
    return f"{sum(int(one, 16) for one in sums) % 2 ** 128:032x}"


def embedded(job):
    """{split: hashes} of two replicas, each embedded, and the states of the first."""
    parts, states = [], []
    for rank in range(2):
        with penstock.DataLoader(job, split="train", num_replicas=2, rank=rank) as train, \
                penstock.DataLoader(job, split="val", num_replicas=2, rank=rank) as val:
            for _ in range(2):
                for _ in train:
                    if rank == 0:
                        states.append(train.state_dict())
                for _ in val:
                    pass
            parts.append(train.stats()["splits"])
    return {name: tuple(added(part[name][key] for part in parts) for key in ("order_hash", "pixel_hash"))
            for name in ("train", "val")}, states


def test_the_same_stream_with_one_to_three_loaders():
    folder = tempfile.mkdtemp(dir=WORK)
    job = write_job(folder, PHOTOS, trainers=2)
    program = os.path.join(folder, "program.py")
    with open(program, "w") as file:
        file.write(_PROGRAM)
    wanted, states = embedded(job)
    for ranks in (3, 4, 5) if FULL else (3, 5):
        with no_leftovers(wait_s=8) as env:
            result = run_job(job, ranks=ranks, program=[sys.executable, program, job, folder], env=env, timeout=90)
        assert result.code == 0, result.log
        assert result.hashes() == wanted, (ranks, result.hashes(), wanted)
        for rank in range(2):
            with open(os.path.join(folder, str(rank))) as file:
                out = json.load(file)
            assert out["place"][:3] == [2, rank, False] and "embedded" not in out["place"][3], out["place"]
            assert out["states"] == states  # any rank may save any other's, and the embedded program's
            stats = out["stats"]
            assert [one["role"] for one in stats["ranks"]] == ["trainer"] and stats["images_per_s"] > 0
            part = stats["splits"]["train"]  # the receiver's whole split is this loader's: it is the only one
            assert [stats[key] for key in ("order_hash", "pixel_hash", "images", "batches")] == [
                part[key] for key in ("order_hash", "pixel_hash", "images", "batches")]
            assert "training program" in stats["bottleneck"] and "%" in stats["bottleneck"], stats["bottleneck"]
            os.remove(os.path.join(folder, str(rank)))


run_tests(globals())
