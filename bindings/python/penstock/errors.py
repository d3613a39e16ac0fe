"""The exceptions of penstock: what happened, with names (file, rank, key), and what to do about it.

Each carries `message`, `remedy` (may be empty) and `exit_code`, which is the `penstock` program's for that kind; but
UnpicklableDataset, a dataset object that worker processes cannot be sent, is a plain TypeError.
"""

from ._pickled import UnpicklableDataset

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


_BY_CODE = {kind.exit_code: kind for kind in (RunError, UsageError, ConfigError, DatasetError, PeerLostError)}


def make(exit_code: int, message: str, remedy: str) -> Error:
    """The exception for one of the library's errors."""
    if exit_code == ConfigError.exit_code:
        from ._job import by_keyword  # which knows these classes
        message = by_keyword(message)
    return _BY_CODE.get(exit_code, RunError)(message, remedy)
