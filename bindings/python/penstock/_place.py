"""Where this process stands among the ranks of a program, and of a job."""

from __future__ import annotations

import os
import sys
from typing import Optional, Tuple

from .errors import UsageError


def has_receiver() -> bool:
    """Was it started by `penstock run`, whose loaders are ranks of their own, on this node or another?"""
    return bool(os.environ.get("PENSTOCK_RECEIVER"))


def of_distributed() -> Tuple[Optional[int], Optional[int]]:
    """(world size, rank) of torch.distributed where it is initialised, else (None, None)."""
    distributed = sys.modules.get("torch.distributed")  # a program that uses it has imported it
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size(), distributed.get_rank()
    return None, None


def place() -> Tuple[Optional[int], Optional[int]]:
    """The same, or RANK and WORLD_SIZE where those are set."""
    world, rank = of_distributed()
    if world is None and "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        try:
            return int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
        except ValueError:
            raise UsageError(f"RANK={os.environ['RANK']} and WORLD_SIZE={os.environ['WORLD_SIZE']} are no numbers",
                             "unset them, or start the program with torchrun or `penstock run`") from None
    return world, rank
