"""A program's own code in the program's own process, as with torch's num_workers=0: nothing is pickled, a debugger stops in it.

    here = Here(dataset)
    job["splits"]["train"]["dataset"] = {"pickle": here.text}
    with here.wanted():                 # whoever waits for a batch
        batch = stream.next()

The library asks for samples as it asks worker processes, over a socket, and a thread answers. That thread runs the program's
code only while somebody waits for a batch, so it never runs beside the program's own lines; the global generators of random,
NumPy and torch are put back behind each sample as they were.

   socket: wait for a request -> wait until a batch is wanted -> run the program's code -> answer -> socket
                                        |
                                        +-> the loader has hung up: the thread ends
"""

from __future__ import annotations

import contextlib
import itertools
import random
import select
import socket
import sys
import threading
import weakref
from typing import Any, Callable, Iterator, Optional

from . import _penstock
from ._worker import HERE, Worker, imported_generators

LOOK_AGAIN_S = 0.2  # a thread that waits notices by then that its loader was closed or dropped

_numbers = itertools.count()
_living: "weakref.WeakValueDictionary[str, Here]" = weakref.WeakValueDictionary()


class Here:
    """Thread-safe. Threads end with the loaders that asked for them."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._name = f"{next(_numbers)}:{type(dataset).__name__}"
        self._changed = threading.Condition()
        self._waiting = 0    # who wait for a batch
        self._busy = 0       # threads in the program's code
        self._error: Optional[BaseException] = None  # that the program's code raised last
        _living[self._name] = self

    @property
    def text(self) -> str:
        """What a job's `dataset.pickle` says."""
        return HERE + self._name

    @contextlib.contextmanager
    def wanted(self) -> Iterator[None]:
        """The program's code may run until the end of the block, which waits for a sample that is being made."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1
                while self._waiting == 0 and self._busy:
                    self._changed.wait()

    def failed(self, error: BaseException) -> None:
        self._error = error

    def taken_error(self) -> Optional[BaseException]:
        """What the program's code raised last, with its traceback, for a debugger; forgotten then, as it holds frames."""
        error, self._error = self._error, None
        return error

    @contextlib.contextmanager
    def turn(self, gone: Callable[[], bool]) -> Iterator[None]:
        """The program's code may run in the block. BrokenPipeError where nobody wants its result any more."""
        with self._changed:
            while self._waiting == 0:
                self._changed.wait(LOOK_AGAIN_S)
                if self._waiting == 0 and gone():
                    raise BrokenPipeError
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()


class _Serving(Worker):
    def __init__(self, connection: socket.socket, here: Here) -> None:
        super().__init__(connection, 0)
        self._here = here
        self._hung_up = select.poll()
        self._hung_up.register(connection, select.POLLRDHUP)

    def given(self, text: str) -> Any:
        return self._here.dataset

    def answer(self, kind: int, body: Any) -> tuple:
        with self._here.turn(self._gone), generators_kept():
            return super().answer(kind, body)

    def failed(self, error: BaseException) -> None:
        self._here.failed(error)

    def _gone(self) -> bool:
        return bool(self._hung_up.poll(0))


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """The global generators afterwards as they were before."""
    names = imported_generators()
    kept = random.getstate()
    numpys = sys.modules["numpy"].random.get_state() if "numpy" in names else None
    torchs = sys.modules["torch"].get_rng_state() if "torch" in names else None
    try:
        yield
    finally:
        random.setstate(kept)
        if numpys is not None:
            sys.modules["numpy"].random.set_state(numpys)
        if torchs is not None:
            sys.modules["torch"].set_rng_state(torchs)


def _serve(name: str, descriptor: int) -> bool:
    """Called by the library: takes over the socket, where the dataset is one of this process."""
    here = _living.get(name)
    if here is None:
        return False
    connection = socket.socket(fileno=descriptor)

    def run() -> None:
        with connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            _Serving(connection, here).serve()

    threading.Thread(target=run, name=f"penstock {name}", daemon=True).start()
    return True


_penstock.serve_python_here(_serve)
