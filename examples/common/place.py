"""Where this process stands among the trainers, and what they do together.

    with joined("auto") as place:         # torch.distributed lives as long, where there are several
        loss = mean_over_ranks(loss, place)

RANK, WORLD_SIZE and LOCAL_RANK say it (torchrun and `penstock run` set them), else Slurm's variables; without either this is
the only one.
"""

import contextlib
import dataclasses
import datetime
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_VARIABLES = (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"))


@dataclasses.dataclass(frozen=True)
class Place:
    rank: int
    world_size: int
    local_rank: int  # on this node
    device: torch.device

    @property
    def first(self) -> bool:
        """Of all: the one that prints, logs and saves."""
        return self.rank == 0

    @property
    def gpu(self) -> "torch.device | None":
        """This process's GPU, as penstock.DataLoader's `device` takes it; None where it trains on the CPU."""
        return self.device if self.device.type == "cuda" else None


def _numbers():
    for names in _VARIABLES:
        # A batch script has Slurm's numbers too, and is one process: only srun's tasks have a step.
        if names[0].startswith("SLURM") and not os.environ.get("SLURM_STEP_ID", "").isdigit():
            continue
        if names[0] in os.environ and names[1] in os.environ:
            return tuple(int(os.environ.get(name, 0)) for name in names)
    return 0, 1, 0


def _device(wanted: str, local_rank: int) -> torch.device:
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise SystemExit(f"--device {wanted}: say cpu, cuda or cuda:1") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit(f"--device {wanted}: torch sees no GPU here; --device cpu trains without")
        if device.index is None:
            if local_rank >= torch.cuda.device_count():
                raise SystemExit(f"local rank {local_rank} has no GPU of its own: this node has {torch.cuda.device_count()}; "
                                 "start as many processes a node as it has GPUs")
            device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    return device


@contextlib.contextmanager
def joined(device: str = "auto", dist_url: str = "env://"):
    """This process's place. With several it waits until all are there; `dist_url`: where they meet, "tcp://HOST:PORT" or, by
    MASTER_ADDR and MASTER_PORT, "env://"."""
    rank, world_size, local_rank = _numbers()
    place = Place(rank, world_size, local_rank, _device(device, local_rank))
    if world_size > 1:
        dist.init_process_group("nccl" if place.gpu else "gloo", init_method=dist_url, rank=rank,
                                world_size=world_size, timeout=datetime.timedelta(minutes=10))
    try:
        yield place
    finally:  # its threads must not outlive the interpreter
        if world_size > 1:
            dist.destroy_process_group()


def in_parallel(model: torch.nn.Module, place: Place) -> torch.nn.Module:
    """The network whose gradients are the mean of all processes'; with one process, the network itself. Rank 0's weights
    become everybody's."""
    if place.world_size == 1:
        return model
    return DistributedDataParallel(model, device_ids=[place.gpu] if place.gpu else None)


def sum_over_ranks(numbers, place: Place):
    """Of each of these numbers, as a list of floats: counts and sums, so that a mean is over all samples of all ranks."""
    sums = torch.tensor([float(number) for number in numbers], dtype=torch.float64, device=place.gpu)
    if place.world_size > 1:
        dist.all_reduce(sums)
    return sums.tolist()


def mean_over_ranks(value: torch.Tensor, place: Place) -> float:
    """Of one number a rank, such as a step's loss."""
    return sum_over_ranks([value.detach()], place)[0] / place.world_size
