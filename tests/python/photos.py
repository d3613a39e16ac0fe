"""The data and jobs that the package's tests share, and a way to run a script as a program of its own.

    from photos import job_file, TRAIN, script
"""

import atexit
import contextlib
import ctypes
import hashlib
import os
import resource
import shutil
import sys
import tempfile

from jobs import demo_photos, write_job
from leftovers import parent_of, run

# Skips with the reason where the package was not built for this Python.
try:
    import penstock  # noqa: F401
except ImportError as problem:
    print(f"SKIP: {problem}")
    sys.exit(77)

PHOTOS = demo_photos()  # 80 and 26 pictures
TRAIN = os.path.join(PHOTOS, "train")
VAL = os.path.join(PHOTOS, "val")
# In that of the test which started this process, if one did: it goes with that, however this process ends.
WORK = tempfile.mkdtemp(prefix="package-test-", dir=os.environ.get("PACKAGE_TEST_WORK"))
os.environ["PACKAGE_TEST_WORK"] = WORK
_OWNER = os.getpid()
atexit.register(lambda: os.getpid() == _OWNER and shutil.rmtree(WORK, ignore_errors=True))

# Splits "train" (train, 5 batches of 16, tail: pad) and "val" (eval, 2 batches of 16, the last of 10).
JOB = write_job(WORK, PHOTOS, trainers=1)


def tiny_job(**split):
    """A job of one split whose pictures cost little: uint8 centre crops."""
    return {"seed": 3, "loader": {"threads": 2, "memory_gb": 0.1}, "trainer": {"timeout_s": 20},
            "splits": {"train": {"mode": "train", "dataset": {"folder": TRAIN}, "batch_size": 16, "tail": "pad",
                                 "pipeline": [{"CenterCrop": {"size": 32}}], **split}}}


def slow_job(**trainer):
    """A job whose next batch never comes while two are held: what a wait looks like."""
    job = tiny_job()
    job["trainer"] = {"timeout_s": 20, "hold": 1, **trainer}
    return job


def descendants(pid=None):
    """The process ids, as texts, of all children of a process, by default this one, and of theirs. By every process's parent: the
    kernel's lists of children (/proc/PID/task/TID/children) may leave some out when others end at the same time."""
    children = {}
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            children.setdefault(str(parent_of(process)), []).append(process)
    found, parents = set(), [str(pid or os.getpid())]
    while parents:
        these = children.get(parents.pop(), [])
        found.update(these)
        parents += these
    return found


def open_files():
    return len(os.listdir("/proc/self/fd"))


def rss_mb():
    ctypes.CDLL(None).malloc_trim(0)  # glibc keeps up to 60 MB of what threads that ended have given back
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2 ** 20


def digest(tensor):
    """Of the bytes, in order of addresses for what is dense."""
    array = tensor if not hasattr(tensor, "detach") else tensor.detach().cpu().contiguous().view(-1).numpy()
    return hashlib.sha256(array.tobytes()).hexdigest()


def raises(kind, call, *words):
    """The exception, which must be of that kind and say all the words."""
    try:
        got = call()
    except kind as problem:
        for word in words:
            assert word in str(problem), (word, str(problem))
        return problem
    raise AssertionError(f"no {kind}, but a {type(got).__name__}")


def script(text, timeout=60, env=None, args=()):
    """Runs Python text as a program; the result has returncode, stdout, stderr."""
    path = os.path.join(WORK, f"script{hashlib.sha256(text.encode()).hexdigest()[:8]}.py")
    with open(path, "w") as file:
        file.write(text)
    return run([sys.executable, path, *args], timeout, env=env)
