"""Random generators of random, NumPy and torch, where this process makes samples (num_workers=0): the global ones, and a data set's.

    with kept():                  # they are afterwards as they were before
        with seeded_alone():      # no other thread seeds them meanwhile
            ...                   # seeds them for a sample, and makes it
    with unchanged(dataset):      # the same for the generators that an object has, which nobody seeds
        ...                       # looks at some samples

Thread-safe, but for unchanged(). Of several threads' blocks of kept() that overlap, the last one puts back what the first one found.
In seeded_alone() a thread that has waited ANOTHERS_SAMPLE_S goes on beside the other one: that one's sample may be waiting for this thread's. Once that
has happened nobody waits for anybody any more.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import sys
import threading
import types
import weakref
from typing import Any, Callable, Iterator, List

from ._worker import imported_generators
from .errors import warn

ANOTHERS_SAMPLE_S = 10
_LEVELS, _MOST_LOOKED_AT = 6, 1000  # objects, for generators that a data set has


class _Block:
    """One thread's kept(). Where an interrupt strikes before the block's `finally` is entered, its frame takes this along."""


class _Shared:
    """What threads share; a forked child begins with another, as the threads that have the locks may not be in it."""

    def __init__(self) -> None:
        self.sample = threading.RLock()
        self.changed = threading.Lock()  # of these two:
        self.blocks: "weakref.WeakSet[_Block]" = weakref.WeakSet()
        self.put_back: List[Callable[[], None]] = []  # what the first block found
        self.crowded = False


@contextlib.contextmanager
def kept() -> Iterator[None]:
    shared, block = _shared, _Block()
    with shared.changed:
        if not shared.blocks and not shared.put_back:  # else they were not all put back, for an interrupt
            shared.put_back = _states()
        shared.blocks.add(block)
    try:
        yield
    finally:
        with shared.changed:
            shared.blocks.discard(block)
            if not shared.blocks:
                for put_back in shared.put_back:
                    put_back()
                shared.put_back = []


@contextlib.contextmanager
def seeded_alone() -> Iterator[None]:
    shared = _shared
    if shared.crowded or not shared.sample.acquire(timeout=ANOTHERS_SAMPLE_S):
        if not shared.crowded:
            shared.crowded = True
            warn(f"a sample that is made in this process takes longer than {ANOTHERS_SAMPLE_S} s, and another thread makes samples, "
                 "too: they do not wait for each other any more, and draws from global generators may differ from run to run; let "
                 "workers make them: num_workers=1")
        yield
        return
    try:
        yield
    finally:
        shared.sample.release()


@contextlib.contextmanager
def kept_alone() -> Iterator[None]:
    """Both, around code of the program that is called with generators of its own."""
    with kept(), seeded_alone():
        yield


def _states() -> List[Callable[[], None]]:
    """What puts each generator back."""
    names = imported_generators()
    out = [functools.partial(random.setstate, random.getstate())]
    if "numpy" in names:
        numpys = sys.modules["numpy"].random
        out.append(functools.partial(numpys.set_state, numpys.get_state()))
    if "torch" in names:
        torch = sys.modules["torch"]
        out.append(functools.partial(torch.set_rng_state, torch.get_rng_state()))
    return out


@contextlib.contextmanager
def unchanged(one: Any) -> Iterator[None]:
    """The generators among the attributes of an object, and of what these consist of, are afterwards as they were before."""
    states = _states_in(one)
    try:
        yield
    finally:
        for put_back in states:
            put_back()


def _states_in(one: Any) -> List[Callable[[], None]]:
    out: List[Callable[[], None]] = []
    level, seen = [one], set()
    numpys, torch = (sys.modules.get(name) for name in ("numpy.random", "torch"))
    for _ in range(_LEVELS):
        found, level = level, []
        for each in found:
            if id(each) in seen or len(seen) > _MOST_LOOKED_AT:
                continue
            seen.add(id(each))
            if isinstance(each, random.SystemRandom):
                continue  # it has no state
            if isinstance(each, random.Random):
                out.append(functools.partial(each.setstate, each.getstate()))
            elif numpys is not None and isinstance(each, numpys.Generator):
                out.append(functools.partial(setattr, each.bit_generator, "state", each.bit_generator.state))
            elif (numpys is not None and isinstance(each, numpys.RandomState)) or (torch is not None and isinstance(each, torch.Generator)):
                out.append(functools.partial(each.set_state, each.get_state()))
            elif type(each) in (list, tuple):
                level += each[:_MOST_LOOKED_AT]
            elif type(each) is dict:
                level += itertools.islice(each.values(), _MOST_LOOKED_AT)
            elif not isinstance(each, (type, types.ModuleType, types.FunctionType)) and hasattr(each, "__dict__"):
                level += vars(each).values()
    return out


def _in_child() -> None:
    global _shared
    _shared = _Shared()


_shared = _Shared()
os.register_at_fork(after_in_child=_in_child)
