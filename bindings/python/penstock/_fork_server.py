"""Where Python workers come from: a process that has imported what they need, and is forked for each.

Loaders start it as `python _fork_server.py SOCKET LIFELINE`, the numbers of two descriptors, and nobody else does; the C++ side
is runtime/datasets/python_fork_server.h. Importing torch takes seconds of CPU time, and every worker would spend them.

It imports modules (and runs the program's own file, where classes are defined in it), and makes no object of a pickle and calls no
factory: each worker does that after the fork, so that workers share no file or connection. Where the imports have left
a thread or an open file, it does not fork: a lock could stay locked in a worker, and the file would be shared. What a module drew
at its top level is the same in all workers.

   PREPARE config -> imports what the config of a hello (_worker.py) names -> 1 where it can fork, or 0
   FORK number, with four descriptors (the worker's socket, output, lifeline, and where to say how it ended) -> its pid

When a worker ends, its wait status (u32) is written to the last of its descriptors. The worker is reaped once the other end of
that is closed, so that its pid is nobody else's while the loader may use it.

Exit handlers that the imports registered run when this process ends, and in no worker, as with multiprocessing.
"""

import ctypes
import gc
import importlib
import io
import json
import os
import pickle
import select
import signal
import socket
import struct
import sys

import _worker

del sys.modules["_worker"]  # a dataset's module may have that name

PREPARE, FORK = 4, 5
U32 = struct.Struct("<I")           # a worker's number, pid or wait status
LOOKED_AT = 1 << 20                 # bytes of a pickle, in whose beginning most classes are named
SYS_PIDFD_OPEN = 434


def open_pid(pid):
    """os.pidfd_open(), which some builds of Python lack."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(SYS_PIDFD_OPEN, pid, 0)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "pidfd_open")
    return descriptor


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
    """Imports the modules that a pickle names, and makes no object of theirs."""

    def find_class(self, module, name):
        try:
            importlib.import_module(module)
        except Exception:
            pass  # the worker will say so
        return imported if name == "subimport" else Nothing  # cloudpickle's name for a module


def imported(name):
    try:
        return importlib.import_module(name)
    except Exception:
        return Nothing


def wait_status(ended):
    """As os.waitpid() says it, but for the core flag, of what os.waitid() says."""
    return ended.si_status << 8 if ended.si_code == os.CLD_EXITED else ended.si_status


def open_files():
    return len(os.listdir("/proc/self/fd"))


class ForkServer(_worker.Worker):
    def __init__(self, connection):
        super().__init__(connection, 0)
        self.poll = select.poll()
        self.poll.register(connection, select.POLLIN)
        self.living = {}    # {pidfd: (pid, where to say how it ended)}
        self.ended = {}     # {where that was said: pid}
        self.received = []
        self.clean = True   # the imports have left neither a thread nor a file

    def prepare(self, body):
        config = json.loads(bytes(body))
        _worker.import_from(config)
        for name in [*config["functions"], *([config["python"]] if config["python"] else [])]:
            imported(name.partition(":")[0])
        if config["pickle"]:
            Importing(io.BytesIO(self.pickled(config["pickle"])[:LOOKED_AT])).load()

    def can_fork(self, files_before):
        self.clean = self.clean and len(os.listdir("/proc/self/task")) == 1 and open_files() == files_before
        return self.clean

    def answer(self, kind, body):
        return self.fork(*U32.unpack(body)) if kind == FORK else self.imported_for(body)

    def imported_for(self, body):
        try:
            os.close(open_pid(os.getpid()))
        except OSError:
            return _worker.GOOD, [b"0"]
        files_before = open_files()
        try:
            self.prepare(body)
        except (Exception, SystemExit):
            pass  # a worker does the same, and says what went wrong; and a pickle that was cut ends too early
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or there would be no status to ask for
        gc.collect()
        gc.freeze()  # workers' collectors leave these objects alone, so their pages stay shared
        return _worker.GOOD, [b"1" if self.can_fork(files_before) else b"0"]

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
        """Raises Forked in the worker."""
        received, self.received = self.received, []
        try:
            theirs, output, lifeline, status = received  # fewer where there were no descriptors left
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
        except (OSError, ValueError) as error:
            for descriptor in received:
                os.close(descriptor)
            return _worker.ENVIRONMENT, [str(error).encode()]
        if pid == 0:
            raise Forked(number, theirs, output, lifeline)
        for descriptor in (theirs, output, lifeline):
            os.close(descriptor)
        try:
            os.setpgid(pid, pid)
        except OSError:
            pass  # it has done so itself
        try:
            pidfd = open_pid(pid)
        except OSError as error:
            os.close(status)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return _worker.ENVIRONMENT, [str(error).encode()]
        self.living[pidfd] = pid, status
        self.poll.register(pidfd, select.POLLIN)
        return _worker.GOOD, [U32.pack(pid)]

    def say_the_end(self, pidfd):
        pid, status = self.living.pop(pidfd)
        self.poll.unregister(pidfd)
        os.close(pidfd)
        try:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            os.write(status, U32.pack(wait_status(ended)))
        except OSError:
            pass  # nobody wants to know
        self.ended[status] = pid
        self.poll.register(status, 0)  # POLLERR comes unasked, when the other end closes

    def reap(self, status):
        self.poll.unregister(status)
        os.close(status)
        try:
            os.waitpid(self.ended.pop(status), 0)
        except ChildProcessError:
            pass

    def serve(self):
        while True:
            for descriptor, _ in self.poll.poll():
                if descriptor in self.living:
                    self.say_the_end(descriptor)
                elif descriptor in self.ended:
                    self.reap(descriptor)
                elif descriptor == self.connection.fileno():
                    head = self.receive(_worker.REQUEST.size)
                    body = self.receive(_worker.REQUEST.unpack(head)[0]) if head is not None else None
                    if body is None:
                        return
                    self.reply(*self.answer(_worker.REQUEST.unpack(head)[1], body))

    def reap_all(self):
        for pidfd in list(self.living):
            pid, _ = self.living[pidfd]
            if select.select([pidfd], [], [], 0)[0]:
                os.waitpid(pid, 0)
        for status in list(self.ended):
            self.reap(status)


class Forked(BaseException):
    """The way out of the server, in a worker."""


def work(program, number, theirs, output, lifeline):
    os.setpgid(0, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    _worker.die_with(lifeline)
    _worker.close_others((theirs, lifeline))
    _worker.serve(theirs, number, program)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main():
    connection, lifeline = map(int, sys.argv[1:3])
    sys.argv[1:] = []
    _worker.begin(connection, lifeline)
    server = ForkServer(socket.socket(fileno=connection))
    try:
        server.serve()
    except Forked as worker:
        program, arguments = server.program, worker.args
        server.connection.detach()
    else:
        server.reap_all()
        return
    try:
        work(program, *arguments)
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
