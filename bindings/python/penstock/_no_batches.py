"""Epochs without a batch, as torch's DataLoader has them: of an empty data set, or of less than a batch with `drop_last`.

    cut = Cut(batch_size=4, replicas=2, drop_last=True)
    cut.leaves_nothing(6)                       # True: three samples for each of two ranks are less than a batch
    native = NoBatches(…)                       # in the place of the library's Loader, which refuses such a split
"""

from __future__ import annotations

import json
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from .errors import ConfigError, DatasetError


class Cut(NamedTuple):
    """How a data set is cut into batches (sampler/README.md)."""

    batch_size: int
    replicas: Optional[int] = 1  # None: nobody knows yet
    ranks_per_replica: int = 1
    drop_last: bool = False
    drop_uneven: bool = False    # DistributedSampler's drop_last
    tail: str = "torch"

    def leaves_nothing(self, samples: int) -> bool:
        if samples == 0 or self.replicas is None or self.batch_size < 1:
            return samples == 0
        if self.tail == "drop":
            return samples < self.batch_size * self.replicas
        share = samples // self.replicas if self.drop_uneven else -(-samples // self.replicas)
        return self.tail == "torch" and share < (self.batch_size if self.drop_last else 1)


class NoBatches:
    """What a DataLoader asks of _penstock.Loader, and of its iterations. Nothing is opened and nothing runs."""

    size = num_samples = 0
    hold = 2
    embedded, raw_images, closed = True, False, False

    def __init__(self, split: str, cut: Cut, *, seed: int, training: bool, rank: int, dataset_size: int,
                 fields: Sequence[str]) -> None:
        self._split, self._cut, self._seed, self._training = split, cut, seed, training
        self._fields = list(fields)
        self.batch_size, self.num_replicas, self.ranks_per_replica = cut.batch_size, cut.replicas or 1, cut.ranks_per_replica
        self.rank = rank
        self.dataset_size = dataset_size
        self.class_names: List[str] = []

    def spec(self) -> str:
        split = {"mode": "train" if self._training else "eval", "drop_last": self._cut.drop_last, "sampler": {}}
        return json.dumps({"seed": self._seed, "split": split})

    def fields(self) -> List[str]:
        return self._fields

    def is_image(self, name: str) -> bool:
        return name == "image"

    def start_at(self, epoch: int, step: int, indices: Sequence[int] = ()) -> "NoBatches":
        if indices:
            raise DatasetError(f"split '{self._split}': the sampler gave index {indices[0]}, and the data set is empty")
        return self

    def next(self) -> None:
        """Of an iteration: its end."""

    def state(self, epoch: int, step: int, order_samples: int = 0) -> str:
        return json.dumps({"split": self._split, "epoch": epoch, "batch": step, "position": ""})

    def resume(self, state: str, order_samples: int = 0) -> Tuple[Any, Any]:
        said = json.loads(state)
        if said.get("position") != "":
            raise ConfigError(f"cannot resume split {self._split!r}: its epochs have no batch now", "resume with the same data set")
        return said.get("epoch"), said.get("batch")

    def report_json(self) -> str:
        return json.dumps({"splits": {}, "ranks": [{"role": "trainer", "client": {}}], "bottleneck": "there is nothing to load"})

    def close(self) -> None:
        self.closed = True
