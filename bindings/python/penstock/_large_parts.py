"""Parts of samples (texts, bytes, pickles) that are larger than the room which every sample has for them travel in memory of their
own.

    kept = LargeParts(room)
    sent = kept.sent(data)         # where a sample is made: `data` itself, or a name for it, which its contents decide
    data = fetched(sent, reads)    # in the program, on the same node
    reads.settle(True)             # once it has the batch

   worker:   made, kept in a memfd ---------------------------------------------> seen to be empty: closed
   program:       finds it by name in /proc, reads it, has the batch, empties it -^

Whoever made the sample keeps its part until the program has it: KEPT_BYTES at most, because nobody fetches what was made for an
iteration that was broken off, or made twice, and as many as it may have files open. A worker that dies takes parts with it that were
made ahead. What the program makes itself (num_workers=0) stays with it, without a memfd. Only for loaders in the program's own process,
whose workers are its children. Until the program has a batch, its large parts are in the workers' memory beside the program's copies.
Not thread-safe: one sample is made at a time, and one batch is put together at a time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
from typing import Any, AnyStr, Dict, Hashable, Iterator, List, Optional, Tuple

from ._memory_file import MemoryFile, name_of
from ._worker import kept_at, memory_files
from .errors import DatasetError

KEPT_BYTES = 4 << 30
_LOOK_FROM = 64  # parts, whether some have been fetched
_NAME = "penstock-large"
_MARK, _AS_IT_IS = b"K:", b"E:"  # how a name begins, and what a program's own text or bytes would be taken for one; no pickle does


class Stayed:
    """What stays in this process (num_workers=0) while something that stands for it travels. Thread-safe.

        stayed.add(name, value)
        stayed.taken(name)       # [value], of equal names the oldest; or nothing
        stayed.settle(True)      # what was taken is done with; False: it is there again, for the same batch

    Locks are held by `with`. Where an interrupt strikes inside taken() a value may come twice, which is one more that nobody takes."""

    def __init__(self, most: int) -> None:
        """`most`: names. Beyond these the oldest are forgotten: of batches that nobody took."""
        self._most = most
        self._lock = threading.Lock()  # of these two
        self._by_name: Dict[Hashable, List[Any]] = {}
        self._taken: List[Tuple[Hashable, Any]] = []

    def __len__(self) -> int:
        """Names whose values nobody has taken."""
        return len(self._by_name)

    def add(self, name: Hashable, value: Any) -> None:
        dropped = []  # behind the lock: the program's objects may have a __del__
        with self._lock:
            while len(self._by_name) > self._most:
                dropped.append(self._by_name.pop(next(iter(self._by_name))))
            self._by_name.setdefault(name, []).append(value)

    def taken(self, name: Hashable) -> List[Any]:
        with self._lock:
            values = self._by_name.get(name)
            if not values:
                return []
            self._taken.append((name, values[0]))
            found = [values.pop(0)]
            if not values:
                del self._by_name[name]
            return found

    def settle(self, done: bool) -> None:
        taken = []
        with self._lock:
            if done:
                taken, self._taken = self._taken, taken
            while self._taken:
                name, value = self._taken[-1]
                self._by_name.setdefault(name, []).insert(0, value)
                self._taken.pop()

    def clear(self) -> None:
        with self._lock:
            before = self._by_name, self._taken
            self._by_name, self._taken = {}, []
        del before


class LargeParts:
    """`stayed`: keeps the parts where the program makes the samples, in its own process."""

    def __init__(self, room: int, stayed: Optional[Stayed] = None) -> None:
        self.room = room
        self._kept: List[MemoryFile] = []  # the oldest first
        self._look_at = _LOOK_FROM         # so many, whether they have been fetched
        self._bytes = 0                    # kept, at most
        self._stayed = stayed

    def __getstate__(self) -> dict:
        return {"room": self.room, "_kept": [], "_look_at": _LOOK_FROM, "_bytes": 0, "_stayed": None}

    def sent(self, data: AnyStr) -> AnyStr:
        inside = escaped(data)
        if len(inside) * (4 if isinstance(inside, str) else 1) <= self.room or len(_bytes_of(inside)) <= self.room:
            return inside
        part = _bytes_of(data)
        if self._stayed is not None:
            name = name_of(_NAME, part)
            self._stayed.add(name, part)
        else:
            name = self._in_memory(part)
        return _like(data, _MARK + name.encode())

    def _in_memory(self, part: bytes) -> str:
        self._bytes += len(part)
        if len(self._kept) >= self._look_at or self._bytes > KEPT_BYTES:
            self._kept = [one for one in self._kept if one.size() > 0]
            while self._kept and sum(one.size() for one in self._kept) + len(part) > KEPT_BYTES:
                self._kept.pop(0).close()
            self._look_at = 2 * len(self._kept) + _LOOK_FROM
            self._bytes = sum(one.size() for one in self._kept) + len(part)
        while True:
            try:
                self._kept.append(MemoryFile(_NAME, part, sealed=False))
                return self._kept[-1].name
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                if not _may_open_more():
                    if not self._kept:
                        raise
                    self._kept.pop(0).close()


def _may_open_more() -> bool:
    """Has this process more files to open than it had? The limit that a shell sets is for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return False
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return True
    return False


def _bytes_of(data: AnyStr) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _like(one: AnyStr, data: bytes) -> AnyStr:
    return data.decode() if isinstance(one, str) else data


def escaped(data: AnyStr) -> AnyStr:
    """What travels of a part that has room."""
    return _like(data, _AS_IT_IS) + data if data[:2] in (_like(data, _MARK), _like(data, _AS_IT_IS)) else data


class Reads:
    """Workers' parts that were read for the batch that is put together. They stay until the program has it: an interrupt may come
    before, and then they are read once more. For one thread at a time."""

    def __init__(self) -> None:
        self._files: Dict[Tuple[str, str], None] = {}  # (path, name)

    def read(self, path: str, name: str) -> Optional[bytes]:
        """None where the part is not there, or is another sample's of this batch."""
        data = kept_at(path, name) if (path, name) not in self._files else None
        if data is not None:
            self._files[path, name] = None
        return data

    def settle(self, done: bool) -> None:
        """The batch is there; False: it will be put together once more, or nobody wants it."""
        while self._files:
            file = next(reversed(self._files))
            if done:
                _empty(*file)
            del self._files[file]


def _empty(path: str, name: str) -> None:
    """What the worker has under that name at that path. It may have closed it, and have another file there."""
    with contextlib.suppress(OSError):
        if os.readlink(path).partition(" ")[0] == f"/memfd:{name}":
            with open(path, "r+b") as file:
                if os.readlink(f"/proc/self/fd/{file.fileno()}").partition(" ")[0] == f"/memfd:{name}":
                    file.truncate(0)


def fetched(sent: AnyStr, reads: Reads, stayed: Optional[Stayed] = None) -> AnyStr:
    """The part again. DatasetError where neither `stayed` nor a child of this process has it (any more)."""
    if sent[:2] == _like(sent, _AS_IT_IS):
        return sent[2:]
    if sent[:2] != _like(sent, _MARK):
        return sent
    return _like(sent, _found(_bytes_of(sent[2:]).decode(), reads, stayed))


# Where parts were seen, by name: one look at the workers' files, of which there are many, finds all that are there. Replaced as a
# whole, and single calls take from it, so that threads need no lock.
_seen_at: Dict[str, List[str]] = {}


def _look() -> None:
    global _seen_at
    seen: Dict[str, List[str]] = {}
    for process in _family(os.getpid()):
        for path, name in memory_files(process):
            seen.setdefault(name, []).append(path)
    _seen_at = seen


def _found(name: str, reads: Reads, stayed: Optional[Stayed]) -> bytes:
    for data in () if stayed is None else stayed.taken(name):
        return data
    for looks in range(4):
        if looks:
            _look()  # more than once: the kernel may leave out a child while another one ends
        paths = _seen_at.get(name, [])
        with contextlib.suppress(IndexError):  # another thread has taken the last one
            while paths:
                data = reads.read(paths.pop(), name)
                if data is not None:
                    return data
    raise DatasetError("a part of a sample is larger than limits.max_field_bytes, and is not kept any more: the worker that made it has "
                       f"ended, or had more of them ahead of the program than it may have files open, or {KEPT_BYTES >> 30} GiB",
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
