"""A program's own sampler in penstock.DataLoader(..., sampler=...): evaluated once a pass, and checked on resuming.

A saved state says how long the order was and, of the replica that saved it, a digest. Resuming evaluates the sampler
for the state's epoch again; where it gives another order, going on in mid-epoch would repeat some samples and miss
others, so that is refused.
"""

from __future__ import annotations

import operator
from typing import Any, List, Mapping, Optional, Tuple

from . import _penstock
from .errors import ConfigError, UsageError


class ProgramOrder:
    def __init__(self, sampler: Any, split: str) -> None:
        self.sampler = sampler
        self._split = split
        self.seen: Optional[Tuple[int, int, str]] = None      # (epoch, samples, digest) of the pass that moved last
        self._expected: Optional[Tuple[int, int, str]] = None  # (epoch, step, digest) of a loaded state

    def evaluate(self, epoch: int, step: int) -> Tuple[List[int], Tuple[int, int, str]]:
        """The order of a pass over `epoch`, and what to remember of it."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        try:
            order = list(map(operator.index, self.sampler))
        except TypeError as problem:
            raise UsageError(f"the sampler of split {self._split!r} has to give integers, one a sample: {problem}",
                             "give a sampler, not a batch sampler; batch_size and drop_last make the batches") from None
        if not order:
            raise UsageError(f"the sampler of split {self._split!r} gave no index for epoch {epoch}",
                             "check its dataset and num_replicas")
        digest = _penstock.order_digest(order)
        expected, self._expected = self._expected, None
        if expected is not None and step > 0 and expected[:2] == (epoch, step) and expected[2] != digest:
            raise ConfigError(
                f"cannot resume split {self._split!r}: the sampler gives another order for epoch {epoch} than it gave "
                "when the state was saved",
                "use a sampler whose order follows from the epoch (set_epoch), as penstock.RandomSampler's does; "
                "torch's RandomSampler draws a new one every time, unless its generator is restored first")
        return order, (epoch, len(order), digest)

    def samples(self) -> int:
        """Of a pass: by the last one, else by len(sampler)."""
        try:
            return len(self.sampler)
        except TypeError:
            if self.seen is None:
                raise UsageError(f"the sampler of split {self._split!r} has no len(), and no pass was begun yet",
                                 "give it a __len__") from None
            return self.seen[1]

    def add_to(self, state: dict, replica: int, replicas: int) -> dict:
        digest = self.seen[2] if self.seen is not None and self.seen[0] == state["epoch"] else None
        state["order"] = {"samples": self.samples(), "digest": digest, "replica": replica, "replicas": replicas}
        return state

    def check(self, state: Mapping[str, Any], replica: int, replicas: int) -> None:
        """ConfigError where the state cannot go on with this sampler; the order is compared when the pass begins."""
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
        self._expected = None
        if order.get("replica") == replica and isinstance(order.get("digest"), str):
            self._expected = (int(state["epoch"]), int(state["batch"]), order["digest"])
