"""After a multi-process test nothing of it may be left: no process, socket, shared memory segment or file.

    from leftovers import no_leftovers, run

    with no_leftovers() as env:
        result = run([mpirun, "-n", "4", penstock, "run", "job.yaml"], timeout=60, env=env)
        assert result.returncode == 0, result.stderr

`no_leftovers` marks the environment it gives with PENSTOCK_TEST_ID; every process that inherits it, whoever its parent
is by then, is found by that mark. Processes, sockets and files are compared with a snapshot taken before and get 5 s to
vanish; what is left raises AssertionError, says what it is, and is killed (by its mark) so the next test starts clean.
Where tests run side by side (tests/run.sh), PENSTOCK_SHARED_MACHINE=1 leaves out sockets and files that might be another
test's, and gives everything BUSY_S longer; then `leftovers.py before FILE` and `leftovers.py after FILE` compare the machine
before and after all of them.
`run` starts a process group of its own and kills, when time is over, that group and whatever carries the same mark.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid

MARK = "PENSTOCK_TEST_ID"
# How much longer an end may take where other tests have the cores: a process that has to act may not run for seconds.
BUSY_S = 10 if os.environ.get("PENSTOCK_SHARED_MACHINE") == "1" else 0
# Open MPI's session folders, and ours; scratch folders of other tests have other names.
_OURS = re.compile(r"(ompi|openmpi|vader_segment|sm_segment|prte|pmix|psec).*|penstock-[a-z0-9]{10}")


def marked_processes(mark):
    """{pid: command line} of the living processes whose environment holds the mark."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if wanted not in file.read().split(b"\0"):
                    continue
            with open(f"/proc/{name}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in "ZX":
                    continue
            with open(f"/proc/{name}/cmdline", "rb") as file:
                found[int(name)] = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def python_workers(mark):
    """(Python workers, the fork servers that they come from) of the processes with that mark, as lists of pids."""
    all_of_them = marked_processes(mark)
    servers = [pid for pid, words in all_of_them.items() if "_fork_server.py" in words]
    workers = [pid for pid, words in all_of_them.items() if "_worker.py" in words]
    for pid in list(servers):
        try:
            if parent_of(pid) in servers:  # a forked worker has its forker's command line
                servers.remove(pid)
                workers.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            servers.remove(pid)
    return workers, servers


def _sockets():
    with open("/proc/net/unix") as file:
        names = (line.split()[-1] for line in file.readlines()[1:])
        return {name for name in names if name.startswith("@penstock")}


def _files():
    found = {os.path.join("/dev/shm", name) for name in os.listdir("/dev/shm")} if os.path.isdir("/dev/shm") else set()
    return found | {os.path.join("/tmp", name) for name in os.listdir("/tmp") if _OURS.fullmatch(name)}


def _kill(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _kill_marked(mark):
    """All of them: one look may miss a process that executes another program, and one that is being forked."""
    deadline = time.monotonic() + 20
    looks = 0  # that found nothing
    while looks < 2 and time.monotonic() < deadline:
        processes = marked_processes(mark)
        _kill(processes)
        looks = 0 if processes else looks + 1
        time.sleep(0.02)


@contextlib.contextmanager
def no_leftovers(wait_s=5.0, shared_machine=None):
    """Gives an environment with the mark and a TMPDIR of its own; at the end asserts that nothing new is left, there, in
    /tmp and /dev/shm, among sockets and processes.

    `shared_machine` True (or PENSTOCK_SHARED_MACHINE=1): other jobs come and go meanwhile, so only what is surely this
    test's is looked at: marked processes and TMPDIR.
    """
    if shared_machine is None:
        shared_machine = os.environ.get("PENSTOCK_SHARED_MACHINE") == "1"
    wait_s += BUSY_S if shared_machine else 0
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="leftovers-") as private:
        env = dict(os.environ, **{MARK: mark, "TMPDIR": private})
        env.pop("PYTHONUNBUFFERED", None)  # with it Python writes a line in pieces, and mpirun mixes those of several ranks

        def files():
            inside = {os.path.join(private, name) for name in os.listdir(private)}
            return inside if shared_machine else inside | _files()

        def sockets():
            return set() if shared_machine else _sockets()

        sockets_before, files_before = sockets(), files()
        failed = True
        try:
            yield env
            failed = False
        finally:
            deadline = time.monotonic() + wait_s
            looks = 0  # that found nothing: a process shows no environment while it executes another program
            while True:
                processes = marked_processes(mark)
                left = [f"process {pid}: {what}" for pid, what in sorted(processes.items())]
                left += [f"socket {name}" for name in sorted(sockets() - sockets_before)]
                left += [f"file {name}" for name in sorted(files() - files_before)]
                looks = 0 if left else looks + 1
                if looks == 2 or time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            if processes:
                _kill_marked(mark)
            if left:
                message = f"left behind {wait_s:g} s after the test:\n  " + "\n  ".join(left)
                if failed:  # the test's own failure is the one to report; say this beside it
                    print(message, flush=True)
                else:
                    raise AssertionError(message)


def run(cmd, timeout, env=None, **kwargs):
    """subprocess.run with captured text, in a process group of its own, of which nothing survives a timeout."""
    kwargs.setdefault("stdin", subprocess.DEVNULL)
    # Files, not pipes: a daemon that keeps a pipe open would keep us waiting after the command has ended.
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        process = subprocess.Popen(cmd, env=env, stdout=out, stderr=err, start_new_session=True, **kwargs)
        timed_out = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                mark = (env or {}).get(MARK)
                if mark is not None:
                    _kill_marked(mark)
        out.seek(0)
        err.seek(0)
        stdout, stderr = out.read(), err.read()
    if timed_out:
        raise AssertionError(f"{' '.join(map(str, cmd))} took longer than {timeout} s\n{stdout[-4000:]}\n{stderr[-4000:]}")
    return subprocess.CompletedProcess(cmd, process.returncode, stdout, stderr)


def _machine():
    found = {f"socket {name}" for name in _sockets()} | {f"file {name}" for name in _files()}
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and f"{MARK}=".encode() in open(f"/proc/{name}/environ", "rb").read():
                found.add(f"process {name}: " + open(f"/proc/{name}/cmdline", "rb").read().replace(b"\0", b" ").decode(errors="replace"))
    return found


def _main(when, path):
    if when == "before":
        with open(path, "w") as file:
            json.dump(sorted(_machine()), file)
        return 0
    with open(path) as file:
        before = set(json.load(file))
    deadline = time.monotonic() + 10
    while left := sorted(_machine() - before):
        if time.monotonic() > deadline:
            print("left behind by the tests:\n  " + "\n  ".join(left))
            return 1
        time.sleep(0.2)
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
