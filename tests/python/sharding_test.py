"""Which part of the data a process gets when it loads for itself."""

import os
import sys

import penstock
from forked import Child
from jobs import FULL, run_tests
from leftovers import no_leftovers
from photos import JOB, WORK, raises, script

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK",
         "SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "PMIX_RANK")


class Environment:
    """Exactly these variables among those that say something of ranks."""

    def __init__(self, **values):
        self.values = values

    def __enter__(self):
        self.before = {name: os.environ.pop(name, None) for name in NAMES}
        os.environ.update(self.values)

    def __exit__(self, *exc):
        for name in (*NAMES, *self.values):
            os.environ.pop(name, None)
        os.environ.update({name: value for name, value in self.before.items() if value is not None})


def opened(**more):
    with penstock.DataLoader(JOB, split="train", batch_size=4, output="numpy", **more) as loader:
        return loader.num_replicas, loader.rank, [batch.indices.tolist() for batch in loader]


def test_arguments_and_environment_say_the_same():
    with Environment():
        assert opened()[:2] == (1, 0)
        whole = opened(num_replicas=1, rank=0, overrides=["splits.train.batch_size=8"])[2]
        parts = [opened(num_replicas=2, rank=rank) for rank in range(2)]
        for step, rows in enumerate(zip(parts[0][2], parts[1][2])):
            assert [index for pair in zip(*rows) for index in pair] == whole[step]
    for rank in range(2):
        with Environment(RANK=str(rank), WORLD_SIZE="2"):
            assert opened() == parts[rank]
            assert opened(num_replicas=1, rank=0)[:2] == (1, 0)  # arguments come first
        with Environment(RANK=str(rank), WORLD_SIZE="2", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK=str(rank)):
            assert opened() == parts[rank]


def test_several_ranks_with_the_same_data():
    with Environment():
        parts = [opened(num_replicas=2, rank=rank) for rank in range(2)]
    for rank in range(4):
        with Environment(RANK=str(rank), WORLD_SIZE="4"):
            assert opened(ranks_per_replica=2) == parts[rank // 2]
            raises(penstock.ConfigError, lambda: opened(ranks_per_replica=3), "roles.ranks_per_replica is 3", "4 trainers")
    with Environment():
        raises(penstock.UsageError, lambda: opened(ranks_per_replica=2), "ranks_per_replica", "RANK")
        raises(penstock.UsageError, lambda: opened(ranks_per_replica=0), "ranks_per_replica=0")
    with Environment(RANK="one", WORLD_SIZE="2"):
        raises(penstock.UsageError, lambda: opened(ranks_per_replica=2), "RANK=one")


def test_refusals():
    with Environment():
        raises(penstock.UsageError, lambda: opened(num_replicas=2), "num_replicas and rank")
        raises(penstock.UsageError, lambda: opened(rank=0), "num_replicas and rank")
        raises(penstock.UsageError, lambda: opened(num_replicas=2, rank=2), "rank 2 of 2")
        raises(penstock.UsageError, lambda: opened(num_replicas=2, rank=-1), "rank -1")
        raises(penstock.UsageError, lambda: opened(num_replicas=0, rank=0), "0 replicas")
    for wrong in (dict(RANK="one", WORLD_SIZE="2"), dict(RANK="2", WORLD_SIZE="2"), dict(RANK="0", WORLD_SIZE="0"),
                  dict(RANK="0", WORLD_SIZE="2x"), dict(RANK="-1", WORLD_SIZE="2")):
        with Environment(**wrong):
            raises(penstock.UsageError, opened, "RANK=" + wrong["RANK"], "torchrun")
    for launcher in (dict(OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0"), dict(PMI_SIZE="2", PMI_RANK="1"),
                     dict(SLURM_STEP_NUM_TASKS="4", SLURM_NTASKS="4", SLURM_PROCID="0")):
        with Environment(**launcher):
            raises(penstock.UsageError, opened, "several tasks", "same data", "penstock run", "num_replicas and rank")
            assert opened(num_replicas=2, rank=1)[:2] == (2, 1)
    for alone in (dict(OMPI_COMM_WORLD_SIZE="1", OMPI_COMM_WORLD_RANK="0"),
                  dict(SLURM_NTASKS="4", SLURM_PROCID="0")):  # a batch script's own process is not one of its four
        with Environment(**alone):
            assert opened()[:2] == (1, 0)


# As `from mpi4py import MPI` does it where nobody launched the program: Open MPI makes a world of one process.
_WORLD_OF_ONE = """
import ctypes, ctypes.util, os, subprocess, sys
sys.path[:0] = {path!r}
import penstock
how = sys.argv[1]
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
if how == "MPI_Init":
    mpi = ctypes.CDLL(ctypes.util.find_library("mpi"), ctypes.RTLD_GLOBAL)
    assert mpi.MPI_Init(None, None) == 0
elif how == "setenv":
    assert libc.setenv(b"PMIX_RANK", b"0", 1) == 0
if how != "child":
    print("rank", libc.getenv(b"PMIX_RANK"))
with penstock.DataLoader({job!r}, split="train", batch_size=4, output="numpy") as loader:
    print("opened", loader.num_replicas, loader.rank, sum(1 for _ in loader))
if how == "MPI_Init":  # a worker that is started by it, with the same variables
    subprocess.run([sys.executable, __file__, "child"], check=True)
    assert mpi.MPI_Finalize() == 0
"""


def test_a_world_of_one_process():
    import ctypes.util
    text = _WORLD_OF_ONE.format(job=JOB, path=sys.path)
    with Environment():
        ways = {"setenv": 1} if FULL else {}
        if ctypes.util.find_library("mpi"):
            ways["MPI_Init"] = 2  # itself, and its child
        else:
            ways["setenv"] = 1
        for how, opened_times in ways.items():
            with no_leftovers() as env:
                result = script(text, args=[how], env=env)
            assert result.returncode == 0 and "rank b'0'" in result.stdout, (how, result.stdout, result.stderr[-2000:])
            assert result.stdout.count("opened 1 0 20") == opened_times, (how, result.stdout, result.stderr[-2000:])
        # One that a launcher of PMIx tasks has started is refused, whatever it does itself.
        for how in ("setenv", "nothing") if FULL else ("setenv",):
            result = script(text, args=[how], env=dict(os.environ, PMIX_RANK="0"))
            assert result.returncode != 0 and "PMIx launcher with several tasks" in result.stderr, (how, result.stderr)
        print(f"{len(ways)} ways of being alone")


_GLOO = """
import json, os, sys
import torch, torch.distributed as distributed
import penstock
torch.set_num_threads(1)
job, store, rank, out = sys.argv[1:]
distributed.init_process_group("gloo", init_method="file://" + store, world_size=2, rank=int(rank))
seen = {}
for name, more in (("each", {}), ("same", {"ranks_per_replica": 2})):
    with penstock.DataLoader(job, split="train", batch_size=4, **more) as loader:
        seen[name] = [loader.num_replicas, loader.rank, [batch.indices.tolist() for batch in loader]]
    distributed.barrier()
loader = penstock.DataLoader(job, split="train", batch_size=4)
total = torch.zeros(1, dtype=torch.int64)
for images, labels in loader:  # as DDP does it: a collective in every step
    total += labels.sum()
    distributed.all_reduce(total)
seen["total"] = int(total)
with open(out, "w") as file:
    json.dump(seen, file)
distributed.destroy_process_group()
"""


def test_torch_distributed():
    import json
    import subprocess
    import torch.distributed
    if not torch.distributed.is_available():
        print("this torch has no torch.distributed: not tried")
        return
    with Environment():
        wanted = [list(opened(num_replicas=2, rank=rank)) for rank in range(2)]
        alone = list(opened(num_replicas=1, rank=0))
        path = os.path.join(WORK, "gloo.py")
        with open(path, "w") as file:
            file.write(_GLOO)
        outs = [os.path.join(WORK, f"gloo{rank}.json") for rank in range(2)]
        with no_leftovers() as env:
            # The launcher's variables say nothing against torch.distributed.
            start = subprocess.Popen if FULL else Child
            processes = [start([sys.executable, path, JOB, os.path.join(WORK, "store"), str(rank), outs[rank]],
                               env=dict(env, OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK=str(rank)))
                         for rank in range(2)]
            try:
                codes = [process.wait(60) for process in processes]
            finally:
                for process in processes:
                    process.kill()
        assert codes == [0, 0], codes
        totals = []
        for rank, out in enumerate(outs):
            with open(out) as file:
                seen = json.load(file)
            assert seen["each"] == wanted[rank] and seen["same"] == alone
            totals.append(seen["total"])
        assert totals[0] == totals[1]


run_tests(globals())
