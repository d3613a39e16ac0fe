"""Parts of samples (texts, bytes, pickles) that are larger than the room which every sample has for them travel in memory of their
own.

    kept = LargeParts(room)
    sent = kept.sent(data)         # where a sample is made: `data` itself, or a name for it, which its contents decide
    data = fetched(sent)           # in the program, on the same node

   worker:   made, kept in a memfd ----------------------------> seen to be empty: closed
   program:       finds it by name in /proc, reads it, empties it -^

Whoever made the sample keeps its part until the program has it: KEPT_BYTES and KEPT_PARTS at most, because nobody fetches what was
made for an iteration that was broken off, or made twice. A worker that dies takes parts with it that were made ahead. Only for
loaders in the program's own process, whose workers are its children. Not thread-safe: a worker makes one sample at a time.
"""

from __future__ import annotations

import os
from typing import AnyStr, Iterator, List

from ._memory_file import MemoryFile
from ._worker import kept_in
from .errors import DatasetError

KEPT_BYTES = 4 << 30
KEPT_PARTS = 256
_NAME = "penstock-large"
_MARK, _AS_IT_IS = b"K:", b"E:"  # how a name begins, and what a program's own text or bytes would be taken for one; no pickle does


class LargeParts:
    def __init__(self, room: int) -> None:
        self.room = room
        self._kept: List[MemoryFile] = []  # the oldest first

    def __getstate__(self) -> dict:
        return {"room": self.room, "_kept": []}

    def sent(self, data: AnyStr) -> AnyStr:
        inside = escaped(data)
        if len(inside) * (4 if isinstance(inside, str) else 1) <= self.room or len(_bytes_of(inside)) <= self.room:
            return inside
        self._kept = [one for one in self._kept if one.size() > 0]
        self._kept.append(MemoryFile(_NAME, _bytes_of(data), sealed=False))
        while len(self._kept) > KEPT_PARTS or (len(self._kept) > 1 and sum(one.size() for one in self._kept) > KEPT_BYTES):
            self._kept.pop(0).close()
        return _like(data, _MARK + self._kept[-1].name.encode())


def _bytes_of(data: AnyStr) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _like(one: AnyStr, data: bytes) -> AnyStr:
    return data.decode() if isinstance(one, str) else data


def escaped(data: AnyStr) -> AnyStr:
    """What travels of a part that has room."""
    return _like(data, _AS_IT_IS) + data if data[:2] in (_like(data, _MARK), _like(data, _AS_IT_IS)) else data


def fetched(sent: AnyStr) -> AnyStr:
    """The part again. DatasetError where neither this process nor a child of it has it (any more)."""
    if sent[:2] == _like(sent, _AS_IT_IS):
        return sent[2:]
    if sent[:2] != _like(sent, _MARK):
        return sent
    return _like(sent, _found(_bytes_of(sent[2:]).decode()))


def _found(name: str) -> bytes:
    for process in _family(os.getpid()):
        data = kept_in(process, name, then=lambda file: file.truncate(0))
        if data is not None:
            return data
    raise DatasetError("a part of a sample is larger than limits.max_field_bytes, and is not kept any more: the worker that made it has "
                       f"ended, or had more than {KEPT_PARTS} such parts or {KEPT_BYTES >> 30} GiB of them ahead of the program",
                       "make room for the largest: limits__max_field_bytes=BYTES")


def _family(process: int) -> Iterator[int]:
    """It and its children, and theirs."""
    yield process
    try:
        tasks = os.listdir(f"/proc/{process}/task")
    except OSError:
        return  # it has ended
    for task in tasks:
        try:
            with open(f"/proc/{process}/task/{task}/children") as file:
                children = file.read().split()
        except OSError:
            continue
        for child in children:
            yield from _family(int(child))
