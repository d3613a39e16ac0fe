"""Runs the GPU steps that bench/gpu.sh bundles: in order, each useful alone, as many as fit into the minutes given.

    bench/gpu.sh run                       what is not done yet, for 9 minutes; once more to go on
    bench/gpu.sh run bytes hashes          these steps, or groups of them, also if they are done
    bench/gpu.sh run --from scaling        from here on
    bench/gpu.sh list                      the steps, what each answers, and which are done
    bench/gpu.sh rehearse [STEP …]         in a repository: unpacks the bundle in a temporary folder and runs it with the
                                           GPU played by the CPU; what only a GPU can answer skips itself by name

A step is a program; what it prints on standard output as JSON objects, one a line, are its results, all else goes to
logs/STEP.txt. It passes by exit 0, is skipped by 77 with its reason, and has its processes ended when its time is over.
results.jsonl gets, a line each: `machine` once a run, `result` for each object, `step` at its end with outcome, seconds
and command; every line has the GPU, its driver and the date. Exit: 0 nothing failed, 1 something did, 75 (run me again)
where steps are left that did not fit.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROOT = os.path.dirname(SOURCE)  # of the unpacked bundle
SKIPPED, AGAIN = 77, 75


class Step:
    """What a step runs, for how many seconds at most, and what it answers. `played`: also where the CPU plays the GPU."""

    def __init__(self, name, group, seconds, words, answers, played=True, wants=()):
        self.name, self.group, self.seconds, self.words, self.answers = name, group, seconds, words, answers
        self.played, self.wants = played, wants


def own(program, *words):
    return ["{python}", "{gpu}/" + program, *words]


STEPS = [
    # Byte equality.
    Step("component", "bytes", 300, own("component.py"), "the kernels compile for this GPU, and what ptxas says of them", wants=["nvcc"]),
    Step("kernels", "bytes", 420, ["{build}/tests/gpu/cuda_gpu_test"], "every kernel on the GPU makes the CPU's bytes", played=False),
    Step("played_kernels", "bytes", 300, ["{build}/tests/gpu/gpu_kernels_test"], "the same checks with this CPU as the GPU"),
    Step("tensors", "bytes", 300, ["{python}", "{source}/tests/python/cuda_tensors_test.py"],
         "torch's streams, pinned memory, images finished on the GPU", played=False, wants=["torch"]),
    Step("nvjpeg", "bytes", 300, ["{build}/tests/gpu/cuda/nvjpeg_gpu_test"], "the real nvJPEG behind our decoder", played=False),
    Step("ipc", "bytes", 180, ["{build}/tests/gpu/cuda/exported_memory_processes_test"],
         "one process's GPU memory read by another, also when its owner is killed"),
    Step("pipelines", "bytes", 540, own("pipelines.py", "{data}/photos"), "whole pipelines: GPU = CPU = Pillow in every byte", wants=["torch"]),
    Step("hashes", "bytes", 480, own("hashes.py", "{data}/photos"),
         "one job's two hashes by CPU, GPU and both; delivery to a trainer's tensor on the same GPU", wants=["torch", "mpirun"]),
    # Memory and failures.
    Step("failures", "failures", 300, own("failures.py", "{data}/photos"),
         "out of memory, a kernel that never ends: named, the CPU goes on, same hashes", wants=["torch"]),
    Step("beside_trainer", "failures", 420, own("beside_trainer.py", "{data}/photos"),
         "a loader on the trainer's GPU: step time with and without; memory within its budget", wants=["torch"]),
    # Speed.
    Step("stages", "speed", 300, own("stages.py", "{data}/photos"), "the stages behind entropy decoding, images/s and bytes/s", wants=["torch"]),
    Step("decoders", "speed", 540, own("decoders.py", "{data}/photos"),
         "images/s to 224 beside nvJPEG, torchvision and, where it is there, DALI", wants=["torch"]),
    Step("scaling", "speed", 540, own("scaling.py", "{data}/photos"), "the CPU path over threads and loaders", wants=["torch", "mpirun"]),
    # What may not work on a machine that is borrowed.
    Step("sanitizer", "tools", 540, own("tool.py", "compute-sanitizer", "--error-exitcode=9", "{build}/tests/gpu/cuda_gpu_test"),
         "compute-sanitizer's memory checker over the kernels", played=False),
    Step("counters", "tools", 300, own("tool.py", "ncu", "--clock-control=none", "--set=basic", "--launch-count=40", "{build}/bench_gpu_stages", "{data}/photos", "--rounds=1"),
         "the hardware's counters of the slowest kernels", played=False),
]


def placed(word):
    for name, path in {"python": sys.executable, "source": SOURCE, "build": os.path.join(ROOT, "build"),
                       "gpu": os.path.join(SOURCE, "bench", "gpu"), "data": os.path.join(ROOT, "shared", "data")}.items():
        word = word.replace("{" + name + "}", path)
    return word


def output_of(*words):
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        return done.stdout.strip() if done.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        return ""


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def machine(played):
    gpu = output_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap", "--format=csv,noheader").splitlines()
    name, driver, memory, capability = [word.strip() for word in gpu[0].split(",")] if gpu else ("", "", "", "")
    cpu = ""
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    with open(os.path.join(ROOT, "bundle.json")) as file:
        bundle = json.load(file)
    return {"gpu": "played by the CPU" if played else name or "none", "driver": driver, "gpu_memory": memory, "compute_capability": capability,
            "cpu": cpu, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(), "python": platform.python_version(),
            "nvcc": output_of("nvcc", "--version").rpartition("\n")[2], "torch": output_of(
                sys.executable, "-c", "import torch; print(torch.__version__)"), **bundle}


def environment(played):
    build = os.path.join(ROOT, "build")
    env = {**os.environ, "PENSTOCK_BUILD": build, "PENSTOCK_SOURCE": SOURCE, "PYTHONUNBUFFERED": "1",
           "PENSTOCK_NVJPEG": os.path.join(ROOT, "lib", "libnvjpeg.so.13"),
           "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def before(name, *folders):
        env[name] = os.pathsep.join([*folders, *filter(None, [os.environ.get(name)])])
    before("PATH", os.path.join(ROOT, "openmpi", "bin"), build)
    # The component is loaded by name by tests that are linked from libpenstock's parts.
    before("LD_LIBRARY_PATH", build)
    before("PYTHONPATH", os.path.join(build, "python"), os.path.join(SOURCE, "bench", "gpu"), os.path.join(SOURCE, "tests", "support"),
           os.path.join(SOURCE, "tests", "python"), *([os.path.join(ROOT, "wheels_unpacked")] if os.path.isdir(
               os.path.join(ROOT, "wheels_unpacked")) else []))
    if played:
        env["PENSTOCK_GPUS"] = "host"
    return env


def unpack_wheels():
    """Wheels that came along, where a step can import them. Without what they need: that is the machine's."""
    target = os.path.join(ROOT, "wheels_unpacked")
    wheels = [os.path.join(ROOT, "wheels", name) for name in os.listdir(os.path.join(ROOT, "wheels"))] if os.path.isdir(
        os.path.join(ROOT, "wheels")) else []
    if wheels and not os.path.isdir(target):
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--target", target, *wheels],
                       check=False)


def as_result(line):
    if line.startswith("{"):
        try:
            value = json.loads(line)
            return value if isinstance(value, dict) else None
        except ValueError:
            pass
    return None


def why_skipped(log):
    with open(log, errors="replace") as file:
        for line in file:
            if line.startswith("SKIP: "):
                return line[6:].strip()
    return "it gave no reason"


class Results:
    def __init__(self, path, common):
        self.path, self.common = path, common

    def add(self, kind, **fields):
        with open(self.path, "a") as file:
            file.write(json.dumps({"kind": kind, "date": now(), **self.common, **fields}) + "\n")

    def last(self):
        """{step: outcome} of what the file has of this bundle and this GPU."""
        found = {}
        if os.path.exists(self.path):
            with open(self.path) as file:
                for line in file:
                    one = json.loads(line)
                    if one["kind"] == "step" and all(one.get(key) == value for key, value in self.common.items()):
                        found[one["step"]] = one["outcome"]
        return found


def end_of(process):
    """Ends the step's session: programs that a step starts are in it, and nothing else is."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            return
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            pass


def run_step(step, results, env, words, seconds):
    log = os.path.join(ROOT, "logs", step.name + ".txt")
    os.makedirs(os.path.dirname(log), exist_ok=True)
    begun = time.monotonic()
    count = 0
    with open(log, "w") as file:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file, text=True, errors="replace", env=env,
                                   cwd=ROOT, start_new_session=True)
        late = threading.Event()
        timer = threading.Timer(seconds, lambda: (late.set(), end_of(process)))
        timer.start()
        for line in process.stdout:
            result = as_result(line)
            if result is None:
                file.write(line)
                file.flush()
            else:
                count += 1
                results.add("result", step=step.name, **{"result": result})
        code = process.wait()
        timer.cancel()
        end_of(process)
    outcome, why = ("passed", "") if code == 0 else ("failed", f"exit {code}")
    if code == SKIPPED:
        outcome, why = "skipped", why_skipped(log)
    if late.is_set():
        outcome, why = "timed out", f"its {seconds:.0f} s were over"
    results.add("step", step=step.name, outcome=outcome, why=why, seconds=round(time.monotonic() - begun, 1), results=count,
                command=" ".join(words).replace(ROOT + "/", ""))
    return outcome, why


def tail(path, lines=25):
    with open(path, errors="replace") as file:
        return "".join(file.readlines()[-lines:])


def chosen(words, first):
    names = [step.name for step in STEPS]
    groups = {step.group for step in STEPS}
    for word in [*words, *filter(None, [first])]:
        if word not in names and word not in groups:
            sys.exit(f"gpu.sh: no step '{word}'\n  help: {', '.join(names)}; or groups: {', '.join(sorted(groups))}")
    steps = [step for step in STEPS if not words or step.name in words or step.group in words]
    if first:
        steps = STEPS[next(at for at, step in enumerate(STEPS) if first in (step.name, step.group)):]
    return steps


def missing(step, env):
    for what in step.wants:
        if what == "torch" and not output_of(sys.executable, "-c", "import torch; print(1)"):
            return "no torch for this Python"
        if what in ("nvcc", "mpirun") and not shutil.which(what, path=env["PATH"]):
            return f"no {what} in PATH"
    return ""


def show(given):
    """The steps; in an unpacked bundle with the last outcome of each, whatever GPU it was on."""
    outcomes = {}
    path = os.path.join(ROOT, "results.jsonl")
    if os.path.exists(path):
        with open(path) as file:
            outcomes = {one["step"]: f"{one['outcome']} ({one['gpu']})" for one in map(json.loads, file) if one["kind"] == "step"}
    for step in chosen(given.steps, given.first):
        print(f"{step.name:16}{step.group:10}{step.answers}" + (f": {outcomes[step.name]}" if step.name in outcomes else ""))
    return 0


def run(given, played):
    if not os.path.exists(os.path.join(ROOT, "bundle.json")):
        sys.exit("gpu.sh: this is not an unpacked bundle\n  help: bench/gpu.sh bundle makes one; bench/gpu.sh rehearse tries it here")
    about = machine(played)
    if not played and about["gpu"] == "none":
        sys.exit("gpu.sh: nvidia-smi names no GPU\n  help: bench/gpu.sh rehearse plays it by the CPU")
    with open(os.path.join(ROOT, "bundle.json")) as file:
        if not about["python"].startswith(json.load(file)["built_for_python"] + "."):
            print(f"gpu.sh: the package in this bundle is for Python {about['python']}; PYTHON=… names one", file=sys.stderr)
    env = environment(played)
    unpack_wheels()
    path = os.path.join(ROOT, "results.jsonl")
    results = Results(path, {key: about[key] for key in ("gpu", "driver", "commit")})
    done = results.last()
    asked = bool(given.steps)
    steps = chosen(given.steps, given.first)
    results.add("machine", **{key: value for key, value in about.items() if key not in results.common})
    end = time.monotonic() + 60 * given.minutes
    left, failed = [], []
    for step in steps:
        # What failed is run again: the bundle may have been mended.
        if not asked and done.get(step.name) in ("passed", "skipped"):
            continue
        seconds = min(step.seconds, end - time.monotonic())
        if seconds < min(step.seconds, 60 * given.minutes * 0.9):
            left.append(step.name)
            continue
        why = missing(step, env) or ("only a GPU can answer it" if played and not step.played else "")
        if why:
            outcome = "skipped"
            results.add("step", step=step.name, outcome=outcome, why=why, seconds=0, results=0, command="")
        else:
            outcome, why = run_step(step, results, env, [placed(word) for word in step.words], seconds)
        print(f"{step.name:16}{outcome:11}{why}", flush=True)
        if outcome in ("failed", "timed out"):
            failed.append(step.name)
            print(tail(os.path.join(ROOT, "logs", step.name + ".txt")), flush=True)
        if os.environ.get("OUT"):
            shutil.copy(path, os.environ["OUT"])
    print(f"results: {path}")
    if left:
        print(f"not begun, as their time is longer than what was left: {', '.join(left)}; run it once more")
    return 1 if failed else AGAIN if left else 0


def rehearse(given):
    bundle = os.path.join(SOURCE, "build", "gpu", "penstock_gpu.tar.gz")
    if not os.path.exists(bundle):
        sys.exit("gpu.sh: no bundle yet\n  help: bench/gpu.sh bundle")
    with tempfile.TemporaryDirectory(prefix="penstock-gpu-") as folder:
        subprocess.run(["tar", "xf", bundle, "-C", folder], check=True)
        words = [sys.executable, os.path.join(folder, "penstock_gpu", "source", "bench", "gpu", "run.py"), "run", "--played",
                 f"--minutes={given.minutes}", *given.steps]
        code = subprocess.run(words, env={**os.environ, "OUT": ""}).returncode
        kept = os.path.join(SOURCE, "build", "gpu", "rehearsal")
        shutil.rmtree(kept, ignore_errors=True)
        os.makedirs(kept)
        for name in ("results.jsonl", "logs"):
            path = os.path.join(folder, "penstock_gpu", name)
            if os.path.exists(path):
                shutil.move(path, os.path.join(kept, name))
        print(f"kept in {os.path.relpath(kept, SOURCE)}")
        return code


def main():
    parser = argparse.ArgumentParser(prog="bench/gpu.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["run", "list", "rehearse"])
    parser.add_argument("steps", nargs="*", metavar="STEP", help="steps or groups of them; none: all that are not done")
    parser.add_argument("--from", dest="first", metavar="STEP", help="this one and all behind it")
    parser.add_argument("--minutes", type=float, help="no step is begun that would not end in this time (9; rehearse: 60)")
    parser.add_argument("--played", action="store_true", help="the CPU plays the GPU, also where there is one")
    given = parser.parse_intermixed_args()
    given.minutes = given.minutes or (60 if given.verb == "rehearse" else 9)
    verb = {"run": lambda: run(given, given.played), "rehearse": lambda: rehearse(given), "list": lambda: show(given)}[given.verb]
    sys.exit(verb())


if __name__ == "__main__":
    main()
