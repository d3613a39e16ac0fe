#!/usr/bin/python3
"""Runs penstock and its peers side by side and writes what was measured.

    bench/run.py --data PHOTOS                                  all that are installed, 11 rounds of 5 s
    bench/run.py --data PHOTOS --rounds 3 --seconds 3           a quick look
    bench/run.py --data PHOTOS --only penstock,dali --cpus 0,1
    bench/run.py --data PHOTOS --only penstock,torch --threads 2,1     and with one thread: penstock@1, torch@1
    bench/run.py --data LARGE --workload hires                  photos of 2 to 24 MP: entered at the crop, and not

What happens: a trace of crops is made; who reads a format of its own writes it, timed; every competitor processes its
first samples, and the pixels are compared with Pillow's before anything is timed; then rounds of one block a
competitor, in turn forwards and backwards, each block a fresh process (or mpirun) pinned to the same CPUs, and after
each round penstock's CPU time by stage. bench/README.md says what is measured and how. Writes
RESULTS/DATE-WORKLOAD.jsonl and beside it the tables (.md) and the picture (.svg).

Exit status: 0, 1 when a competitor's pixels are wrong, a preparation or block failed or a goal (--goals) was missed, 2
for usage. Needs numpy, and Pillow in some python (Debian's python3-pil) for the reference.
"""

import argparse
import dataclasses
import datetime
import json
import os
import platform
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

import crop_trace
import figures

BENCH = os.path.dirname(os.path.abspath(__file__))
DELIVERY = os.path.join(BENCH, "delivery")
sys.path.insert(0, DELIVERY)
import common  # noqa: E402  (it lies beside the competitors, which import it too)


class Tolerance:
    """How far pixels may be from Pillow's, in steps of 1/255: any pixel, the mean of a photo, the mean of all.

    The mean of all is what tells a wrong crop, a missing flip or no antialiasing from another's rounding; the largest
    single difference says more about one decoder's crop borders."""

    def __init__(self, largest, photo, mean):
        self.largest, self.photo, self.mean = largest, photo, mean


@dataclasses.dataclass(frozen=True)
class Entry:
    """A competitor: its program, the environment it runs in, its variant, its limits (None: nothing to compare), and
    the name of the preparation it needs, which several may share."""

    program: str
    python: str
    variant: str
    tolerance: Tolerance | None
    preparation: str = ""


EXACT = Tolerance(0.001, 0.001, 0.001)  # float32 rounding of the normalisation is 0.00005
TORCH = Tolerance(2, 0.5, 0.1)
# Against Pillow's pixels of the photos as FFCV has them: a quick DCT, and a resize that has no antialiasing and, where
# it enlarges, sharper edges. Single pixels on edges say nothing then.
FFCV = Tolerance(256, 9.0, 2.5)
COMPETITORS = {
    "penstock": Entry("penstock.py", "system", "auto", EXACT),
    "penstock_indexed": Entry("penstock.py", "system", "indexed", EXACT, "penstock_index"),
    "penstock_learned": Entry("penstock.py", "system", "learned", EXACT),
    "penstock_packed": Entry("penstock.py", "system", "packed", EXACT, "penstock_pack"),
    "penstock_mpi": Entry("penstock.py", "system", "mpi", EXACT),
    "penstock_embedded": Entry("penstock.py", "system", "embedded", EXACT),
    "penstock_indexed_mpi": Entry("penstock.py", "system", "indexed_mpi", EXACT, "penstock_index"),
    "penstock_indexed_embedded": Entry("penstock.py", "system", "indexed_embedded", EXACT, "penstock_index"),
    "penstock_packed_embedded": Entry("penstock.py", "system", "packed_embedded", EXACT, "penstock_pack"),
    "penstock_packed_rewritten": Entry("penstock.py", "system", "packed_rewritten", EXACT, "penstock_pack_rewrite"),
    "penstock_avx2": Entry("penstock.py", "system", "avx2", EXACT),
    "penstock_indexed_avx2": Entry("penstock.py", "system", "indexed_avx2", EXACT, "penstock_index"),
    "penstock_packed_avx2": Entry("penstock.py", "system", "packed_avx2", EXACT, "penstock_pack"),
    "torch": Entry("torch_dataloader.py", ".venv", "torchvision", TORCH),
    "torch_pil": Entry("torch_dataloader.py", ".venv", "pil", TORCH),
    "dali": Entry("dali.py", ".venv", "plain", Tolerance(44, 1.5, 0.4)),
    "dali_fancy": Entry("dali.py", ".venv", "fancy", Tolerance(24, 0.5, 0.25)),
    "dali_own_draws": Entry("dali.py", ".venv", "own_draws", None),
    "ffcv": Entry("ffcv_loader.py", ".venv", "default", FFCV, "ffcv"),
    "ffcv_matched": Entry("ffcv_loader.py", ".venv", "matched", FFCV, "ffcv_matched"),
    "tfdata_service": Entry("tfdata_service.py", ".venv-tf", "service", Tolerance(64, 1.0, 0.4)),
    "tfdata_local": Entry("tfdata_service.py", ".venv-tf", "local", Tolerance(64, 1.0, 0.4)),
    "spdl": Entry("spdl_pipeline.py", ".venv", "ffmpeg", Tolerance(192, 6.0, 1.2)),
    "spdl_torchvision": Entry("spdl_pipeline.py", ".venv", "torchvision", TORCH),
    "webdataset": Entry("webdataset_shards.py", ".venv", "", TORCH, "webdataset"),
}
# Who runs without --only, where it is installed.
WORKLOADS = {
    "delivery": (
        *("penstock", "penstock_indexed", "penstock_packed", "torch", "dali", "dali_fancy", "ffcv", "ffcv_matched"),
        *("tfdata_service", "spdl", "webdataset"),
    ),
    "hires": ("penstock", "penstock_indexed", "penstock_packed", "penstock_packed_rewritten", "torch"),
}
# Speed of penstock over that of the peer: workload, variant of penstock, peer.
_FIRST = {"dali": 2.5, "dali_fancy": 2.5, "ffcv": 2.2, "ffcv_matched": 2.2, "torch": 3.2, "tfdata_service": 6.0}
_PREPARED = {"dali": 3.5, "dali_fancy": 3.5, "ffcv": 3.1, "ffcv_matched": 3.1, "torch": 4.5, "tfdata_service": 8.5}
GOALS = {
    "delivery": {"penstock": _FIRST, "penstock_indexed": _PREPARED, "penstock_packed": _PREPARED},
    "hires": {name: {"torch": 4.0} for name in ("penstock_indexed", "penstock_packed", "penstock_packed_rewritten")},
}


def entry_of(name):
    """Of `torch` as of `torch@1`, the same with one thread."""
    return COMPETITORS[name.partition("@")[0]]


def note(text):
    print(text, file=sys.stderr, flush=True)


# ------------------------------------------------------------------ a competitor's process


class Failed(Exception):
    """A competitor that ended, answered with an error or did not answer in time."""


class Process:
    """Starts a competitor, talks with it, and leaves nothing of it behind."""

    def __init__(self, name, trace, options):
        entry = entry_of(name)
        threads = name.partition("@")[2] or options.threads[0]
        command = [python_of(entry.python), os.path.join(DELIVERY, entry.program), "--variant", entry.variant]
        command += ["--data", options.data, *(["--trace", trace] if trace else [])]
        command += ["--batch", str(options.batch), "--threads", str(threads), "--warmup", str(options.warmup)]
        command += ["--prepared", os.path.join(options.scratch, entry.preparation) if entry.preparation else ""]
        if entry.program == "penstock.py":
            command += ["--build", options.build]
        self.errors = tempfile.TemporaryFile(mode="w+", errors="replace")
        # A session of its own, so that everything it starts can be ended with it.
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, options.cpus),
        )
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def ask(self, timeout, *words):
        try:
            self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
            self.process.stdin.flush()
            line = self.lines.get(timeout=timeout)
        except queue.Empty:
            raise Failed(f"no answer to '{words[0]}' in {timeout:.0f} s") from None
        except BrokenPipeError:
            line = None
        if line is None:
            raise Failed(f"ended: {self.last_errors()}")
        reply = json.loads(line)
        if "error" in reply:
            raise Failed(reply["error"])
        return reply

    def last_errors(self):
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read()[-4000:].splitlines() if line.strip()]
        return " / ".join(lines[-3:]) or f"status {self.process.poll()}"

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(timeout=30 if kind is None else 2)
        except subprocess.TimeoutExpired:
            note("  does not end by itself; killing it and its children")
            for pid in common.process_tree(self.process.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.process.wait()
        self.errors.close()


def python_of(environment):
    return sys.executable if environment == "system" else os.path.join(BENCH, environment, "bin", "python")


def missing(name, options):
    """Why a competitor cannot run here; empty when it can."""
    entry = entry_of(name)
    if entry.program == "penstock.py":
        words = entry.variant.split("_")
        for file in ("penstock", "bench_consumer"):
            if not os.access(os.path.join(options.build, file), os.X_OK):
                return f"{os.path.join(options.build, file)} is not built"
        if "packed" in words:
            asked = [os.path.join(options.build, "penstock"), "pack", "--help"]
            if subprocess.run(asked, capture_output=True, check=False).returncode != 0:
                return "this penstock has no command `pack`"
    elif not os.path.exists(python_of(entry.python)):
        return f"bench/{entry.python} is not there (bench/setup.sh makes it)"
    return ""


# ------------------------------------------------------------------ formats of their own


def prepare_all(names, trace, options):
    """Yields one "prepare" record a format, written before anything else by the first competitor that reads it."""
    users = {}
    for name in names:
        if entry_of(name).preparation:
            users.setdefault(entry_of(name).preparation, []).append(name)
    for preparation, readers in users.items():
        record = {"kind": "prepare", "name": preparation, "used_by": readers}
        folder = os.path.join(options.scratch, preparation)
        os.makedirs(folder)
        note(f"prepare {preparation} ...")
        try:
            with Process(readers[0], trace, options) as process:
                yield {**record, **process.ask(24 * 3600, "prepare", folder)}
        except Failed as error:
            yield {**record, "ok": False, "note": f"failed: {error}"}


# ------------------------------------------------------------------ before timing: are the pixels right?


def reference_pixels(trace, count, folder):
    """uint8 [count, 3, 224, 224] by Pillow, and its versions. Debian's python3 first: that is the promised one."""
    out = os.path.join(folder, "reference.npy")
    errors = []
    for python in ("/usr/bin/python3", sys.executable, python_of(".venv")):
        if os.path.exists(python):
            done = subprocess.run(
                [python, os.path.join(DELIVERY, "reference.py"), trace, str(count), out],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                return np.load(out), json.loads(done.stdout)["versions"]
            errors.append(f"{python}: {done.stderr.strip().splitlines()[-1:]}")
    raise SystemExit(f"run.py: no python with Pillow and numpy (apt-get install python3-pil python3-numpy): {errors}")


def normalised(pixels):
    """What a trainer gets from uint8 pixels, in float32 as ToDtype(scale) and Normalize compute it."""
    mean = np.array(common.MEAN, dtype=np.float32).reshape(3, 1, 1)
    std = np.array(common.STD, dtype=np.float32).reshape(3, 1, 1)
    return (pixels.astype(np.float32) / np.float32(255) - mean) / std


def difference(array, reference):
    """Differences from the reference in pixel steps: {max, photo, mean}. Batches are float32, already normalised."""
    if array.shape != reference.shape or array.dtype != np.float32:
        raise Failed(f"gave {array.dtype} {array.shape}, not float32 {reference.shape}")
    std = np.array(common.STD).reshape(3, 1, 1)
    largest, means = 0.0, []
    for got, pixels in zip(array, reference):  # one photo at a time: memory
        steps = np.abs(got.astype(np.float64) - normalised(pixels)) * std * 255
        largest = max(largest, float(steps.max()))
        means.append(float(steps.mean()))
    result = {"max": largest, "photo": max(means), "mean": statistics.fmean(means)}
    if not np.isfinite(list(result.values())).all():
        raise Failed("gave values that are not finite")
    return result


def too_far(result, tolerance):
    limits = {"max": tolerance.largest, "photo": tolerance.photo, "mean": tolerance.mean}
    return [f"{key} {result[key]:.3f} > {limit}" for key, limit in limits.items() if result[key] > limit]


def shifted(trace, count, out):
    """The trace with each box moved by one pixel, where there is room: what the check must notice."""
    with open(trace, encoding="utf-8") as lines, open(out, "w", encoding="utf-8") as file:
        for _, line in zip(range(count), lines):
            record = json.loads(line)
            x, y, width, height = record["crop"]
            record["crop"] = [x + 1 if x + width < record["width"] else max(0, x - 1), y, width, height]
            file.write(json.dumps(record) + "\n")


def check_all(names, trace, options, folder):
    """Yields one "check" record a competitor."""
    count = options.check
    reference, versions = reference_pixels(trace, count, folder)
    moved = os.path.join(folder, "shifted.jsonl")
    shifted(trace, count, moved)
    control = difference(normalised(reference_pixels(moved, count, folder)[0]), reference)
    note(f"control: boxes moved by one pixel differ by {control['mean']:.2f} in the mean")
    for name in names:
        tolerance = entry_of(name).tolerance
        record = {"kind": "check", "name": name, "images": count, "reference": versions}
        if tolerance is None:
            yield {**record, "note": "draws its own crops", "ok": True}
            continue
        if not too_far(control, tolerance):
            raise SystemExit(f"run.py: the tolerance of {name} would not notice boxes moved by a pixel")
        out = os.path.join(folder, "check.npy")
        try:
            with Process(name, trace, options) as process:
                reply = process.ask(300, "check", count, out)
            expected = reference
            if "trace" in reply:  # it drew the crops itself
                expected, _ = reference_pixels(reply["trace"], reply["images"], folder)
            array = np.load(out)
            result = difference(array, expected)
            wrong = too_far(result, tolerance)
            more = {}
            if reply.get("encoded_anew"):  # what became of the photos themselves
                more["originals"] = difference(array, reference[: len(array)])
            yield {
                **record,
                **result,
                **more,
                "images": reply["images"],
                "control_mean": control["mean"],
                "versions": reply.get("versions", {}),
                "ok": not wrong,
                **({"note": "pixels differ: " + ", ".join(wrong)} if wrong else {}),
            }
        except Failed as error:
            yield {**record, "ok": False, "note": f"failed: {error}"}
        if os.path.exists(out):
            os.remove(out)
        shutil.rmtree(out + ".photos", ignore_errors=True)


# ------------------------------------------------------------------ the machine


def first_line(path, default="?"):
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().strip()
    except OSError:
        return default


def machine(cpus):
    model = "?"
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {
        "cpu": model,
        "logical_cpus": os.cpu_count(),
        "pinned": sorted(cpus),
        "governor": first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", "?"),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def cpu_ticks(cpus):
    """(busy, stolen) ticks of the pinned CPUs since boot."""
    busy = stolen = 0
    with open("/proc/stat", encoding="ascii") as lines:
        for line in lines:
            words = line.split()
            if words[0].startswith("cpu") and words[0][3:].isdigit() and int(words[0][3:]) in cpus:
                user, nice, system, _, _, irq, softirq, steal = (int(word) for word in words[1:9])
                busy += user + nice + system + irq + softirq
                stolen += steal
    return busy, stolen


def describe_data(trace):
    """Sizes of the photos in the trace, for the header; reading them also puts them in the page cache."""
    with open(trace, encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines if line.strip()]
    photos = {record["path"]: record["width"] * record["height"] / 1e6 for record in records}
    sizes = []
    for path in photos:
        with open(path, "rb") as file:
            sizes.append(len(file.read()) / 1e3)
    pixels = list(photos.values())
    return {
        "photos": len(photos),
        "crops": len(records),
        "kb": {"mean": statistics.fmean(sizes), "median": statistics.median(sizes), "max": max(sizes)},
        "megapixels": {"mean": statistics.fmean(pixels), "median": statistics.median(pixels), "max": max(pixels)},
        "summary": f"{len(photos)} photos of {statistics.fmean(sizes):.0f} KB and {statistics.fmean(pixels):.2f} MP "
        f"in the mean (median {statistics.median(sizes):.0f} KB, {statistics.median(pixels):.2f} MP)",
    }


# ------------------------------------------------------------------ the run


def time_block(name, number, trace, options):
    """One block: a fresh process, its warm-up, its window."""
    record = {"kind": "block", "round": number, "name": name, "at": time.time()}
    busy, stolen = cpu_ticks(options.cpus)
    begin = time.monotonic()
    try:
        with Process(name, trace, options) as process:
            reply = process.ask(options.seconds + options.warmup + 120, "run", options.seconds)
            wall = time.monotonic() - begin
            ticks = cpu_ticks(options.cpus)
            own = common.tree_cpu_seconds(process.process.pid)  # children that ended are counted by who reaped them
    except Failed as error:
        return {**record, "error": str(error)}
    capacity = wall * len(options.cpus)
    per_s = os.sysconf("SC_CLK_TCK")
    record["foreign_cpu"] = max(0.0, ((ticks[0] - busy) / per_s - own) / capacity)
    record["stolen_cpu"] = (ticks[1] - stolen) / per_s / capacity
    reply.pop("versions", None)
    return {**record, **reply}


def stage_block(name, number, trace, options):
    """CPU time by stage, on one thread; for those that differ in it."""
    record = {"kind": "stages", "round": number, "name": name}
    try:
        with Process(name, trace, options) as process:
            return {**record, **process.ask(120, "stages", min(options.seconds, 3.0))}
    except Failed as error:
        return {**record, "error": str(error)}


def staged(names, options):
    if options.no_stages or not os.access(os.path.join(options.build, "bench_stages"), os.X_OK):
        return []
    alone = {"mpi", "embedded"}  # the same samples, handed over otherwise
    return [
        name
        for name in names
        if name.startswith("penstock") and "@" not in name and not alone & set(entry_of(name).variant.split("_"))
    ]


def make_trace(names, options, folder):
    """Path of the trace: the one given, else penstock's own crops, else drawn here."""
    if options.trace:
        return os.path.abspath(options.trace), "given"
    trace = os.path.join(folder, "trace.jsonl")
    if any(name.startswith("penstock") for name in names):
        with Process("penstock", "", options) as process:
            reply = process.ask(600, "trace", options.epochs, trace)
        note(f"trace: {reply['images']} crops as penstock draws them")
        return trace, "penstock inspect"
    records, seen = crop_trace.make_trace(options.data, options.epochs, options.batch, options.seed)
    with open(trace, "w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
    note(f"trace: {len(records)} crops of {seen['files']} photos ({seen['left_out']} files left out)")
    return trace, "crop_trace.py"


def output_path(folder, name):
    os.makedirs(folder, exist_ok=True)
    stem = os.path.join(folder, f"{datetime.date.today().isoformat()}-{name}")
    number, path = 1, stem + ".jsonl"
    while os.path.exists(path):
        number += 1
        path = f"{stem}-{number}.jsonl"
    return path


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="class folders of JPEG photos, e.g. from `penstock demo-data`")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a block's window")
    parser.add_argument("--warmup", type=float, default=2.0, help="seconds (and 8 batches) before the window")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument(
        "--threads", default="2", help="threads or worker processes that make batches; further counts run as NAME@COUNT"
    )
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="delivery")
    parser.add_argument("--label", default="", help="added to the name of the results, e.g. 420")
    parser.add_argument("--cpus", default="", help="pin everything to these, e.g. 0,1 (default: the first two allowed)")
    parser.add_argument("--only", default="", help=f"comma-separated: {', '.join(COMPETITORS)}")
    parser.add_argument("--baseline", default="", help="whose ratios to the others are shown (default: the first)")
    parser.add_argument("--check", type=int, default=256, help="samples whose pixels are compared before timing")
    parser.add_argument("--check-only", action="store_true", help="compare the pixels, time nothing")
    parser.add_argument("--trace", default="", help="replay this file (crop_trace.py, manifest.jsonl)")
    parser.add_argument("--epochs", type=int, default=4, help="length of the trace that is made")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-stages", action="store_true", help="without penstock's CPU time by stage")
    parser.add_argument("--scratch", default="", help="folder for what is prepared, on the disk of the photos")
    parser.add_argument("--goals", action="store_true", help="exit 1 when penstock misses a goal")
    parser.add_argument("--build", default=os.path.join(os.path.dirname(BENCH), "build", "release"))
    parser.add_argument("--out", default=os.path.join(BENCH, "results"))
    options = parser.parse_args()
    allowed = sorted(os.sched_getaffinity(0))
    options.cpus = {int(word) for word in options.cpus.split(",")} if options.cpus else set(allowed[:2])
    if not options.cpus <= set(allowed):
        parser.error(f"--cpus: only {allowed} may be used")
    options.data = os.path.abspath(options.data)
    if not os.path.isdir(options.data):
        parser.error(f"--data: {options.data} is no folder")
    try:
        options.threads = [int(word) for word in options.threads.split(",")]
    except ValueError:
        parser.error(f"--threads: '{options.threads}' is no list of numbers")
    if min(options.rounds, options.batch, *options.threads, options.check, options.epochs) < 1 or options.seconds <= 0:
        parser.error("counts and seconds must be positive")
    return parser, options


def choose(parser, options):
    if not options.only:
        names = []
        for name in WORKLOADS[options.workload]:
            reason = missing(name, options)
            if reason:
                note(f"without {name}: {reason}")
            else:
                names.append(name)
    else:
        names = list(dict.fromkeys(options.only.split(",")))
        for name in names:
            if name not in COMPETITORS:
                parser.error(f"--only: there is no '{name}'; known: {', '.join(COMPETITORS)}")
            if missing(name, options):
                parser.error(f"--only: {name}: {missing(name, options)}")
    if not names:
        parser.error("no competitor is installed; run bench/setup.sh")
    options.baseline = options.baseline or names[0]
    if options.baseline not in names:
        parser.error(f"--baseline: '{options.baseline}' does not run")
    return names + [f"{name}@{threads}" for threads in options.threads[1:] for name in names]


def goals_missed(results, workload):
    found = []
    for own, peers in GOALS[workload].items():
        for peer, goal in peers.items():
            ratios = results.ratios(own, peer, figures.images_per_s)
            if ratios and statistics.median(ratios) < goal:
                found.append(f"{own}: {statistics.median(ratios):.2f} of {goal} over {peer}")
    if not any(name in GOALS[workload] for name in results.names):
        found.append("no penstock ran that has goals")
    return found


def measure(names, options, write, folder):
    """Returns the competitors whose blocks or pixels failed."""
    trace, origin = make_trace(names, options, folder)
    write(
        {
            "kind": "header",
            "workload": options.workload,
            "label": options.label,
            "goals": GOALS[options.workload],
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "names": names,
            "baseline": options.baseline,
            "machine": machine(options.cpus),
            "data": {"trace": origin, **describe_data(trace)},
            "arguments": {
                key: getattr(options, key)
                for key in ("rounds", "seconds", "warmup", "batch", "threads", "epochs", "seed")
            },
        }
    )
    failed = []
    for record in prepare_all(names, trace, options):
        write(record)
        if record.get("ok"):
            note(f"prepare {record['name']}: {record['seconds']:.1f} s, {record['note']}")
        else:
            note(f"prepare {record['name']} FAILED: {record['note']}")
            failed += record["used_by"]
    prepared = [name for name in names if name not in failed]
    for record in check_all(prepared, trace, options, folder):
        write(record)
        shown = record.get("note") or f"max {record['max']:.3g}, mean {record['mean']:.2g}"
        note(f"check {record['name']:18} {'ok   ' if record['ok'] else 'WRONG'} {shown}")
        if not record["ok"]:
            failed.append(record["name"])
    if options.check_only:
        return failed
    timed = [name for name in names if name not in failed]  # wrong pixels have no speed
    for number in range(options.rounds):
        for name in timed if number % 2 == 0 else reversed(timed):
            record = time_block(name, number, trace, options)
            write(record)
            if "error" in record:
                failed.append(name)
                note(f"round {number + 1:2} {name:18} FAILED: {record['error']}")
            else:
                cpu = figures.cpu_ms_per_image(record)
                note(
                    f"round {number + 1:2} {name:18} {figures.images_per_s(record):7.0f} images/s"
                    + (f" {cpu:6.2f} CPU ms/image" if cpu is not None else "")
                    + f"  (others took {100 * record['foreign_cpu']:.0f} %)"
                )
        for name in staged(timed, options):
            record = stage_block(name, number, trace, options)
            write(record)
            if "error" in record:
                failed.append(f"{name} (stages)")
                note(f"round {number + 1:2} {name:18} stages FAILED: {record['error']}")
    return failed


def main():
    parser, options = parse_arguments()
    names = choose(parser, options)
    path = output_path(options.out, "-".join([options.workload, *([options.label] if options.label else [])]))
    folder = tempfile.mkdtemp(prefix="penstock-bench-run-")
    if options.scratch:
        os.makedirs(options.scratch, exist_ok=True)
    options.scratch = tempfile.mkdtemp(prefix="penstock-bench-prepared-", dir=options.scratch or None)
    try:
        with open(path, "w", encoding="utf-8") as file:

            def write(record):
                file.write(json.dumps(record) + "\n")
                file.flush()

            failed = measure(names, options, write, folder)
    except Failed as error:
        raise SystemExit(f"run.py: {error}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(options.scratch, ignore_errors=True)
    results = figures.load(path)
    if options.baseline in results.names:
        print(figures.write_report(path))
    note(f"written: {path}")
    if options.goals:
        for missed in goals_missed(results, options.workload):
            note(f"goal missed: {missed}")
            failed.append("goals")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
