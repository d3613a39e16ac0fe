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
comes out of run() as it is: the sample is made again by the next run(), and the Call goes on. Where it strikes while a request or an
answer is on its way, the connection is closed, and the library asks again over another.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import os
import select
import socket
import threading
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import _generators, _penstock
from ._worker import GOOD, HERE, KEY, LOAD, Refused, Worker, as_reply, why
from .errors import Error, UsageError, as_raised

FURTHER_MS = 250        # behind its samples a batch is there soon, or some more are wanted
KEPT_ERRORS = 64        # the newest: where another sample stands in for a bad one, nobody asks for most of them

_numbers = itertools.count()
_living: "weakref.WeakValueDictionary[str, Here]" = weakref.WeakValueDictionary()


class Call:
    """One of the library's functions that may wait for samples, as Here.run() calls it: once. `epoch`: the samples', or None."""

    def __init__(self, function: Callable[[], Any], epoch: Optional[int] = None) -> None:
        self.epoch = epoch
        self._function: Optional[Callable[[], Any]] = function
        self._result: Any = None
        self._error: Optional[BaseException] = None
        self._begun = threading.Lock()
        self.done = False
        self.failed = False  # and has said so: there is no result
        self.answered = 0  # samples
        self.thread: Optional[int] = None
        self.warnings: List[str] = []

    def run(self, changed: Callable[[], None]) -> None:
        """In a thread of its own; where it was begun twice, because an interrupt hid the first time, the first does it."""
        if not self._begun.acquire(blocking=False):
            return
        _of_thread.call = self
        try:
            self._result = self._function()  # type: ignore[misc]
        except BaseException as error:
            self._error = error.with_traceback(None)
        self._function = None  # which has the loader
        self.done = True
        changed()

    def drop(self) -> None:
        """Nobody asks for the result again. Errors that a program keeps have frames, and one of these has this."""
        self._result = None

    def result(self) -> Any:
        """What the function returned; raises what it raised."""
        if self._error is None:
            return self._result
        error, self._error, self.failed = self._error, None, True  # an error that is raised has frames, and these have us
        try:
            raise error
        finally:
            del error


_of_thread = threading.local()


def call_of_this_thread() -> Optional[Call]:
    """Whose warnings are the program's to see, in its own thread."""
    return getattr(_of_thread, "call", None)


class Here:
    """Thread-safe. One thread answers at a time, for all that wait.

    An interrupt may strike anywhere in the program's thread. So locks are held by `with` and are Python's plain ones, which nothing comes
    between; and what an interrupt leaves half done is seen by whoever comes next."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._name = ""
        self._turn: Any = threading.RLock()  # of the thread that answers
        self._changing = threading.Lock()    # of these two
        self._connections: List[_Connection] = []
        self._refuses = False                # new ones: the program has given up what it opened, or closed it
        self._closed = False
        self._woken, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        weakref.finalize(self, _close_all, os.getpid(), [self._woken, self._wakes], self._connections).atexit = False
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
        if self._turn._is_owned():
            raise UsageError("a sample asks for a batch of the loader that it is made for", "let it make a DataLoader of its own")
        if call.thread is None:
            changed = weakref.WeakMethod(self._call_ended)
            call.thread = _thread.start_new_thread(call.run, (lambda: (changed() or _nothing)(),))
        try:
            with self._turn:
                self._answer(call, samples)
        except BaseException:
            if opens and not call.done:
                self._give_up()
            raise
        return call.result()

    def accept(self, connection: socket.socket) -> bool:
        """The library's end of it has requests."""
        with self._changing:
            if self._refuses:
                return False
            self._connections.append(_Connection(connection, self))
        self._wake()
        return True

    def keep_error(self, reason: str, index: Optional[int], error: BaseException) -> None:
        """That the program's code raised, and that the loader hears of as `reason`."""
        raised = self._raised  # another thread may take it
        raised[reason, index] = error
        if len(raised) > KEPT_ERRORS:
            raised.pop(next(iter(raised), None), None)

    def problem_of(self, error: Error) -> Error:
        """`error` as the program has to see it: with what its code raised as the cause, and of its class. The others that were kept,
        which hold frames, are forgotten, and so is that one."""
        kept, self._raised = self._raised, {}  # another thread may add to it
        found = [key for key in kept if key[0] in error.message]
        found.sort(key=lambda key: f"index {key[1]})" not in error.message)  # another sample may fail alike
        if not found:
            return error
        raised = kept[found[0]]
        return as_raised(error, type(raised).__mro__, raised)

    def forget_errors(self) -> None:
        self._raised = {}

    def close(self) -> None:
        """The loader is closed, and its calls have ended or will. Who answers it finds that out."""
        self.forget_errors()
        with self._changing:
            self._refuses = self._closed = True
        self._wake()

    def _answer(self, call: Call, samples: int) -> None:
        """Until the call is done. Requests of other calls that come meanwhile are answered as well: they wait, too."""
        with contextlib.ExitStack() as kept:
            keeping, further = False, 1
            while not call.done:
                for one in list(self._connections):
                    if not one.whole:  # an interrupt struck in the middle of a request or an answer
                        self._drop(one)
                # In their order, the sample that was begun and interrupted first.
                all_made = 0 < samples <= call.answered
                ready = [one for one in self._connections if one.begun] or self._ready(max(1, FURTHER_MS // further) if all_made else None)
                if all_made and not ready and not call.done:
                    # More are wanted: some were of an iteration that was broken off, or cannot be used; or the batch is large.
                    samples, further = call.answered + further, 2 * further
                for one in ready[:1]:
                    if not keeping:
                        kept.enter_context(_generators.kept())
                        keeping = True
                    if not one.answer_one():
                        self._drop(one)
                    elif one.epoch == call.epoch:  # else of another iteration, which may have been broken off, or not usable
                        call.answered += 1

    def _ready(self, only_the_end_ms: Optional[int]) -> List[_Connection]:
        """Connections with a request, once there is one or somebody has called _wake(); with a time, none within it."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        connections = {} if only_the_end_ms is not None else {one.connection.fileno(): one for one in list(self._connections)}
        connections.pop(-1, None)
        for descriptor in connections:
            poll.register(descriptor, select.POLLIN)
        events = dict(poll.poll(only_the_end_ms))
        if events.pop(self._woken.fileno(), 0):
            self._woken.recv(4096)
        return [connections[descriptor] for descriptor in events]

    def _call_ended(self) -> None:
        with self._changing:
            self._refuses = self._closed
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it is full of such, or closed
            self._wakes.send(b".")

    def _give_up(self) -> None:
        """What is being opened fails: its worker is gone, and there is no other."""
        with self._changing:
            self._refuses = True
        for one in list(self._connections):
            self._drop(one)

    def _drop(self, one: "_Connection") -> None:
        with contextlib.suppress(ValueError):
            self._connections.remove(one)
        one.hang_up()


class _Connection(Worker):
    caught = Exception

    def __init__(self, connection: socket.socket, here: Here) -> None:
        super().__init__(connection, 0)
        self._here = weakref.proxy(here)
        self.begun: Optional[Tuple[int, Any]] = None  # a request that is not answered yet
        self.whole = True                             # nothing is half received or half sent
        self.epoch: Optional[int] = None              # of the sample that it made last, if that was one

    def hang_up(self) -> None:
        """The library sees it at once, also where a child that was forked has the socket, too."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.close()

    def answer_one(self) -> bool:
        """False: the loader has hung up."""
        try:
            if self.begun is None:  # a new one
                self.whole = False
                self.begun = self.request()
            if self.begun is None:
                return False
            self.whole = True
            with _generators.seeded_alone():
                answer = self.answer(*self.begun)
            self.epoch = KEY.unpack(self.begun[1])[2] if self.begun[0] == LOAD and answer[0] == GOOD else None
            self.whole, self.begun = False, None
            self.reply(*answer)
            self.whole = True
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def flush(self) -> None:
        """Nothing: what the program prints is its own affair."""

    def given(self, text: str) -> Any:
        return self._here.dataset

    def reason_of(self, error: BaseException) -> str:
        reason = as_reply(why(error)).decode()
        if not isinstance(error, Refused):
            self._here.keep_error(reason, self.making, error)
        return reason


def _close_all(process: int, sockets: List[socket.socket], connections: List[_Connection]) -> None:
    for one in connections:
        one.hang_up() if os.getpid() == process else one.close()  # in a child: its own ends
    for each in sockets:
        each.close()


def _nothing() -> None:
    pass


def _serve(name: str, descriptor: int) -> bool:
    """Called by the library: takes over the socket, where the dataset is one of this process."""
    here = _living.get(name)
    if here is None:
        return False
    connection = socket.socket(fileno=descriptor)
    try:
        if here.accept(connection):
            return True
    except Exception:  # at the end of the interpreter
        pass
    connection.detach()
    return False


_penstock.serve_python_here(_serve)
