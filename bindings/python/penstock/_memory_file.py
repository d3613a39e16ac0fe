"""A file in this process's memory, for what is too large for a job's text: a list of samples, a pickled data set."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os

from ._worker import F_ADD_SEALS

_ALLOW_SEALING = 2  # MFD_ALLOW_SEALING
_SEAL_ALL = 2 | 4 | 8  # F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE


def _memory(name: str) -> int:
    """os.memfd_create(), which some builds of Python lack."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC | _ALLOW_SEALING)
    close_on_exec = 1
    descriptor = ctypes.CDLL(None, use_errno=True).memfd_create(name.encode(), close_on_exec | _ALLOW_SEALING)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "memfd_create")
    return descriptor


def name_of(name: str, data: bytes) -> str:
    return f"{name}-{hashlib.blake2b(data, digest_size=16).hexdigest()}"


class MemoryFile:
    """`data` under a `path` that its contents decide, which every process of this user on this node can open
    (runtime/base/kept_file.h; memfd_create(2)): equal programs of a job, on several nodes, say the same of equal data.

    It is sealed when all of it is there, so that nobody takes a part of it for the whole; with `sealed=False` it stays as it is, for one
    who knows what it has to hold. There is nothing to delete: the memory goes with this object, and at the latest with the process,
    however that ends.
    """

    def __init__(self, name: str, data: bytes, sealed: bool = True) -> None:
        self.name = name_of(name, data)
        self.path = f"/memfd:{self.name}"
        self._fd = _memory(self.name)
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view):]
            os.utime(self._fd, ns=(0, 0))  # equal files have equal times, whoever made them when
            if sealed:
                fcntl.fcntl(self._fd, F_ADD_SEALS, _SEAL_ALL)
        except BaseException:
            self.close()
            raise

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()
