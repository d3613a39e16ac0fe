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
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple

from . import _penstock
from ._worker import HERE, Refused, Worker, as_reply, imported_generators, why
from .errors import Error, as_raised

LOOK_AGAIN_S = 0.2  # a thread that waits notices by then that its loader was closed or dropped
KEPT_ERRORS = 64    # of samples that were made ahead; the first one of a batch is among the first that are made

_numbers = itertools.count()
_living: "weakref.WeakValueDictionary[str, Here]" = weakref.WeakValueDictionary()


class Here:
    """Thread-safe. Threads end with the loaders that asked for them."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._name = ""
        self._changed = threading.Condition()
        self._waiting = 0    # who wait for a batch
        self._busy = 0       # threads in the program's code
        self._raised: Dict[Tuple[str, Optional[int]], BaseException] = {}  # by reason and sample
        self.exits: Dict[Optional[int], BaseException] = {}  # SystemExit and its like, by sample
        self.name_anew()

    def name_anew(self) -> None:
        """A job with the new name is another one, whose loader asks for the length again; who knows the old name goes on."""
        self._name = f"{next(_numbers)}:{type(self.dataset).__name__}"
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

    def keep_error(self, reason: str, index: Optional[int], error: BaseException) -> None:
        """That the program's code raised, and that the loader hears of as `reason`."""
        if len(self._raised) < KEPT_ERRORS:
            self._raised[reason, index] = error
        if not isinstance(error, Exception):
            self.exits[index] = error

    def problem_of(self, error: Error) -> BaseException:
        """`error`, of the loader, as the program has to see it: with what its code raised as the cause, and of its class; but an exit
        is what was raised itself. next() says the same each time, so that one is kept, and the others, which hold frames, are not."""
        found = [key for key in self._raised if key[0] in error.message]
        found.sort(key=lambda key: f"index {key[1]})" not in error.message)  # another sample may fail alike
        self._raised = {key: self._raised[key] for key in found[:1]}
        if not found:
            return error
        raised = self._raised[found[0]]
        return as_raised(error, type(raised).__mro__, raised) if isinstance(raised, Exception) else raised

    def exit_of(self, delivered: Mapping[str, Any], epoch: int) -> Optional[BaseException]:
        """The exit in whose sample's place another was given to the program, or nothing (`on_error: substitute`). `delivered`: the
        report of what it was given. Where that names some of the bad samples only, the first exit."""
        bad = delivered["bad_samples"]
        given = {one["index"] for one in bad if one["epoch"] == epoch}
        cut = delivered.get("bad_sample_count", 0) > len(bad)
        return next((self.exits.pop(index) for index in list(self.exits) if cut or index in given), None)

    def forget_errors(self) -> None:
        self._raised, self.exits = {}, {}

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

    def reason_of(self, error: BaseException) -> str:
        reason = as_reply(why(error)).decode()
        if not isinstance(error, Refused):
            self._here.keep_error(reason, self.making, error)
        return reason

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
