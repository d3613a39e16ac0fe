"""What the words of torch's DataLoader mean here: samplers, seeds, numbers of workers.

    order = order_of(dataset, shuffle, sampler, batch_sampler, …)     # who decides the order, and what the job says of it

torch's own DistributedSampler, RandomSampler and SequentialSampler, and a BatchSampler over one of them, are recognised by their
exact type: the library then makes the same order itself (of a RandomSampler: one of its own, as torch draws its seed), so it
balances it and can resume it with another number of ranks. Any other sampler is evaluated by the program at the start of each
iteration.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple, Optional

from . import _job
from ._place import has_receiver, place
from ._program_order import Flattened, sampler_with_epoch
from ._torch_datasets import type_name
from .errors import UsageError, warn

_SEEDS = 2**63


def seed_of(generator: Any) -> int:
    """Of a torch.Generator, as a job's."""
    return generator.initial_seed() % _SEEDS


class Order(NamedTuple):
    sampler: Any = None                   # of the program, evaluated by it; None: the library makes the order
    batch_size: Optional[int] = None
    shuffle: Optional[bool] = None
    drop_last: Optional[bool] = None      # the last batch, where it is short
    drop_uneven: Optional[bool] = None    # DistributedSampler's drop_last
    seed: Optional[int] = None
    seed_is_torchs: bool = False          # nobody named it: a state that is loaded may bring its own
    num_replicas: Optional[int] = None
    rank: Optional[int] = None
    followed: Any = None                  # a sampler whose set_epoch() is meant for the loader
    given: Any = None                     # the sampler that the program knows
    seeded_by: Any = None                 # the torch.Generator whose seed that is


def order_of(dataset: Any, torchs: bool, *, batch_size: Optional[int], shuffle: Optional[bool], sampler: Any, batch_sampler: Any,
             drop_last: Optional[bool], generator: Any, seed: Optional[int], num_replicas: Any, rank: Optional[int],
             split: Optional[str]) -> Order:
    """UsageError where arguments exclude each other."""
    order = Order(batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
    if generator is not None and not hasattr(generator, "initial_seed"):
        raise UsageError(f"generator={generator!r}", "give a torch.Generator; a number is a seed: seed=…")
    if generator is not None and seed is not None:
        raise UsageError("generator and seed both decide the draws", "give one of them")
    if batch_sampler is not None:
        if batch_size not in (None, 1) or shuffle or sampler is not None or drop_last:
            raise UsageError("batch_sampler excludes batch_size, shuffle, sampler and drop_last",
                             "it decides all of that itself")
        order = order._replace(given=batch_sampler)
        if torchs and num_replicas is None and type_name(batch_sampler) == _BATCHES and _is_plain(batch_sampler.sampler, dataset):
            order = order._replace(batch_size=batch_sampler.batch_size, drop_last=batch_sampler.drop_last)
            return _placed(_native(order, batch_sampler.sampler, generator, torchs), torchs)
        flat = Flattened(batch_sampler, split)
        order = order._replace(followed=sampler_with_epoch(flat), sampler=flat, batch_size=flat.batch_size, drop_last=False,
                               shuffle=None, num_replicas=num_replicas, rank=rank)
        return _placed(_seeded(order, generator, torchs), torchs)
    if sampler is None:
        return _placed(_seeded(order._replace(num_replicas=num_replicas, rank=rank), generator, torchs), torchs)
    if not (hasattr(sampler, "__iter__") or hasattr(sampler, "__getitem__")):
        raise UsageError(f"sampler={sampler!r}", "give an iterable of indices")
    if shuffle:
        raise UsageError("sampler and shuffle exclude each other", "shuffle in the sampler")
    order = order._replace(given=sampler)
    if num_replicas is None and torchs and _is_plain(sampler, dataset):
        return _placed(_native(order, sampler, generator, torchs), torchs)
    order = order._replace(followed=sampler_with_epoch(sampler), sampler=sampler, shuffle=None, num_replicas=num_replicas, rank=rank)
    return _placed(_seeded(order, generator, torchs), torchs)


_DISTRIBUTED = "torch.utils.data.distributed.DistributedSampler"
_RANDOM = "torch.utils.data.sampler.RandomSampler"
_SEQUENTIAL = "torch.utils.data.sampler.SequentialSampler"
_BATCHES = "torch.utils.data.sampler.BatchSampler"


def _is_plain(sampler: Any, dataset: Any) -> bool:
    """One whose order the library can make: of the whole data set, nothing repeated."""
    kind = type_name(sampler)
    over = getattr(sampler, "dataset" if kind == _DISTRIBUTED else "data_source", None)
    if kind not in (_DISTRIBUTED, _RANDOM, _SEQUENTIAL) or not hasattr(over, "__len__") or not hasattr(dataset, "__len__") or \
            len(over) != len(dataset):
        return False
    return kind != _RANDOM or (not sampler.replacement and sampler._num_samples is None)


def _native(order: Order, sampler: Any, generator: Any, torchs: bool) -> Order:
    kind = type_name(sampler)
    if kind == _DISTRIBUTED:
        if order.seed is not None and order.seed != sampler.seed and sampler.shuffle:
            raise UsageError(f"seed={order.seed}, and the DistributedSampler has seed={sampler.seed}", "give one of them")
        return order._replace(shuffle=bool(sampler.shuffle), seed=sampler.seed if order.seed is None else order.seed,
                              drop_uneven=sampler.drop_last, num_replicas=sampler.num_replicas, rank=sampler.rank,
                              followed=sampler)
    shuffled = kind == _RANDOM
    order = order._replace(shuffle=shuffled)
    if shuffled and getattr(sampler, "generator", None) is not None:
        generator = sampler.generator
    return _seeded(order, generator, torchs)


def _seeded(order: Order, generator: Any, torchs: bool) -> Order:
    if generator is not None:
        return order._replace(seed=seed_of(generator), seeded_by=generator)
    if order.seed is None and torchs and "torch" in sys.modules:
        torch = sys.modules["torch"]
        # Replicas and trainers of one job have to agree, and torch's generator begins in each process with another number where
        # nobody seeds it: theirs is DistributedSampler's. As torch's own loaders, two others that shuffle draw different orders.
        if order.num_replicas is not None or has_receiver():
            seed = 0
        else:
            seed = int(torch.empty((), dtype=torch.int64).random_().item()) if order.shuffle else torch.initial_seed()
        return order._replace(seed=seed % _SEEDS, seed_is_torchs=True)
    return order


def _placed(order: Order, torchs: bool) -> Order:
    """Without a sampler each rank gets everything of a torch data set, as from torch's DataLoader."""
    if order.num_replicas == "auto":
        if order.rank is not None:
            raise UsageError('num_replicas="auto" finds out the rank as well', "leave rank out")
        return order._replace(num_replicas=None)
    if order.num_replicas is not None or order.rank is not None or not torchs or has_receiver():
        return order
    ranks = place()[0]
    if ranks is None or ranks == 1 or order.sampler is not None:
        return order
    warn(f"each of {ranks} ranks gets the whole data set, as from torch's DataLoader without a DistributedSampler; "
                  'num_replicas="auto" gives each its share')
    return order._replace(num_replicas=1, rank=0)


class Machinery(NamedTuple):
    """Words about who does the work."""

    num_workers: int
    timeout_s: float
    keys: dict  # of the job


def machinery(num_workers: Optional[int], prefetch_factor: Optional[int], timeout: Any, multiprocessing_context: Any,
              pin_memory_device: str) -> Machinery:
    """Warns, once each, of what has no meaning here."""
    keys: dict = {}
    workers = 0 if num_workers is None else _job.whole("num_workers", num_workers)
    if workers < 0:
        raise UsageError(f"num_workers={workers}: it is 0 or more")
    elsewhere = has_receiver()
    if workers and not elsewhere:
        keys["loader__threads"] = workers
    if prefetch_factor is not None:
        factor = _job.whole("prefetch_factor", prefetch_factor)
        if factor < 1:
            raise UsageError(f"prefetch_factor={factor}: it is 1 or more")
        if not elsewhere:
            keys["loader__prefetch"] = factor * max(1, workers)
    if elsewhere and (workers or prefetch_factor is not None):
        _note("num_workers and prefetch_factor have no meaning under `penstock run`, whose loaders are ranks of their own: "
              "loader.threads and loader.prefetch of the job say it")
    if not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise UsageError(f"timeout={timeout!r}", "say seconds: 0 is the job's trainer.timeout_s")
    if multiprocessing_context is not None:
        _note("multiprocessing_context has no meaning here: loaders are threads, and Python workers begin in one way")
    if pin_memory_device:
        _note("pin_memory_device has no meaning here: device= copies batches there")
    return Machinery(workers, min(float(timeout), 1e9), keys)


_noted: set = set()


def _note(text: str) -> None:
    if text not in _noted:
        _noted.add(text)
        warn(text)
