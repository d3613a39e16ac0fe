"""Predict first, then run, with real decoding: as emulated.py, but the loaders decode photos, on a machine whose cores suffice.

    bench/predict/photos.py calibrate DIR     # photos, a profile of the day, and the reference run beside it
    bench/predict/photos.py predict DIR       # writes DIR/predictions.jsonl: commit it before the next line
    bench/predict/photos.py run DIR [--repeat 5]   # every configuration behind a run of the reference
    bench/predict/photos.py correct DIR       # DIR/corrected.jsonl: the same predictions at the machine's speed of each turn
    penstock validate DIR/corrected.jsonl DIR/reports.jsonl --half-widths 1 --worst 0.15

The machine's speed drifts, and a profile is of one moment. So the reference, a job that loading alone limits, is measured with the
profile and before each configuration, and its ratio is the speed of the loaders' threads (nodes.here.speed) that the corrected
predictions are made with; nothing else of them changes."""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time

import emulated
from emulated import BUILD, HERE, PENSTOCK, PYTHON, no_leftovers

SECONDS = 8
PHOTOS = os.path.join(BUILD, "predict_photos")
# The photos take about 6.1 ms of it, so a thread makes about 160 a second.
USUAL = dict(trainers=1, loaders=1, threads=1, batch=16, prefetch=2, step_ms=10.0, spread=0.0, barrier=True, events=())
REFERENCE = "reference"
CONFIGS = {
    REFERENCE: dict(batch=32),
    "loading": dict(),
    "steps-150": dict(step_ms=150.0),
    "steps-200": dict(step_ms=200.0),
    "steps-300": dict(step_ms=300.0),
    "small-batches": dict(batch=4, step_ms=20.0),
    "large-batches": dict(batch=64, step_ms=400.0),
    "shallow": dict(prefetch=1, step_ms=120.0),
    "deep": dict(prefetch=6, step_ms=150.0, spread=0.5),
    "spread": dict(step_ms=150.0, spread=0.5),
    "two-trainers": dict(trainers=2, batch=8, step_ms=150.0),
    "two-loaders": dict(loaders=2, step_ms=110.0),
    "two-and-two": dict(trainers=2, loaders=2, batch=8, step_ms=110.0),
    "two-loaders-spread": dict(loaders=2, step_ms=120.0, spread=0.4),
    "three-loaders": dict(loaders=3, step_ms=120.0),
    # Near a knee, where the formula of rates says nothing of waits.
    "knee": dict(step_ms=100.0),
    "knee-shallow-spread": dict(prefetch=1, step_ms=105.0, spread=0.5),
    "knee-two-trainers-spread": dict(trainers=2, loaders=2, batch=8, step_ms=100.0, spread=0.6),
    "stopped": dict(loaders=2, step_ms=120.0, events=("stop:1@3+2",)),
    "killed": dict(loaders=2, step_ms=110.0, events=("kill:1@3",)),
}
# More threads than this machine's two cores: what no model here knows of. Published apart (run ... --oversubscribed), and no gate.
OVERSUBSCRIBED = {
    "over-two-threads": dict(threads=2, step_ms=20.0),
    "over-three-loaders": dict(loaders=3, step_ms=20.0),
    "over-two-by-two": dict(loaders=2, threads=2, step_ms=20.0),
}

JOB = """\
seed: 5
loader: {{threads: {threads}, prefetch: {prefetch}, memory_gb: 0.2, index_memory_mb: 0}}
trainer: {{timeout_s: 60, grace_s: 2}}
splits:
  train:
    mode: train
    dataset: {{list: {photos}}}
    pipeline: [{{RandomResizedCrop: {{size: 224}}}}, {{RandomHorizontalFlip: {{}}}}, {{ToDtype: {{dtype: float32, scale: true}}}}]
    sampler: {{shuffle: true}}
    batch_size: {batch}
    tail: drop
"""


def config_of(name):
    return dict(USUAL, **{**CONFIGS, **OVERSUBSCRIBED}[name])


def count_of(folder, c):
    with open(os.path.join(folder, "reference.json")) as file:
        rate = json.load(file)["thread_images_per_s"]
    per_s = min(c["loaders"] * c["threads"] * rate, c["trainers"] * c["batch"] * 1000 / c["step_ms"])
    steps = max(20, round(SECONDS * per_s / c["trainers"] / c["batch"]))
    return steps * c["trainers"] * c["batch"]


def write_job(work, folder, name, c, count):
    """The photos' paths, again and again, until there are enough: an epoch as long as the run."""
    paths = sorted(os.path.join(at, one) for at, _, names in os.walk(PHOTOS) for one in names
                   if one.endswith(".jpg"))
    listed = os.path.join(work, name + ".list")
    with open(listed, "w") as file:
        file.writelines(f"{paths[i % len(paths)]} {i % 7}\n" for i in range(count))
    path = os.path.join(work, name + ".yaml")
    with open(path, "w") as file:
        file.write(JOB.format(photos=listed, threads=c["threads"], prefetch=c["prefetch"], batch=c["batch"]))
    return path


def write_cluster(work, name, c):
    path = os.path.join(work, name + ".cluster.yaml")
    with open(path, "w") as file:
        file.write(f"nodes:\n  here: {{cores: 8, trainers: {c['trainers']}, loaders: {c['loaders']}}}\n"
                   f"program: {{step_ms: {c['step_ms']}, step_spread: {c['spread']}}}\n")
    return path


def run_once(folder, name):
    c = config_of(name)
    count = count_of(folder, c)
    with tempfile.TemporaryDirectory() as work:
        job = write_job(work, folder, name, c, count)
        begun = time.time()
        one = emulated.run_job(work, job, name, c)
    one.update(name=name, date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begun)), load=os.getloadavg()[0])
    return one


def calibrate(folder):
    if not os.path.isdir(PHOTOS):
        subprocess.run([PENSTOCK, "demo-data", PHOTOS, "--count", "300", "--val-count", "0", "--megapixels", "3", "6"], check=True)
    with open(os.path.join(folder, "reference.json"), "w") as file:
        json.dump({"thread_images_per_s": 120}, file)
    rates = []
    profile = os.path.join(folder, "profile.json")
    for turn in range(3):
        if turn == 1:
            with tempfile.TemporaryDirectory() as work:
                job = write_job(work, folder, "profile", config_of("loading"), 3000)
                subprocess.run([PENSTOCK, "launch", "--run", job, "-n", "2", "--quiet", f"--profile={profile}", "roles.trainers=1"],
                               check=True, timeout=300)
        rates.append(run_once(folder, REFERENCE)["images_per_s"])
    with open(os.path.join(folder, "reference.json"), "w") as file:
        json.dump({"images_per_s": statistics.mean(rates), "runs": rates, "thread_images_per_s": 120}, file)
    print(f"reference: {rates}")


def simulate(folder, work, name, speed=1.0):
    c = config_of(name)
    count = count_of(folder, c)
    words = [PENSTOCK, "simulate", write_job(work, folder, name, c, count), write_cluster(work, name, c), "--profile",
             os.path.join(folder, "profile.json"), "--json", "--quiet", "--seeds=20", f"--samples={count}", f"nodes.here.speed={speed}"]
    words += [word for event in c["events"] for word in ("--what-if", event)]
    told = json.loads(subprocess.run(words, check=True, capture_output=True, text=True, timeout=300).stdout)
    for key in ("job", "cluster"):
        told.pop(key)
    return dict(name=name, config=c, **told)


def predict(folder, configs):
    with tempfile.TemporaryDirectory() as work, open(os.path.join(folder, "predictions.jsonl"), "w") as out:
        for name in configs:
            told = simulate(folder, work, name)
            out.write(json.dumps(told) + "\n")
            print(f"{name}: {told['prediction']['images_per_s']['mean']:.1f} images/s, stalled {told['prediction']['stalled']['mean']:.3f}")


def run(folder, configs, repeat):
    path = os.path.join(folder, "reports.jsonl")
    done = {}
    if os.path.exists(path):
        with open(path) as file:
            for line in file:
                done[json.loads(line)["name"]] = done.get(json.loads(line)["name"], 0) + 1
    for turn in range(repeat):
        for name in configs:
            if name == REFERENCE or done.get(name, 0) > turn:
                continue
            reference = run_once(folder, REFERENCE)
            one = run_once(folder, name)
            with open(path, "a") as out:
                out.write(json.dumps(dict(one, turn=turn, reference_images_per_s=reference["images_per_s"])) + "\n")
            print(f"{turn} {name}: {one['images_per_s']:.1f} images/s, stalled {one['stalled']:.3f}, {one['cores']:.2f} cores; reference "
                  f"{reference['images_per_s']:.1f}", flush=True)


def correct(folder):
    with open(os.path.join(folder, "reference.json")) as file:
        usual = json.load(file)["images_per_s"]
    speeds = {}
    with open(os.path.join(folder, "reports.jsonl")) as file:
        for line in file:
            one = json.loads(line)
            speeds.setdefault(one["name"], []).append(one["reference_images_per_s"] / usual)
    with tempfile.TemporaryDirectory() as work, open(os.path.join(folder, "corrected.jsonl"), "w") as out:
        for name, list_of in speeds.items():
            out.write(json.dumps(simulate(folder, work, name, round(statistics.mean(list_of), 4))) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("calibrate", "predict", "run", "correct"))
    parser.add_argument("folder")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--oversubscribed", action="store_true", help="the configurations that no bound is for, in a folder of their own")
    words = parser.parse_args()
    os.makedirs(words.folder, exist_ok=True)
    configs = OVERSUBSCRIBED if words.oversubscribed else CONFIGS
    if words.what == "run":
        run(words.folder, configs, words.repeat)
    elif words.what == "predict":
        predict(words.folder, configs)
    else:
        {"calibrate": calibrate, "correct": correct}[words.what](words.folder)


if __name__ == "__main__":
    main()
