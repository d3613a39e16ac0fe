"""What every competitor of the delivery workload shares: the protocol, the trace, the clock and the accounting.

A competitor is a program that the driver starts with the trace and a few options; then they talk in lines:

    driver  -> check 128 /tmp/out.npy     the first 128 samples of the trace, float32 [128, 3, 224, 224], normalised
    program <- {"ok": true, "images": 128}
    driver  -> prepare /tmp/folder        only where it reads a format of its own: writes it there
    program <- {"seconds": ..., "cpu_seconds": ..., "bytes": ..., "images": ..., "note": ...}
    driver  -> run 5                      batches for 5 seconds, after a warm-up
    program <- {"images": ..., "seconds": ..., "cpu_seconds": ..., "first_batch_s": ..., "max_rss": ..., ...}

A competitor written in Python is a class with two methods, handed to `main`:

    class Peer(common.Competitor):
        def batches(self, trace):   # endless iterator of batches, samples in the order of the trace, which it repeats
        def array(self, batch):     # the batch as a numpy array, without a copy
        def prepare(self, trace, folder):    # where it has a format; other processes find it as options.prepared
    common.main(Peer)

The work of the consumer is the same for all: `touch` reads one value of every cache line of every batch.
Standard library and numpy only, so that it runs in every environment.
"""

import argparse
import json
import os
import sys
import time

import numpy as np

SIZE = 224
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class Sample:
    """One line of the trace: which file, which box of it, mirrored or not."""

    __slots__ = ("path", "label", "x", "y", "width", "height", "flip")

    def __init__(self, record):
        self.path = record["path"]
        self.label = record.get("label", 0)
        self.x, self.y, self.width, self.height = record["crop"]
        self.flip = bool(record["flip"][0])


def read_trace(path):
    """Reads JSON lines as `penstock inspect` (manifest.jsonl) and crop_trace.py write them."""
    with open(path, encoding="utf-8") as lines:
        return [Sample(json.loads(line)) for line in lines if line.strip()]


def photos_of(trace):
    """(path, label) of every photo of the trace, in the order of their names: what formats are made of."""
    return sorted({(sample.path, sample.label) for sample in trace})


def touch(array):
    """The consumer's work: the sum of every 16th float, one of each cache line. Returns it, so it is not skipped."""
    return float(array.reshape(-1)[::16].sum())


# ------------------------------------------------------------------ accounting of the process tree, from /proc

_TICKS = os.sysconf("SC_CLK_TCK")


def _stat(pid):
    """Parent, CPU ticks (own and of children already reaped) and start time of a process; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), sum(int(value) for value in fields[11:15]), int(fields[19])


def process_tree(root):
    """Pids of `root` and everything below it."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = _stat(int(name))
            if stat is not None:
                children.setdefault(stat[0], []).append(int(name))
    tree, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        tree.append(pid)
        waiting.extend(children.get(pid, ()))
    return tree


def tree_cpu_seconds(root):
    """User + system seconds of the tree. Reaped children count with the parent that reaped them."""
    stats = [_stat(pid) for pid in process_tree(root)]
    return sum(stat[1] for stat in stats if stat is not None) / _TICKS


def tree_memory(root):
    """(largest resident set of one process, proportional set of the tree), in bytes. The second counts memory that
    processes share once; it is 0 where the kernel does not tell."""
    largest, proportional = 0, 0
    for pid in process_tree(root):
        try:
            with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
                for line in file:
                    if line.startswith("VmHWM:"):
                        largest = max(largest, int(line.split()[1]) * 1024)
            with open(f"/proc/{pid}/smaps_rollup", encoding="ascii", errors="replace") as file:
                for line in file:
                    if line.startswith("Pss:"):
                        proportional += int(line.split()[1]) * 1024
        except OSError:
            continue
    return largest, proportional


def seconds_since_start():
    """Age of this process: what a user waits for before the first batch includes the imports."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - _stat(os.getpid())[2] / _TICKS


class Preparation:
    """What writing a format costs: `with Preparation(folder) as cost: ...`, then cost.reply(images)."""

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        os.makedirs(self.folder, exist_ok=True)
        self.begin, self.cpu = time.monotonic(), self._cpu_seconds()
        return self

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self.begin
        self.cpu_seconds = self._cpu_seconds() - self.cpu

    @staticmethod
    def _cpu_seconds():
        times = os.times()  # children as well: they have ended by the time it is asked again
        return times.user + times.system + times.children_user + times.children_system

    def reply(self, images, **more):
        """`bytes` is what lies on the disk; pass encoded_bytes where photos were encoded anew."""
        files = [os.path.join(parent, name) for parent, _, names in os.walk(self.folder) for name in names]
        return {
            "ok": True,
            "images": images,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "bytes": sum(os.path.getsize(file) for file in files),
            **more,
        }


# ------------------------------------------------------------------ the competitor's side of the protocol


class Competitor:
    """Base of the Python competitors. `options` has batch, threads, variant and prepared, the folder of its format."""

    variants = ("",)

    def __init__(self, options):
        self.options = options

    def versions(self):
        return {}

    def batches(self, trace):
        raise NotImplementedError

    def array(self, batch):
        raise NotImplementedError

    def as_nchw(self, batch):
        """The batch for the comparison of pixels; a competitor whose layout differs overrides it."""
        return np.array(self.array(batch), dtype=np.float32)

    def prepare(self, trace, folder):
        raise NotImplementedError("reads the photos as they are")

    def close(self):
        pass

    def check(self, trace, count, out):
        """The first `count` samples. A pipeline is always fed whole batches, as in the timing."""
        arrays, images = [], 0
        for batch in self.batches(trace):
            arrays.append(self.as_nchw(batch))
            images += len(arrays[-1])
            if images >= count:
                break
        array = np.concatenate(arrays)[:count]
        np.save(out, array)
        return {"ok": True, "images": len(array), "versions": self.versions()}

    def run(self, trace, seconds, warmup):
        """Times whole batches. The window opens and closes with a batch in hand, so what is prefetched cancels out."""
        me = os.getpid()
        batches = iter(self.batches(trace))
        total = touch(self.array(next(batches)))
        first_batch_s = seconds_since_start()
        opens = time.monotonic() + warmup
        warm = 0
        while warm < 8 or time.monotonic() < opens:
            total += touch(self.array(next(batches)))
            warm += 1
        _, at_open = tree_memory(me)
        cpu = tree_cpu_seconds(me)
        begin = time.monotonic()
        images, slowest, before = 0, 0.0, begin
        while True:
            array = self.array(next(batches))
            total += touch(array)
            images += len(array)
            now = time.monotonic()
            slowest = max(slowest, now - before)
            before = now
            if now - begin >= seconds:
                break
        cpu = tree_cpu_seconds(me) - cpu
        largest, proportional = tree_memory(me)
        return {
            "images": images,
            "seconds": now - begin,
            "cpu_seconds": cpu,
            "first_batch_s": first_batch_s,
            "slowest_batch_s": slowest,
            "max_rss": largest,
            "pss": proportional,
            "pss_at_open": at_open,
            "checksum": total,
            "versions": self.versions(),
        }


def arguments(variants=("",)):
    parser = argparse.ArgumentParser(description="One competitor; the driver (run.py) talks to it in lines.")
    parser.add_argument("--trace", default="", help="JSON lines: path, crop [x, y, w, h], flip [h, v]")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2, help="threads or worker processes that make batches")
    parser.add_argument("--warmup", type=float, default=2.0, help="seconds before the window opens")
    parser.add_argument("--variant", choices=variants, default=variants[0])
    parser.add_argument("--prepared", default="", help="folder with what `prepare` wrote")
    parser.add_argument("--data", default="", help="the photo folder; only penstock itself needs it")
    return parser


def serve(answer):
    """Reads commands until the end of input. `answer` maps a word to a function of the other words."""
    # The protocol owns stdout; whatever libraries print there goes to stderr instead.
    replies = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        words = line.split()
        if not words:
            continue
        if words[0] == "quit":
            break
        try:
            reply = answer[words[0]](*words[1:])
        except Exception as error:  # the driver shows it; a traceback goes to stderr for whoever looks into it
            import traceback

            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")


def main(kind):
    options = arguments(kind.variants).parse_args()
    trace = read_trace(options.trace)
    competitor = kind(options)
    try:
        serve(
            {
                "prepare": lambda folder: competitor.prepare(trace, folder),
                "check": lambda count, out: competitor.check(trace, int(count), out),
                "run": lambda seconds: competitor.run(trace, float(seconds), options.warmup),
            }
        )
    finally:
        competitor.close()
