"""The exceptions of penstock: what happened, with names (file, rank, key), and what to do about it.

Each carries `message`, `remedy` (may be empty) and `exit_code`, which is the `penstock` program's for that kind; but
UnpicklableDataset, a dataset object that worker processes cannot be sent, is a plain TypeError.

An error of the program's own code (`__getitem__`, a transform) is a DatasetError and an instance of the class that was raised, so
`except ValueError` catches it as with torch's DataLoader. Where Python has no object of both, it is a DatasetError alone. A picture
that loaders cannot read is an OSError as well, and a FileNotFoundError where its file is missing.
"""

import errno
import os
import re
import sys
import warnings
from typing import Any, Iterable, Optional

from ._pickled import UnpicklableDataset
from ._worker import classes_in

__all__ = ["Error", "RunError", "UsageError", "ConfigError", "DatasetError", "PeerLostError", "UnpicklableDataset"]


class Error(Exception):
    """Whatever penstock raises itself."""

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message + (f"\n  help: {remedy}" if remedy else ""))
        self.message = message
        self.remedy = remedy

    def __reduce__(self):
        return type(self), (self.message, self.remedy)


class RunError(Error, RuntimeError):
    """The environment: I/O, memory, a system call."""

    exit_code = 1


class UsageError(Error, ValueError):
    """The call: wrong arguments, wrong order of calls."""

    exit_code = 2


class ConfigError(Error, ValueError):
    """The job, or an override: every mistake of it, each with its place. Also a state that does not fit."""

    exit_code = 3


class DatasetError(Error, RuntimeError):
    """The data: missing, empty, or an unusable sample under `on_error: fail`."""

    exit_code = 4


class PeerLostError(Error, ConnectionError):
    """A rank, receiver or program that this one needs is gone, or silent for `trainer.timeout_s`."""

    exit_code = 5


def warn(text: str) -> None:
    """A RuntimeWarning at the program's line that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == os.path.dirname(__file__):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, RuntimeWarning, stacklevel=level)


_BY_CODE = {kind.exit_code: kind for kind in (RunError, UsageError, ConfigError, DatasetError, PeerLostError)}


def make(exit_code: int, message: str, remedy: str) -> Error:
    """The exception for one of the library's errors."""
    if exit_code == ConfigError.exit_code:
        from ._job import by_keyword  # which knows these classes
        message = by_keyword(message)
    remedy = remedy.replace("set on_error: substitute", 'say on_error="substitute"').replace("bad_samples.max_", "bad_samples__max_")
    remedy = remedy.replace("the program's timeout_s, else", "timeout=, else")
    error = typed(_BY_CODE.get(exit_code, RunError)(message, remedy))
    if type(error) is PeerLostError and re.search(r" waited [\d.]+ s for ", message):  # torch's error where `timeout` is over
        return as_raised(error, [RuntimeError])
    if type(error) is DatasetError and "repair or remove the files" in remedy:  # as open() and Pillow say it of a picture
        found = re.search(r"cannot open '(.*)': " + re.escape(os.strerror(errno.ENOENT)), message)
        if found is None:
            return as_raised(error, [OSError])
        error = as_raised(error, [FileNotFoundError], FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), found[1]))
        error.__cause__ = None
    return error


def typed(error: Error) -> Error:
    """`error` as an instance of the class, too, that its message says a worker's code raised."""
    return as_raised(error, (_class_named(*names) for names in classes_in(error.message)))


def as_raised(error: Error, kinds: Iterable[Any], raised: Optional[BaseException] = None) -> Error:
    """`error` as an instance of the first of `kinds` that can be, too; else itself. `raised`: whose arguments and attributes it
    gets, and which is its cause."""
    for kind in kinds:
        # One of _ENDS would end the program's loop as if there were no more batches. `kind` may be any class, its metaclass too.
        if not isinstance(kind, type) or not issubclass(kind, Exception) or kind is Exception or issubclass(kind, _ENDS):
            continue
        try:
            error = error if isinstance(error, kind) else _joined(error, kind, raised)
        except Exception:
            continue
        break
    if raised is not None:
        error.__cause__ = raised
    return error


_ENDS = (StopIteration, StopAsyncIteration)


def _joined(error: Error, kind: type, raised: Optional[BaseException]) -> Error:
    """No constructor of `kind` is called, which may want anything: only that of the class of Python's own which it is derived from.
    TypeError where objects of the two classes are laid out differently."""
    text, plain = str(error), type(error)
    made = type(f"{plain.__name__}[{kind.__name__}]", (plain, kind), {
        "__module__": plain.__module__, "message": error.message, "remedy": error.remedy, "__str__": lambda self: text,
        "__reduce__": lambda self, said=(error.message, error.remedy): (as_raised, (plain(*said), [kind]))})
    arguments = () if raised is None else _pythons_own(type(raised)).__reduce__(raised)[1]
    base = _pythons_own(made)
    one = base.__new__(made, *arguments)
    base.__init__(one, *arguments)
    one.args = error.args if raised is None else raised.args
    one.__dict__.update({} if raised is None else vars(raised))
    return one


def _pythons_own(kind: Any) -> Any:
    """The builtin class that says how objects of `kind` are laid out."""
    while kind.__module__ != "builtins":
        kind = kind.__base__
    return kind


def _class_named(module: str, name: str) -> Any:
    """Of a module that is imported, as names come out of a message; None: there is none."""
    found: Any = sys.modules.get({"__mp_main__": "__main__"}.get(module, module))
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)  # getattr() of a module may import
    return found
