"""A file in this process's memory, for what is too large for a job's text: a list of samples, a pickled data set."""

from __future__ import annotations

import ctypes
import hashlib
import os


def _memory(name: str) -> int:
    """os.memfd_create(), which some builds of Python lack."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    close_on_exec = 1
    descriptor = ctypes.CDLL(None, use_errno=True).memfd_create(name.encode(), close_on_exec)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "memfd_create")
    return descriptor


class MemoryFile:
    """`data` under a `path` that its contents decide, which every process of this user on this node can open
    (runtime/base/kept_file.h; memfd_create(2)): equal programs of a job, on several nodes, say the same of equal data.

    There is nothing to delete: the memory goes with this object, and at the latest with the process, however that ends.
    """

    def __init__(self, name: str, data: bytes) -> None:
        self.name = f"{name}-{hashlib.blake2b(data, digest_size=16).hexdigest()}"
        self.path = f"/memfd:{self.name}"
        self._fd = _memory(self.name)
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view):]
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
