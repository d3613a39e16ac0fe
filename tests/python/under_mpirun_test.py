"""A Python program under `mpirun … penstock run`: the same stream as embedded, its stats, its state, and torch's data sets."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import torch

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
job, folder, output = sys.argv[1:]
train = penstock.DataLoader(job, split="train", output=output)
val = penstock.DataLoader(job, split="val", output="numpy")
out = {"place": [train.num_replicas, train.rank, train.embedded, repr(train)], "rank": os.environ["RANK"], "states": []}
for epoch in range(2):
    for images, labels in train:
        out["states"].append(train.state_dict())
        images += 1
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
    output = "torch" if FULL else "numpy"  # importing torch takes most of such a program's time
    for ranks in (3, 4, 5) if FULL else (4,):
        with no_leftovers(wait_s=8) as env:
            result = run_job(job, ranks=ranks, program=[sys.executable, program, job, folder, output], env=env, timeout=90)
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

_OWN_DATA = """
import os, sys, warnings
import torch
from torch.utils.data import Dataset, Subset
from torchvision import transforms as V
from torchvision.datasets import ImageFolder
import penstock

STEPS = V.Compose([V.Resize(40), V.CenterCrop(32), V.ToTensor()])


class Own(Dataset):
    \"\"\"Too large for a job's text; torch's pickle of its tensors differs from one process to the next.\"\"\"

    def __init__(self, root):
        self.inner = ImageFolder(root, STEPS)
        self.weights = torch.rand(200_000, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        picture, label = self.inner[index]
        return picture, label, self.weights[index]


def seen(root, workers, **place):
    kinds = {"subset": lambda: Subset(ImageFolder(root, STEPS), range(60, 0, -2)), "own": lambda: Own(root)}
    said = {}
    for kind, make in kinds.items():
        with penstock.DataLoader(make(), 4, shuffle=True, num_workers=workers, split=kind, **place) as loader:
            said[kind] = [[batch.indices.tolist(), *(value.clone() for value in batch)] for batch in loader]
    return said


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    root, out, *replica = sys.argv[1:]
    said = seen(root, 1, **({"num_replicas": 2, "rank": int(replica[0])} if replica else {}))
    torch.save(said, os.path.join(out, replica[0] if replica else os.environ["RANK"]))
"""


def test_data_sets_that_each_trainer_gives():
    """Lists and pickles that do not fit in a job's text stay in the programs' memory, and loaders of the node find them there. Nobody
    named a seed, and torch's own differ between processes: what ranks share is shuffled alike."""
    folder = tempfile.mkdtemp(dir=WORK)
    root = os.path.join(PHOTOS, "train")
    job = write_job(folder, PHOTOS, trainers=2)
    program = os.path.join(folder, "program.py")
    with open(program, "w") as file:
        file.write(_OWN_DATA)
    alone, together = os.path.join(folder, "alone"), os.path.join(folder, "together")
    for place in (alone, together):
        os.mkdir(place)
    if FULL:
        replicas = [subprocess.Popen([sys.executable, program, root, alone, rank]) for rank in "01"]
        assert [one.wait(90) for one in replicas] == [0, 0]
    else:  # in this process, which has imported torch: its seed of torch's is not that of the two programs below
        sys.path.insert(0, folder)
        import program as own_data
        for rank in range(2):
            torch.save(own_data.seen(root, 0, num_replicas=2, rank=rank), os.path.join(alone, str(rank)))
    with no_leftovers(wait_s=8) as env:
        result = run_job(job, ranks=4 if FULL else 3, program=[sys.executable, program, root, together], env=env, timeout=90)
    assert result.code == 0, result.log
    seen = {"subset": [], "own": []}
    for rank in "01":
        one, other = (torch.load(os.path.join(place, rank)) for place in (alone, together))
        for kind in seen:
            assert len(one[kind]) == len(other[kind]) > 3
            for (indices, *batch), (indices_too, *batch_too) in zip(one[kind], other[kind]):
                assert indices == indices_too and all(torch.equal(*pair) for pair in zip(batch, batch_too)), (kind, rank)
                seen[kind] += indices
    assert sorted(seen["subset"]) == list(range(2, 62, 2)) and sorted(seen["own"]) == list(range(80)), seen


run_tests(globals())
