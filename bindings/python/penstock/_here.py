"""A program's own code in the thread that asks for a batch, as with torch's num_workers=0: nothing is pickled, a debugger stops in it.

    here = Here(dataset)
    job["splits"]["train"]["dataset"] = {"pickle": here.text}
    batch = here.run(Call(stream.next), samples=32)

The library asks for samples as it asks worker processes, over a socket. Its own call waits in a thread of its own meanwhile, and the
thread that wants the batch answers:

   program's thread                          thread of the Call
   run() --------------------------------->  stream.next()
   answers requests, one after the other         waits
   wakes up                <---------------  the batch is there
   returns it

So the code runs only while a batch is waited for, in the thread of whoever waits, and with loader.threads=1 sample after sample in
their order; `samples` of them, unless the library wants more to make the batch. What is no Exception (SystemExit, KeyboardInterrupt)
comes out of run() as it is: the sample is made again by the next run(), and the Call goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import select
import socket
import sys
import threading
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from . import _penstock
from ._worker import HELLO, HERE, REQUEST, Refused, Worker, as_reply, imported_generators, why
from .errors import Error, RunError, UsageError, as_raised

FURTHER_MS = 20         # behind its samples a batch is there soon, or some more are wanted
KEPT_ERRORS = 64        # the first one of a batch is among the first that are made
ANOTHERS_SAMPLE_S = 600  # that long a thread waits for another one's sample

_numbers = itertools.count()
_living: "weakref.WeakValueDictionary[str, Here]" = weakref.WeakValueDictionary()
_generators = threading.RLock()  # there is one set of global generators


class Call:
    """One of the library's functions that may wait for samples, as Here.run() calls it: once."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function: Optional[Callable[[], Any]] = function
        self._result: Any = None
        self._error: Optional[BaseException] = None
        self.done = False
        self.begun = False
        self.answered = 0  # samples
        self.warnings: List[str] = []

    def run(self, changed: Callable[[], None]) -> None:
        _thread.call = self
        try:
            self._result = self._function()  # type: ignore[misc]
        except BaseException as error:
            self._error = error.with_traceback(None)
        self._function = None  # which has the loader
        self.done = True
        changed()

    def result(self) -> Any:
        """What the function returned; raises what it raised."""
        result, error, self._result, self._error = self._result, self._error, None, None
        if error is None:
            return result
        try:
            raise error
        finally:
            del error  # which has this frame


_thread = threading.local()


def call_of_this_thread() -> Optional[Call]:
    """Whose warnings are the program's to see, in its own thread."""
    return getattr(_thread, "call", None)


class Here:
    """Thread-safe. One thread answers at a time, for all that wait."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._name = ""
        self._changed = threading.Condition()
        self._answering: Optional[int] = None  # the thread that answers
        self._connections: List[_Connection] = []
        self._refuses = False                  # new ones: the program has given up what it opened
        self._woken, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        self._raised: Dict[Tuple[str, Optional[int]], BaseException] = {}  # by reason and sample
        self.name_anew()

    def name_anew(self) -> None:
        """A job with the new name is another one, whose loader asks for the length again; who knows the old name goes on."""
        self._name = str(next(_numbers))
        _living[self._name] = self

    @property
    def text(self) -> str:
        """What a job's `dataset.pickle` says."""
        return HERE + self._name

    def run(self, call: Call, samples: int = 0, opens: bool = False) -> Any:
        """The call's result. It answers so many samples, and waits a moment before it answers more. `opens`: a call that is interrupted
        is given up, not waited for by another run()."""
        if not call.begun:
            call.begun = True
            changed = weakref.WeakMethod(self._call_ended)
            threading.Thread(target=call.run, args=(lambda: (changed() or _nothing)(),), name=f"penstock {self._name}", daemon=True).start()
        try:
            while not call.done:
                self._answer_or_wait(call, samples)
        except BaseException:
            if opens and not call.done:
                self._give_up()
            raise
        return call.result()

    def accept(self, connection: socket.socket) -> bool:
        """The library's end of it has requests."""
        with self._changed:
            if not self._refuses:
                self._connections.append(_Connection(connection, self))
        self._wake()
        return not self._refuses

    def keep_error(self, reason: str, index: Optional[int], error: BaseException) -> None:
        """That the program's code raised, and that the loader hears of as `reason`."""
        if len(self._raised) < KEPT_ERRORS:
            self._raised[reason, index] = error

    def problem_of(self, error: Error) -> Error:
        """`error` as the program has to see it: with what its code raised as the cause, and of its class. The others that were kept,
        which hold frames, are forgotten."""
        found = [key for key in self._raised if key[0] in error.message]
        found.sort(key=lambda key: f"index {key[1]})" not in error.message)  # another sample may fail alike
        self._raised = {key: self._raised[key] for key in found[:1]}
        if not found:
            return error
        raised = self._raised[found[0]]
        return as_raised(error, type(raised).__mro__, raised)

    def forget_errors(self) -> None:
        self._raised = {}

    def close(self) -> None:
        """The loader is closed. What another thread is about to answer it still does."""
        self.forget_errors()
        with self._changed:
            unused = [] if self._answering not in (None, threading.get_ident()) else self._connections
        for one in list(unused):
            self._drop(one)

    def _answer_or_wait(self, call: Call, samples: int) -> None:
        me = threading.get_ident()
        with self._changed:
            if self._answering == me:
                raise UsageError("a sample asks for a batch of the loader that it is made for",
                                 "let it make a DataLoader of its own")
            while self._answering is not None and not call.done:
                self._changed.wait()
            if call.done:
                return
            self._answering = me
        try:
            self._answer(call, samples)
        finally:
            with self._changed:
                self._answering = None
                self._changed.notify_all()

    def _answer(self, call: Call, samples: int) -> None:
        """Until the call is done. Requests of other calls that come meanwhile are answered as well: they wait, too."""
        with contextlib.ExitStack() as kept:
            seeding = False
            while not call.done:
                # In their order, the sample that was begun and interrupted first.
                ready = [one for one in self._connections if one.begun] or self._ready(FURTHER_MS if 0 < samples <= call.answered else None)
                if not ready and not call.done:
                    samples = 0  # more are wanted than the batch has: one of them cannot be used
                for one in ready[:1]:
                    if not seeding:
                        kept.enter_context(generators_kept())
                        seeding = True
                    kind = one.answer_one()
                    if kind is None:
                        self._drop(one)
                    elif kind != HELLO:
                        call.answered += 1

    def _ready(self, only_the_end_ms: Optional[int]) -> List[_Connection]:
        """Connections with a request, once there is one or somebody has called _wake(); with a time, none within it."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        connections = {} if only_the_end_ms is not None else {one.connection.fileno(): one for one in self._connections}
        for descriptor in connections:
            poll.register(descriptor, select.POLLIN)
        events = dict(poll.poll(only_the_end_ms))
        if events.pop(self._woken.fileno(), 0):
            self._woken.recv(4096)
        return [connections[descriptor] for descriptor in events]

    def _call_ended(self) -> None:
        with self._changed:
            self._refuses = False
            self._changed.notify_all()
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is full of such
            self._wakes.send(b".")

    def _give_up(self) -> None:
        """What is being opened fails: its worker is gone, and there is no other."""
        self._refuses = True
        self.close()

    def _drop(self, one: "_Connection") -> None:
        with self._changed:
            self._connections = [other for other in self._connections if other is not one]
        one.connection.close()


class _Connection(Worker):
    caught = Exception

    def __init__(self, connection: socket.socket, here: Here) -> None:
        super().__init__(connection, 0)
        self._here = weakref.proxy(here)
        self.begun: Optional[Tuple[int, Any]] = None  # a request that is not answered yet

    def answer_one(self) -> Optional[int]:
        """The kind of what it answered; None: the loader has hung up."""
        try:
            if self.begun is None:
                self.begun = self.request()
            if self.begun is None:
                return None
            kind = self.begun[0]
            answer = self.answer(*self.begun)
            self.begun = None
            self.reply(*answer)
        except (BrokenPipeError, ConnectionResetError):
            return None
        return kind

    def given(self, text: str) -> Any:
        return self._here.dataset

    def reason_of(self, error: BaseException) -> str:
        reason = as_reply(why(error)).decode()
        if not isinstance(error, Refused):
            self._here.keep_error(reason, self.making, error)
        return reason


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """The global generators afterwards as they were before. One thread at a time, or they would seed each other's."""
    lock = _generators
    if not lock.acquire(timeout=ANOTHERS_SAMPLE_S):
        raise RunError(f"another thread has been at one sample, or in one collate_fn, for {ANOTHERS_SAMPLE_S} s: samples that are made in "
                       "the program's process are made one at a time", "let workers make them: num_workers=1")
    try:
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
    finally:
        lock.release()


def _nothing() -> None:
    pass


def _serve(name: str, descriptor: int) -> bool:
    """Called by the library: takes over the socket, where the dataset is one of this process."""
    here = _living.get(name)
    if here is None:
        return False
    connection = socket.socket(fileno=descriptor)
    if here.accept(connection):
        return True
    connection.detach()
    return False


def _in_child() -> None:
    """The thread that has the lock may not be in a child that was forked."""
    global _generators
    _generators = threading.RLock()


os.register_at_fork(after_in_child=_in_child)
_penstock.serve_python_here(_serve)
