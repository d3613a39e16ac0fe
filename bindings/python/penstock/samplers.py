"""torch's samplers, with torch's names and orders, index for index; usable in torch's DataLoader and in penstock's.

    sampler = penstock.DistributedSampler(dataset, shuffle=True, seed=0)      # torch.utils.data.DistributedSampler's
    for epoch in range(90):
        sampler.set_epoch(epoch)
        for batch in torch.utils.data.DataLoader(dataset, batch_size=64, sampler=sampler): ...

    torch.utils.data.DataLoader(dataset, batch_sampler=penstock.BatchSampler(sampler, 64, drop_last=True))
    penstock.DataLoader("job.yaml", split="train", sampler=sampler)

Orders are made in C++; torch need not be installed. One difference from torch: RandomSampler and WeightedRandomSampler
take a `seed` and have `set_epoch`, and draw under manual_seed(seed + epoch), as DistributedSampler does, where torch's
draw from a generator whose state depends on what was drawn before. So any epoch can be made again alone, and a run can
be resumed. Given a torch `generator`, they draw from that, as torch's do.
"""

from __future__ import annotations

import array
import itertools
import operator
from typing import Any, Iterable, Iterator, List, Optional, Sequence, Sized, Union

from . import _job, _penstock
from ._place import place
from .errors import UsageError

__all__ = ["BatchSampler", "DistributedSampler", "RandomSampler", "SequentialSampler", "WeightedRandomSampler"]


def _size_of(dataset: Union[Sized, int]) -> int:
    if not hasattr(dataset, "__index__") and not hasattr(dataset, "__len__"):
        raise UsageError(f"a {type(dataset).__name__} has no len()", "give a dataset, or the number of its samples")
    size = operator.index(dataset) if hasattr(dataset, "__index__") else len(dataset)
    if not 0 <= size < 2**63:
        raise UsageError(f"a dataset of {size} samples")
    return size


def _positive(name: str, value: Any) -> int:
    number = _job.integer(name, value)
    if number <= 0:
        raise UsageError(f"{name}={value!r}", f"{name} is a positive integer")
    return number


def _torch(why: str):
    try:
        import torch
    except ImportError:
        raise UsageError(f"{why} needs torch", "install torch, or leave that out") from None
    return torch


class _Epochs:
    """What samplers that draw under manual_seed(seed + epoch) have in common."""

    seed: int = 0
    epoch: int = 0

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next `iter()`."""
        epoch = _job.integer(f"set_epoch({epoch!r})", epoch)
        if not 0 <= epoch < 2**63:
            raise UsageError(f"set_epoch({epoch}): epochs count from 0 to 2^63 - 1")
        self.epoch = epoch

    def _seed_now(self) -> int:
        return (self.seed + self.epoch) % 2**64


class SequentialSampler:
    """0, 1, 2, … `data_source` is anything with `len`, or the number of samples."""

    def __init__(self, data_source: Union[Sized, int]) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return _size_of(self.data_source)


class _Advancing(_Epochs):
    """One more epoch with every iteration, unless set_epoch was called since the last: torch's DataLoader calls set_epoch on
    nobody, and an iteration in the same order again is not what a random sampler is for."""

    _passed = False
    said_epoch = 0  # by set_epoch: a loader follows that, and not what iterations have counted

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.said_epoch, self._passed = self.epoch, False

    def _begin_iteration(self) -> None:
        if self._passed:
            self.epoch += 1
        self._passed = True


class RandomSampler(_Advancing):
    """Every sample once, in the order of `torch.randperm` under manual_seed(seed + epoch); every iteration is a new epoch.

    num_samples
        Draw so many instead: whole permutations and part of one, or with `replacement` each by itself.
    generator
        A torch.Generator to draw from instead of seed and epoch: torch's own RandomSampler, which then needs torch.
    """

    def __init__(self, data_source: Union[Sized, int], replacement: bool = False, num_samples: Optional[int] = None,
                 generator: Any = None, *, seed: int = 0) -> None:
        if num_samples is not None:
            num_samples = _positive("num_samples", num_samples)
        if not isinstance(replacement, bool):
            raise UsageError(f"replacement={replacement!r}", "say True or False")
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator
        self.seed = _job.integer("seed", seed)

    @property
    def num_samples(self) -> int:
        return _size_of(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        size = _size_of(self.data_source)
        if self.generator is not None:
            data = _torch("RandomSampler(generator=...)").utils.data
            return iter(data.RandomSampler(range(size), self.replacement, self._num_samples, self.generator))
        self._begin_iteration()
        return iter(_penstock.random_order(size, self.replacement, self.num_samples, self._seed_now()))

    def __len__(self) -> int:
        return self.num_samples


class DistributedSampler(_Epochs):
    """The share of one rank: places rank, rank + num_replicas, … of the epoch's order, which is first padded from its
    head (or with `drop_last` cut) to a multiple of num_replicas.

    num_replicas, rank
        Default: torch.distributed where it is initialised, else RANK and WORLD_SIZE.
    """

    def __init__(self, dataset: Union[Sized, int], num_replicas: Optional[int] = None, rank: Optional[int] = None,
                 shuffle: bool = True, seed: int = 0, drop_last: bool = False) -> None:
        if num_replicas is None or rank is None:
            world, here = place()
            if world is None:
                raise UsageError("DistributedSampler does not know its place among the ranks", "initialise "
                                 "torch.distributed, or set RANK and WORLD_SIZE, or give num_replicas and rank")
            num_replicas = world if num_replicas is None else num_replicas
            rank = here if rank is None else rank
        num_replicas, rank = _positive("num_replicas", num_replicas), _job.integer("rank", rank)
        if not 0 <= rank < num_replicas:
            raise UsageError(f"rank={rank} of num_replicas={num_replicas}", "ranks count from 0")
        size = _size_of(dataset)
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = bool(shuffle)  # torch takes 0 and 1 as well
        self.seed = _job.integer("seed", seed)
        self.drop_last = bool(drop_last)
        self.num_samples = size // num_replicas if drop_last else -(-size // num_replicas)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self) -> Iterator[int]:
        return iter(_penstock.distributed_order(_size_of(self.dataset), self.num_replicas, self.rank, self.shuffle,
                                                self.seed % 2**64, self.drop_last, self.epoch))

    def __len__(self) -> int:
        return self.num_samples


class WeightedRandomSampler(_Advancing):
    """Indices drawn by weight: `torch.multinomial(weights, num_samples, replacement)` under manual_seed(seed + epoch).

    weights
        One for every sample, 0 or more; they need not add up to 1.
    replacement
        Without it (and for a single draw) torch's own numbers depend on how torch was built, so torch draws them itself
        and has to be installed.
    generator
        A torch.Generator to draw from instead of seed and epoch; needs torch.
    """

    def __init__(self, weights: Sequence[float], num_samples: int, replacement: bool = True, generator: Any = None, *,
                 seed: int = 0) -> None:
        num_samples = _positive("num_samples", num_samples)
        if not isinstance(replacement, bool):
            raise UsageError(f"replacement={replacement!r}", "say True or False")
        try:
            self.weights = array.array("d", weights.tolist() if hasattr(weights, "tolist") else weights)
        except (TypeError, ValueError):
            raise UsageError(f"weights: a {type(weights).__name__} is no list of numbers",
                             "give one for every sample") from None
        if not replacement and num_samples > len(self.weights):
            raise UsageError(f"{num_samples} draws without replacement from {len(self.weights)} samples")
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator
        self.seed = _job.integer("seed", seed)

    def __iter__(self) -> Iterator[int]:
        if self.generator is None:
            self._begin_iteration()
        if self.generator is None and self.replacement and self.num_samples > 1:
            return iter(_penstock.weighted_order(self.weights, self.num_samples, self._seed_now()))
        torch = _torch("WeightedRandomSampler with a generator, without replacement, or of one draw")
        generator = self.generator
        if generator is None:
            generator = torch.Generator()
            generator.manual_seed(self.seed + self.epoch)
        weights = torch.as_tensor(self.weights, dtype=torch.double)
        return iter(torch.multinomial(weights, self.num_samples, self.replacement, generator=generator).tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler:
    """What a sampler gives, in lists of `batch_size`; the last may be shorter, unless `drop_last`."""

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        if not isinstance(drop_last, bool):
            raise UsageError(f"drop_last={drop_last!r}", "say True or False")
        if not (hasattr(sampler, "__iter__") or hasattr(sampler, "__getitem__")):
            raise UsageError(f"sampler={sampler!r}", "give an iterable of indices")
        self.sampler = sampler
        self.batch_size = _positive("batch_size", batch_size)
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[List[int]]:
        indices = iter(self.sampler)
        while True:
            batch = list(itertools.islice(indices, self.batch_size))
            if not batch or (self.drop_last and len(batch) < self.batch_size):
                return
            yield batch

    def __len__(self) -> int:
        samples = len(self.sampler)  # type: ignore[arg-type]
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)
