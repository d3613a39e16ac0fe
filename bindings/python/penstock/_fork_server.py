"""Where Python workers come from: a process that has imported what they need, and is forked for each.

Loaders start it as `python _fork_server.py SOCKET LIFELINE`, the numbers of two descriptors, and nobody else does; the C++ side
is runtime/datasets/python_fork_server.h. Importing torch takes seconds of CPU time, and every worker would spend them.

It imports modules and makes nothing: each worker unpickles its dataset, or calls its factory, by itself after the fork, so
that workers never share a file or a connection. While it imports it has one thread, or it does not fork: locks of other
threads would stay locked in a worker.

   PREPARE config -> imports what the config of a hello (_worker.py) names -> 1 where it can fork, or 0
   FORK number, with four descriptors (the worker's socket, output, lifeline, and where to say how it ended) -> its pid

When a worker ends, its wait status (u32) is written to the last of its descriptors. The worker is reaped once the other end of
that is closed, so that its pid is nobody else's while the loader may use it.
"""

import gc
import importlib
import io
import json
import os
import pickle
import select
import socket
import struct
import sys

import _worker

del sys.modules["_worker"]  # a dataset's module may have that name

PREPARE, FORK = 4, 5
NUMBER = struct.Struct("<I")
PID = struct.Struct("<I")
STATUS = struct.Struct("<I")


class _Nothing(type):
    """Takes whatever a pickle does to an object, and does nothing."""
    def _ignore(cls, *_args, **_kwargs):
        return None
    __setitem__ = _ignore
    append = extend = add = update = _ignore
    __setstate__ = _ignore


class Nothing(metaclass=_Nothing):
    def __new__(cls, *_args, **_kwargs):
        return cls


class Importing(pickle.Unpickler):
    """Imports the modules that a pickle names, and makes none of its objects."""

    def find_class(self, module, name):
        try:
            importlib.import_module(module)
        except Exception:
            pass  # the worker will say so
        return imported if name == "subimport" else Nothing  # cloudpickle's name for a module

    def persistent_load(self, _name):
        return Nothing


def imported(name):
    try:
        return importlib.import_module(name)
    except Exception:
        return Nothing


def wait_status(ended):
    """As os.waitpid() says it, of what os.waitid() says."""
    return ended.si_status << 8 if ended.si_code == os.CLD_EXITED else ended.si_status


class ForkServer(_worker.Worker):
    def __init__(self, connection):
        super().__init__(connection, 0)
        self.poll = select.poll()
        self.poll.register(connection, select.POLLIN)
        self.living = {}    # {pidfd: (pid, where to say how it ended)}
        self.ended = {}     # {where that was said: pid}
        self.received = []

    def prepare(self, body):
        config = json.loads(bytes(body))
        _worker.import_from(config)
        for name in [*config["functions"], *([config["python"]] if config["python"] else [])]:
            imported(name.partition(":")[0])
        if config["pickle"]:
            Importing(io.BytesIO(self.pickled(config["pickle"]))).load()

    def can_fork(self):
        try:
            os.close(os.pidfd_open(os.getpid()))
        except (AttributeError, OSError):
            return False
        return len(os.listdir("/proc/self/task")) == 1

    def answer(self, kind, body):
        if kind != PREPARE:
            return super().answer(kind, body)
        try:
            self.prepare(body)
        except (Exception, SystemExit):
            pass  # a worker does the same, and says what went wrong
        gc.collect()
        gc.freeze()  # workers' collectors leave these objects alone, so their pages stay shared
        return _worker.GOOD, [b"1" if self.can_fork() else b"0"]

    def receive(self, size):
        """As Worker's, and keeps descriptors that come along."""
        data = bytearray()
        while len(data) < size:
            got, descriptors, _, _ = socket.recv_fds(self.connection, size - len(data), 4)
            self.received += descriptors
            if not got:
                return None
            data += got
        return data

    def fork(self, number):
        """The arguments of _worker.run() in the worker, None here."""
        theirs, output, lifeline, status = self.received
        self.received = []
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            return number, theirs, lifeline, self.program
        try:
            os.setpgid(pid, pid)
        except OSError:
            pass  # it has done so itself
        for descriptor in (theirs, output, lifeline):
            os.close(descriptor)
        pidfd = os.pidfd_open(pid)
        self.living[pidfd] = pid, status
        self.poll.register(pidfd, select.POLLIN)
        self.reply(_worker.GOOD, [PID.pack(pid)])
        return None

    def say_the_end(self, pidfd):
        pid, status = self.living.pop(pidfd)
        self.poll.unregister(pidfd)
        os.close(pidfd)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        try:
            os.write(status, STATUS.pack(wait_status(ended)))
        except OSError:
            pass  # nobody wants to know
        self.ended[status] = pid
        self.poll.register(status, 0)  # POLLERR comes unasked, when the other end closes

    def reap(self, status):
        self.poll.unregister(status)
        os.close(status)
        os.waitpid(self.ended.pop(status), 0)

    def serve(self):
        """The arguments of _worker.run() in every worker; None here, once the loader has hung up."""
        while True:
            for descriptor, _ in self.poll.poll():
                if descriptor in self.living:
                    self.say_the_end(descriptor)
                elif descriptor in self.ended:
                    self.reap(descriptor)
                else:
                    head = self.receive(_worker.REQUEST.size)
                    body = self.receive(_worker.REQUEST.unpack(head)[0]) if head is not None else None
                    if body is None:
                        return None
                    kind = _worker.REQUEST.unpack(head)[1]
                    if kind != FORK:
                        self.reply(*self.answer(kind, body))
                    elif worker := self.fork(*NUMBER.unpack(body)):
                        return worker


def main():
    connection, lifeline = map(int, sys.argv[1:3])
    sys.argv[1:] = []
    _worker.begin(connection, lifeline)
    worker = ForkServer(socket.socket(fileno=connection)).serve()
    if worker is not None:
        _worker.run(*worker)


if __name__ == "__main__":
    main()
