"""What the processes of a running job hold, seen from outside.

    with no_leftovers() as env:
        process = subprocess.Popen([PENSTOCK, "launch", "--run", …], env=env)
        pids = ranks(env)                 # {0: pid, 1: pid, …}
        figures(pids[0])                  # {"rss_mb": 12.5, "threads": 4, "readers": 1, "fds": 30}
        series = Series(pids); …; series.sample(); …; series.require_flat({"rss_mb": 2, "threads": 0.5, "fds": 1})
"""

import contextlib
import os
import re

from leftovers import MARK, marked_processes, parent_of


def environment_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return dict(item.split(b"=", 1) for item in file.read().split(b"\0") if b"=" in item)


def descends_from(pid, ancestor):
    while pid > 1 and pid != ancestor:
        pid = parent_of(pid)
    return pid == ancestor


def ranks(env, launcher=None):
    """pids by rank: mpirun's children; with `launcher`, a pid, those of its job alone."""
    found = {}
    for pid in marked_processes(env[MARK]):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if launcher is not None and not descends_from(pid, launcher):
                continue
            number = environment_of(pid).get(b"OMPI_COMM_WORLD_RANK")
            with open(f"/proc/{parent_of(pid)}/comm") as comm:
                if number is not None and comm.read().strip() in ("mpirun", "prterun"):
                    found[int(number)] = pid
    return found


def descriptors(pid):
    """What each of them leads to."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return sorted(found)


def cpu_s(pid):
    """Seconds that the process's threads have run."""
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def figures(pid):
    """Memory of its own, threads without those that the kernel's io_uring makes and ends as it likes, those that read ahead
    apart (the first one begins when a read has waited for the disk), descriptors."""
    with open(f"/proc/{pid}/status") as file:
        memory = re.search(r"RssAnon:\s*(\d+)", file.read())
    threads = readers = 0
    for name in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/task/{name}/comm") as comm:
            kind = comm.read().strip()
            readers += kind == "penstock-read"
            threads += kind != "penstock-read" and not kind.startswith("iou-")
    return {"rss_mb": int(memory.group(1)) / 1024, "threads": threads, "readers": readers, "fds": len(os.listdir(f"/proc/{pid}/fd"))}


class Series:
    """Figures of some processes over time, in thirds."""

    def __init__(self, pids):
        self.pids = dict(pids)
        self.seen = {who: [] for who in self.pids}

    def sample(self):
        for who, pid in self.pids.items():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, AttributeError):  # it has just ended
                self.seen[who].append(figures(pid))

    def fewest(self):
        return min(map(len, self.seen.values()))

    def require_flat(self, tolerance):
        """The mean of the last third is that of the second, or less, but for the tolerance."""
        for who, samples in self.seen.items():
            third = len(samples) // 3
            assert third >= 3, f"{who}: {len(samples)} samples"
            said = []
            for what, allowed in tolerance.items():
                middle, last = ([one[what] for one in part] for part in (samples[third:2 * third], samples[2 * third:]))
                before, after = sum(middle) / len(middle), sum(last) / len(last)
                said.append(f"{what} {before:.2f} -> {after:.2f}")
                assert after <= before + allowed, f"{who} grew: {what} from {before:.2f} to {after:.2f} (may: {allowed})"
            print(f"    {who}: second third -> last, means of {third} samples: {', '.join(said)}", flush=True)
