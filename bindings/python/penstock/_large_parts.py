"""Parts of samples that are larger than the room which every sample has for them: the few that are travel in memory of their own.

    kept = LargeParts(room)
    sent = kept.sent(data)         # where a sample is made: `data` itself, or a name for it, which its contents decide
    data = fetched(sent)           # in the program, on the same node

   worker:   made, kept in a memfd ----------------------------> seen to be empty: closed
   program:       finds it by name in /proc, reads it, empties it -^

Whoever made the sample keeps its part until the program has it, KEPT_BYTES and KEPT_PARTS at most: what nobody fetches (an iteration
that was broken off, a sample that was made twice) goes when others come. Not thread-safe: a worker makes one sample at a time.
"""

from __future__ import annotations

import hashlib
import os
from typing import List

from ._memory_file import MemoryFile
from .errors import DatasetError

KEPT_BYTES = 1 << 30
KEPT_PARTS = 256
_NAME = "penstock-large"
_MARK = b"K:"  # no pickle begins so, nor what _own_samples packs


class LargeParts:
    def __init__(self, room: int) -> None:
        self.room = room
        self._kept: List[MemoryFile] = []  # the oldest first

    def __getstate__(self) -> dict:
        return {"room": self.room, "_kept": []}

    def sent(self, data: bytes) -> bytes:
        if len(data) <= self.room:
            return data
        self._kept = [one for one in self._kept if one.size() > 0]
        self._kept.append(MemoryFile(_NAME, data))
        while len(self._kept) > KEPT_PARTS or (len(self._kept) > 1 and sum(one.size() for one in self._kept) > KEPT_BYTES):
            self._kept.pop(0).close()
        return _MARK + self._kept[-1].name.encode()


def fetched(sent: bytes) -> bytes:
    """DatasetError where nobody on this node has it (any more)."""
    if not sent.startswith(_MARK):
        return sent
    name = sent[len(_MARK):].decode()
    for process in ("self", *(one for one in os.listdir("/proc") if one.isdigit())):
        data = _taken_from(process, name)
        if data is not None:
            return data
    raise DatasetError("a part of a sample is larger than limits.max_field_bytes, and no process on this node has it (any more): the "
                       "worker that made it has ended, or runs on another node",
                       "make room for the largest: limits__max_field_bytes=BYTES")


def _taken_from(process: str, name: str) -> "bytes | None":
    folder = f"/proc/{process}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return None  # it has ended, or is another user's
    for number in numbers:
        path = os.path.join(folder, number)
        try:
            if os.readlink(path).partition(" ")[0] != f"/memfd:{name}":
                continue
            with open(path, "r+b") as file:
                data = file.read()
                if f"{_NAME}-{hashlib.blake2b(data, digest_size=16).hexdigest()}" == name:
                    file.truncate(0)
                    return data
        except OSError:
            continue  # closed meanwhile
    return None
