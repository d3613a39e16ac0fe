"""What a DataLoader gives: a list `[images, labels]`, as from torch's, or a dict, of torch tensors or NumPy arrays.

Both own the batch's memory by reference count, and so does every tensor in them: what the program keeps stays valid and
unchanged for as long as it keeps it, also after the loader is gone. Fields of text or bytes are lists of str or bytes,
which are copies. Both can be built from plain elements, as Lightning and Accelerate do when they move a batch to a
device; what the loader said of it besides is then gone. What comes of a pickle is a plain list, tuple or dict.

Memory is shared with the receiver, and so it is with a child that the program forks: what either writes into a batch the
other sees, and once the program drops the batch the next one is written there, also under the child's tensors. A batch
that a child is to have is copied before the fork, by `penstock.DataLoader(..., copy=True)` or by `.clone()`.
"""

from __future__ import annotations

import copy
from typing import Any, Callable, Optional

__all__ = ["ListBatch", "TupleBatch", "DictBatch"]


class _Described:
    """What a batch says of itself besides its fields."""

    _native: Any = None
    _convert: Optional[Callable] = None

    def _describe(self, native, convert=None):
        self._native = native
        self._convert = convert or _same
        return self

    def _fact(self, name):
        if self._native is None:
            raise AttributeError(f"a batch that was rebuilt (moved to a device, say) does not know its {name}; "
                                 "take it from the batch that the loader gave")
        return getattr(self._native, name)

    def _array(self, name):
        return self._convert(self._fact(name))

    @property
    def indices(self):
        """int64 [n]: dataset index of each sample."""
        return self._array("indices")

    @property
    def valid(self):
        """bool [n]: False for padding and unreadable samples of an `eval` split, whose label is -100."""
        return self._array("valid") != 0

    @property
    def substituted(self):
        """bool [n]: True where another sample stands in for an unusable one (`on_error: substitute`)."""
        return self._array("substituted") != 0

    @property
    def num_valid(self) -> int:
        """How many samples of this batch are valid."""
        return self._fact("num_valid")

    @property
    def epoch(self) -> int:
        """The epoch that the batch belongs to, from 0."""
        return self._fact("epoch")

    @property
    def step(self) -> int:
        """Number of the batch in its epoch, from 0."""
        return self._fact("step")

    @property
    def arithmetic(self) -> str:
        """The job's, "exact", "fast" or "opencv"; of fast pixels nothing is promised but whose they are and how they were drawn."""
        return self._fact("arithmetic")


class Facts:
    """What a batch says, for copied fields: nothing of it holds the batch's memory."""

    def __init__(self, native, indices, valid, substituted):
        self.indices, self.valid, self.substituted = indices, valid, substituted
        self.num_valid, self.epoch, self.step = native.num_valid, native.epoch, native.step
        self.arithmetic = native.arithmetic


def register_with(torch: Any) -> None:
    """With torch's trees, which go by exact type, so that tree_map() takes a batch apart as the list, tuple or dict that it is."""
    pytree = torch.utils._pytree
    register = getattr(pytree, "register_pytree_node", None) or getattr(pytree, "_register_pytree_node", None)
    if register is None or ListBatch in getattr(pytree, "SUPPORTED_NODES", {}):
        return
    register(ListBatch, lambda batch: (list(batch), None), lambda parts, _: list(parts))
    register(TupleBatch, lambda batch: (list(batch), None), lambda parts, _: tuple(parts))
    register(DictBatch, lambda batch: (list(batch.values()), list(batch)), lambda parts, names: dict(zip(names, parts)))


def _same(array):
    return array


class ListBatch(list, _Described):
    """`images, labels = batch`, and further fields after them."""

    def __reduce__(self):  # the elements alone, which torch.load() and programs without penstock know
        return list, (list(self),)

    def __copy__(self):
        return ListBatch(self)

    def __deepcopy__(self, memo):
        return ListBatch(copy.deepcopy(list(self), memo))


class TupleBatch(tuple, _Described):
    """A batch of a `collate_fn` that returns a tuple."""

    def __reduce__(self):
        return tuple, (tuple(self),)

    def __copy__(self):
        return TupleBatch(self)

    def __deepcopy__(self, memo):
        return TupleBatch(copy.deepcopy(tuple(self), memo))


class DictBatch(dict, _Described):
    """`batch["image"]`, `batch["label"]`, or the names given by `keys`."""

    def __reduce__(self):
        return dict, (dict(self),)

    def __copy__(self):
        return DictBatch(self)

    def __deepcopy__(self, memo):
        return DictBatch(copy.deepcopy(dict(self), memo))
