"""Who says a DataLoader's order: a program's own sampler (sampler=...), evaluated once an iteration, and checked on resuming; and what
the loader's own `sampler` and `batch_sampler` say of it.

A saved state says how long the order was and, of the replica that saved it, a digest. Resuming evaluates the sampler
for the state's epoch again; where it gives another order, going on in mid-epoch would repeat some samples and miss
others, so that is refused.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import operator
import sys
from typing import Any, Iterator, List, Mapping, Optional, Sequence, Tuple

from . import _penstock
from ._torch_datasets import type_name
from .errors import ConfigError, UsageError, as_raised
from .samplers import BatchSampler


# What does not end after so many indices never does.
_FEWEST, _PASSES = 1_000_000, 20


def send_epoch(epoch: int, *samplers: Any) -> None:
    """To the first of them that has a set_epoch: torch's BatchSampler has none itself, but its sampler may."""
    for one in samplers:
        if hasattr(one, "set_epoch"):
            one.set_epoch(epoch)
            return


def epoch_of(sampler: Any) -> Optional[int]:
    """The epoch that was said to a sampler: its `epoch`, as torch's have it, or `_epoch`. None of one that shows neither."""
    for name in ("said_epoch", "epoch", "_epoch"):  # the first of penstock's own
        with contextlib.suppress(TypeError):  # None, or another kind of thing
            return operator.index(getattr(sampler, name, None))  # type: ignore[arg-type]
    return None


def sampler_with_epoch(sampler: Any) -> Any:
    """It, or the one within a batch sampler, whose set_epoch() a program calls, and that shows the epoch it has; else None."""
    within = sampler.within if isinstance(sampler, Flattened) else (sampler,)
    return next((one for one in within if hasattr(one, "set_epoch") and epoch_of(one) is not None), None)


class Flattened:
    """A batch sampler as a sampler: the indices of its batches, which all have `batch_size` but the last."""

    def __init__(self, batch_sampler: Any, split: Optional[str]) -> None:
        self.batches = batch_sampler
        self._name = "the batch sampler" + (f" of split {split!r}" if split else "")
        size = getattr(batch_sampler, "batch_size", None)
        if size is None and _lists(batch_sampler):
            size = max(map(len, batch_sampler), default=1)
        if not isinstance(size, int) or size < 1:
            raise UsageError(f"{self._name} has no batch_size",
                             "give it an attribute batch_size: how many indices its batches have, but the last")
        self.batch_size = size

    @property
    def within(self) -> Tuple[Any, Any]:
        """Where a set_epoch() may be."""
        return self.batches, getattr(self.batches, "sampler", None)

    def set_epoch(self, epoch: int) -> None:
        send_epoch(epoch, *self.within)

    def __iter__(self) -> Iterator[Any]:
        return self._indices_of(iter(self.batches))

    def _indices_of(self, batches: Iterator[Any]) -> Iterator[Any]:
        short = None
        for number, batch in enumerate(batches):
            batch = list(batch)
            if short is not None or not 0 < len(batch) <= self.batch_size:
                wrong = (number, len(batch)) if short is None else short
                raise UsageError(f"{self._name} gave a batch of {wrong[1]} indices (number {wrong[0]}), and its "
                                 f"batch_size is {self.batch_size}",
                                 "batches have one size here, but the last, which may be shorter; torch's own DataLoader has "
                                 "others, and penstock.wrap() makes the pictures of its batches")
            if len(batch) < self.batch_size:
                short = (number, len(batch))
            yield from batch

    def __len__(self) -> int:
        """Exact for a BatchSampler over a sampler; else the last batch counts as full."""
        full = len(self.batches) * self.batch_size
        try:
            samples = len(getattr(self.batches, "sampler", None))
        except TypeError:
            return full
        # One that drops or repeats samples of its own accord has another number of batches than its sampler would fill.
        return samples if full - self.batch_size < samples <= full else full


def _lists(batches: Any) -> bool:
    """Lists of indices, or arrays or tensors, that are there already."""
    return (isinstance(batches, (list, tuple)) or hasattr(batches, "tolist")) and \
        all(isinstance(one, (list, tuple)) or getattr(one, "ndim", 0) == 1 for one in batches)


def indices_of(sampler: Any) -> Optional[List[int]]:
    """The indices that it may give, where it says so without being evaluated, which may draw: a list; torch's samplers of a subset or
    with weights; lists of lists. None: any."""
    if isinstance(sampler, Flattened):
        batches = sampler.batches
        return indices_of([index for batch in batches for index in batch] if _lists(batches) else getattr(batches, "sampler", None))
    kind = type_name(sampler)
    if kind == "torch.utils.data.sampler.SubsetRandomSampler":
        sampler = sampler.indices
    elif kind == "torch.utils.data.sampler.WeightedRandomSampler":
        return [place for place, weight in enumerate(sampler.weights.tolist()) if weight > 0]
    try:
        return [operator.index(one) for one in sampler] if isinstance(sampler, (list, tuple, range)) or hasattr(sampler, "tolist") else None
    except TypeError:
        return None  # no list of indices


class OfRows:
    """A program's sampler of a Subset, whose numbers count in it, as a sampler of what the Subset is taken of."""

    def __init__(self, sampler: Any, rows: Sequence[int]) -> None:
        self.sampler = sampler
        self._rows = rows

    def set_epoch(self, epoch: int) -> None:
        send_epoch(epoch, self.sampler)

    def __iter__(self) -> Iterator[int]:
        return (self._rows[operator.index(place)] for place in self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)


class ProgramOrder:
    def __init__(self, sampler: Any, split: str, as_torchs: bool = False, generator: Any = None) -> None:
        """`as_torchs`: it may be empty, and torch's generator is drawn from as torch's DataLoader does with that `generator`."""
        self.sampler = sampler
        self._generator = generator
        self._split = split
        self._as_torchs = as_torchs
        self.seen: Optional[Tuple[int, int, str]] = None      # (epoch, samples, digest) of the iteration that moved last
        self.expected: Optional[Tuple[int, int, str]] = None  # (epoch, step, digest) of a loaded state

    def evaluate(self, epoch: int, step: int, dataset_size: int) -> Tuple[List[int], Tuple[int, int, str]]:
        """The order of an iteration over `epoch`, and what to remember of it."""
        send_epoch(epoch, self.sampler)
        given = self._listed(dataset_size)  # what it raises itself is its own
        try:
            order = list(map(operator.index, given))
        except TypeError as problem:
            raise UsageError(f"the sampler of split {self._split!r} has to give integers, one a sample: {problem}",
                             "a batch sampler is given as batch_sampler=") from None
        if not order and not self._as_torchs:
            raise UsageError(f"the sampler of split {self._split!r} gave no index for epoch {epoch}",
                             "check its dataset and num_replicas")
        digest = _penstock.order_digest(order)
        expected, self.expected = self.expected, None
        if expected is not None and step > 0 and expected[:2] == (epoch, step) and expected[2] != digest:
            raise ConfigError(
                f"cannot resume split {self._split!r}: the sampler gives another order for epoch {epoch} than it gave "
                "when the state was saved",
                "use a sampler whose order follows from the epoch (set_epoch), as penstock.RandomSampler's does; "
                "torch's RandomSampler draws a new one every time, unless its generator is restored first")
        return order, (epoch, len(order), digest)

    def _listed(self, dataset_size: int) -> list:
        # torch's DataLoader draws its workers' seed behind the iter() of a batch sampler, and before its own BatchSampler calls that of
        # a sampler.
        inner = self.sampler.sampler if isinstance(self.sampler, OfRows) else self.sampler
        indices = iter(self.sampler) if isinstance(inner, Flattened) else None
        torch = sys.modules.get("torch")
        if self._as_torchs and torch is not None:
            torch.empty((), dtype=torch.int64).random_(generator=self._generator)
        if indices is None:
            indices = iter(self.sampler)
        most = _FEWEST + _PASSES * dataset_size
        given = list(itertools.islice(indices, most))
        if len(given) == most and next(indices, None) is not None:
            raise UsageError(f"the sampler of split {self._split!r} gave more than {most:,} indices for a data set of "
                             f"{dataset_size:,} samples, and an order is listed where its iteration begins",
                             "give a sampler that ends: itertools.islice(…) of one that does not")
        return given

    def samples(self) -> int:
        """Of an iteration: by the last one, else by len(sampler)."""
        try:
            return len(self.sampler)
        except TypeError:
            if self.seen is None:
                raise as_raised(UsageError(f"the sampler of split {self._split!r} has no len(), and no iteration was begun yet",
                                           "give it a __len__"), [TypeError]) from None  # which tqdm, for one, looks for
            return self.seen[1]

    def add_to(self, state: dict, replica: int, replicas: int) -> dict:
        digest = self.seen[2] if self.seen is not None and self.seen[0] == state["epoch"] else None
        state["order"] = {"samples": self.samples(), "digest": digest, "replica": replica, "replicas": replicas}
        return state

    def check(self, state: Mapping[str, Any], replica: int, replicas: int) -> None:
        """ConfigError where the state cannot go on with this sampler; the order is compared when the iteration begins."""
        order = state.get("order")
        if not isinstance(order, Mapping) or not isinstance(order.get("samples"), int):
            return  # the state of a split with an order of another making: the split's own comparison says so
        who = f"cannot resume split {self._split!r}: "
        if order.get("replicas") != replicas:
            raise ConfigError(f"{who}its order is the program's, saved with num_replicas {order.get('replicas')}, and "
                              f"now there are {replicas}", "resume with as many replicas")
        if order["samples"] != self.samples():
            raise ConfigError(f"{who}the sampler gave {order['samples']} samples when the state was saved, and gives "
                              f"{self.samples()} now", "resume with the same dataset and sampler")
        # Every replica may load the state that one of them saved; only that one knows its order again.
        self.expected = None
        if order.get("replica") == replica and isinstance(order.get("digest"), str):
            self.expected = (int(state["epoch"]), int(state["batch"]), order["digest"])


def _evaluated(sampler: Any, epoch: int) -> List[int]:
    """What the program's sampler gives for an epoch: places in the data set that the program knows."""
    sampler = sampler.sampler if isinstance(sampler, OfRows) else sampler
    followed = sampler_with_epoch(sampler)
    before = epoch_of(followed)
    send_epoch(epoch, sampler)
    given = list(map(operator.index, sampler))
    if followed is not None:  # what the program said to it still counts when an iteration begins
        followed.set_epoch(before)
    return given


def _planned(native: Any, rows: Optional[Sequence[int]], epoch: int) -> List[int]:
    """The library's order of a rank's samples in an epoch, padding included: sampler/README.md. `rows`: the order is of these."""
    spec = json.loads(native.spec())
    if rows is None and {"indices", "weights"} & set(spec["split"]["sampler"]):
        raise UsageError("the order comes from a file of the job (sampler.indices or sampler.weights), which loaders read",
                         "read it there; a batch's `indices` say what it has")
    plan = dict(line.split(" ", 1) for line in json.loads(native.state(epoch, 0))["position"].splitlines()[1:])
    if not plan:
        return []
    size, replicas, batch_size = int(plan["dataset_size"]), int(plan["num_replicas"]), int(plan["batch_size"])
    order = _penstock.random_order(size, False, size, (int(plan["seed"]) + epoch) % 2**64) if plan["shuffle"] == "true" else range(size)
    count = native.size * batch_size
    if plan["tail"] == "torch":
        count = min(count, size // replicas if plan["sampler_drop_last"] == "true" else -(-size // replicas))
    return [order[(place * replicas + native.rank) % size] for place in range(count)]


class Order:
    """What programs do with a loader's `sampler`, as with torch's DistributedSampler. Made when asked for: it keeps the loader,
    and the loader does not keep it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)

    @property
    def epoch(self) -> int:
        return self._loader.epoch

    @property
    def num_replicas(self) -> int:
        return self._loader.num_replicas

    @property
    def rank(self) -> int:
        return self._loader.rank

    def __iter__(self) -> Iterator[int]:
        loader = self._loader
        loader._follow()
        if loader._order is not None:
            return iter(_evaluated(loader._order.sampler, loader.epoch))
        return iter(_planned(loader._native, loader._given.rows, loader.epoch))

    def __len__(self) -> int:
        return self._loader.num_samples


class BatchOrder(Order):
    """The same for `batch_sampler`."""

    @property
    def sampler(self) -> Any:
        return self._loader.sampler

    @property
    def batch_size(self) -> int:
        return self._loader.batch_size

    @property
    def drop_last(self) -> bool:
        return self._loader.drop_last

    def __iter__(self) -> Iterator[List[int]]:
        return iter(BatchSampler(Order(self._loader), self.batch_size, self.drop_last))

    def __len__(self) -> int:
        return len(self._loader)
