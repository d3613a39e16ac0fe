"""Python workers are forked by a process that has imported their modules: what modules do at their top level harms no worker."""

import contextlib
import importlib
import os
import sys
import tempfile
import time
import warnings

import numpy as np

import penstock
from jobs import FULL, run_tests
from leftovers import run
from photos import WORK, descendants

sys.path.insert(0, WORK)
OUTPUT = {} if FULL else {"output": "numpy"}  # importing torch takes most of the time of these programs and workers
warnings.simplefilter("ignore")  # that the samples are made in Python

DATA = """
class Data:
    def __init__(self, size=8):
        self.size = size
    def __len__(self):
        return self.size
    def __getitem__(self, index):
        {item}
        return index
"""


def dataset(name, top_level, item="pass"):
    """An object of a class `Data` in a module of that name, with those lines at its top level and in __getitem__."""
    with open(os.path.join(WORK, f"{name}.py"), "w") as file:
        file.write(top_level + DATA.format(item=item))
    importlib.invalidate_caches()
    return importlib.import_module(name).Data()


def numbers(loader):
    return [int(one) for batch in loader for one in batch]


def fork_servers():
    """The descendants with a fork server's command line: servers, and the workers that they have forked."""
    found = set()
    for pid in descendants():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/cmdline") as file:
            if "_fork_server.py" in file.read():
                found.add(pid)
    return found


def test_one_process_imports_for_train_and_val():
    data = dataset("plain", "")
    with penstock.DataLoader(data, 4, num_workers=2, **OUTPUT) as train, penstock.DataLoader(data, 4, num_workers=2, **OUTPUT) as val:
        assert numbers(train) == numbers(val) == list(range(8))
        forked = fork_servers()
        workers = {pid for pid in forked if any(pid in descendants(other) for other in forked - {pid})}
        assert len(forked) - len(workers) == 1 and len(workers) >= 2, (forked, workers)


def test_files_that_a_module_opens():
    """Each worker has its own: they are programs then."""
    log = os.path.join(WORK, "log")
    data = dataset("logging_module", f"import os\nLOG = open({log!r}, 'a')\n", "LOG.write(f'{index} of {os.getpid()}\\n'); LOG.flush()")
    open(log, "w").close()
    with penstock.DataLoader(data, 4, num_workers=2, **OUTPUT) as loader:
        assert numbers(loader) == list(range(8))
        deadline = time.monotonic() + 30  # another test's may be about to end
        while found := fork_servers():
            assert time.monotonic() < deadline, found
            time.sleep(0.02)
    with open(log) as file:
        assert {int(line.split()[0]) for line in file} == set(range(8))


def test_exit_handlers_of_a_module_run_in_no_worker():
    folder = tempfile.mkdtemp(dir=WORK)
    gone = os.path.join(folder, "gone")
    data = dataset("with_handlers", f"import atexit, os\nif os.getpid() != {os.getpid()}:\n"
                   f"    atexit.register(lambda: os.mkdir({gone!r} + str(os.getpid())))\n")
    with penstock.DataLoader(data, 4, num_workers=2, **OUTPUT) as train:
        with penstock.DataLoader(data, 4, num_workers=2, **OUTPUT) as val:
            numbers(val)
        time.sleep(0.3)  # its workers have ended
        assert not os.listdir(folder)
        assert numbers(train) == list(range(8))
    deadline = time.monotonic() + 30
    while not os.listdir(folder):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len(os.listdir(folder)) == 1


def test_a_module_that_changes_what_is_global():
    data = dataset("changes_things", f"import os, signal, socket, sys\nif os.getpid() != {os.getpid()}:\n"
                   "    socket.setdefaulttimeout(0.1)\n    signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
                   "    class Tee:\n        def write(self, text): pass\n        def flush(self): pass\n    sys.stdout = Tee()\n",
                   "print(index)")
    others = descendants()  # of loaders that were closed just now
    with penstock.DataLoader(data, 4, num_workers=1, **OUTPUT) as loader:
        assert numbers(loader) == list(range(8))
        before = descendants() - others
        time.sleep(0.5)
        assert numbers(loader) == list(range(8)) and descendants() - others == before != set()


def test_the_working_folder_is_the_programs():
    data = dataset("relative", "import os\n", "assert os.path.exists('marker'), os.getcwd()")
    here, other = os.getcwd(), tempfile.mkdtemp(dir=WORK)
    open(os.path.join(other, "marker"), "w").close()
    with penstock.DataLoader(dataset("plain", ""), 4, num_workers=1, **OUTPUT) as first:
        numbers(first)
        os.chdir(other)
        try:
            with penstock.DataLoader(data, 4, num_workers=1, **OUTPUT) as second:
                assert numbers(second) == list(range(8))
        finally:
            os.chdir(here)


def test_a_forked_program_has_its_own():
    data = dataset("plain", "")
    with penstock.DataLoader(data, 4, num_workers=1, **OUTPUT) as loader:
        numbers(loader)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with penstock.DataLoader(data, 4, num_workers=1, **OUTPUT) as own:
                    code = 0 if numbers(own) == list(range(8)) else 2
            finally:
                os._exit(code)
        deadline = time.monotonic() + 60
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            assert time.monotonic() < deadline, os.kill(pid, 9)
            assert numbers(loader) == list(range(8))
        assert ended[1] == 0, ended


class Growing:
    """Samples that do not fit into the memory that was shared for the ones before."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        return rng.integers(0, 255, 20_000 << index % 6, np.uint8), np.array([{"a": index}, None], dtype=object), \
            np.zeros(2, [("x", "f4"), ("y", "i8")])


def test_samples_of_growing_size_and_of_any_dtype():
    for workers in (0, 1):
        with penstock.DataLoader(Growing(), 2, num_workers=workers, collate_fn=list, **OUTPUT) as loader:
            found = [sample for batch in loader for sample in batch]
            for index, (pixels, objects, structured) in enumerate(found):
                expected = Growing()[index]
                assert (pixels == expected[0]).all() and objects[0] == {"a": index} and objects[1] is None
                assert structured.dtype == expected[2].dtype


def test_a_pickle_of_any_kind_of_class():
    """The server looks at what a pickle names, and makes nothing of it."""
    try:
        import cloudpickle  # noqa: F401
    except ImportError:
        print("  without cloudpickle, classes of the program itself run its file")
    program = """
import os, sys
import penstock, warnings
warnings.simplefilter("ignore")
class Base:
    def __init__(self): self.tags = {"a", "b"}; self.nested = [{1: (2, 3)}]
    def __len__(self): return 4
class Mine(Base):
    def __setstate__(self, state):
        self.__dict__.update(state)
        with open(sys.argv[1], "a") as file: file.write(f"{os.getpid()}\\n")
    def __getitem__(self, index): return index
if __name__ == "__main__":
    with penstock.DataLoader(Mine(), 2, num_workers=1, **OUTPUT) as loader:
        print([int(one) for batch in loader for one in batch])
"""
    program = program.replace("**OUTPUT", f"**{OUTPUT!r}")
    path, made = os.path.join(WORK, "mine.py"), os.path.join(WORK, "made")
    with open(path, "w") as file:
        file.write(program)
    done = run([sys.executable, path, made], 60)
    assert done.returncode == 0 and "[0, 1, 2, 3]" in done.stdout, done.stderr
    with open(made) as file:
        pids = file.read().split()
    assert len(pids) == len(set(pids)) == 2, pids  # the program's own copy, and the worker's


if __name__ == "__main__":
    if FULL:
        import torch
        torch.set_num_threads(1)
    run_tests(globals())
