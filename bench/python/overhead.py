#!/usr/bin/env python3
"""What Python costs: the package beside the C++ client (bench_consumer), both with the loader in their own process.

    build/release/penstock demo-data PHOTOS --count 1000 --val-count 0
    PYTHONPATH=build/release/python build/venv/bin/python bench/python/overhead.py --data PHOTOS/train

Before anything is timed, every competitor goes through one epoch of both workloads and makes one number of all bytes,
labels and their order; another number than the C++ client's ends the run. Then two workloads, in rounds in which the
competitors take turns (odd rounds run backwards), each a fresh process on the same CPUs:

  photos   the delivery workload's pipeline (RandomResizedCrop(224), flip, normalised float32), batches of 64; the
           consumer reads one value of every cache line. Of Python over C++: images/s; images for a second of CPU time of
           the whole process (the loader is in it), which is the rate where the CPU is the limit, with and without the
           time of reading the values (NumPy's loop against a C++ loop is not what is asked for). And of the consumer's
           thread alone, microseconds of CPU time a batch without the reading.
  tiny     uint8 centre crops of 8x8, one a batch, and so many in a burst as are prefetched: batches lie ready, the
           consumer takes and drops them. Microseconds of CPU time per batch of the consumer's thread (what others do on
           the machine does not count) of Python less that of C++: what Python adds to a batch.

Prints one JSON line a block and at the end the medians with the range over rounds, beside the goals. A figure decides only
where its whole range lies on one side of the goal; the machine should do nothing else (the load is in every line).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.join(HERE, "..", "..", "build", "release")
TAKE = 100  # batches of a burst: they and the one before them are fewer than are prefetched
NAMES = ("cpp", "torch", "numpy")


def job(data, workload):
    pipeline = [{"CenterCrop": {"size": 8}}] if workload == "tiny" else [
        {"RandomResizedCrop": {"size": 224}}, {"RandomHorizontalFlip": {}}, {"ToDtype": {"dtype": "float32", "scale": True}},
        {"Normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}]
    return {"seed": 1, "loader": {"threads": 2, "memory_gb": 1, "prefetch": 4 if workload == "photos" else 128},
            "splits": {"train": {"mode": "train", "dataset": {"folder": data}, "pipeline": pipeline, "tail": "pad",
                                 "batch_size": 1 if workload == "tiny" else 64, "sampler": {"shuffle": True}}}}


def check(loader):
    """check of bench_consumer.cpp."""
    import numpy
    total = images = 0
    for pixels, labels in loader:
        for sample, label in zip(numpy.asarray(pixels), labels.tolist()):
            of_sample = int(numpy.ascontiguousarray(sample).view(numpy.uint8).sum(dtype=numpy.uint64))
            total = ((total * 31 + of_sample) * 31 + label) % 2**64
            images += 1
    return {"images": images, "check": f"{total:016x}"}


def take_bursts(loader, bursts):
    """take_bursts of bench_consumer.cpp."""
    cpu = batches = 0
    for _ in range(bursts):
        steps = iter(loader)
        batch = next(steps)
        time.sleep(1)
        before = time.thread_time()
        for _ in range(TAKE):
            batch = next(steps)
            images, labels = batch
            batches += 1
        cpu += time.thread_time() - before
    return {"batches": batches, "thread_cpu_s": cpu}


def consume(loader, seconds, warmup):
    """main of bench_consumer.cpp."""
    begun = time.monotonic()
    opened = None
    images = batches = 0
    checksum = touch_cpu = 0.0
    while True:
        for batch in loader:
            touched = time.thread_time()
            array = batch[0] if not hasattr(batch[0], "numpy") else batch[0].numpy()
            checksum += float(array.reshape(-1)[::16].sum())
            touch_cpu += time.thread_time() - touched
            batches += 1
            now = time.monotonic()
            if opened is None:
                if now - begun >= warmup and batches >= 8:
                    opened, cpu, thread_cpu, touch_cpu = now, time.process_time(), time.thread_time(), 0.0
                continue
            images += len(batch[1])
            if now - opened >= seconds:
                return {"images": images, "seconds": now - opened, "checksum": checksum,
                        "process_cpu_s": time.process_time() - cpu, "thread_cpu_s": time.thread_time() - thread_cpu,
                        "touch_cpu_s": touch_cpu}


def run_competitor(who, path, *how):
    words = [os.path.join(BUILD, "bench_consumer"), "--job", path] if who == "cpp" else [
        sys.executable, os.path.abspath(__file__), "--consume", path, "--output", who]
    done = subprocess.run([*words, *how], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{who} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def block(who, workload, path, arguments):
    if workload == "tiny":
        found = run_competitor(who, path, "--bursts", str(arguments.bursts), "--take", str(TAKE))
        return {"us_per_batch": 1e6 * found["thread_cpu_s"] / found["batches"], "batches": found["batches"]}
    found = run_competitor(who, path, "--seconds", str(arguments.seconds), "--warmup", str(arguments.warmup))
    images, cpu, touch = found["images"], found["process_cpu_s"], found["touch_cpu_s"]
    return {"images_per_s": images / found["seconds"], "us_per_image": 1e6 * cpu / images,
            "us_per_image_unread": 1e6 * (cpu - touch) / images,
            "thread_us_per_batch": 64e6 * (found["thread_cpu_s"] - touch) / images}


def same_output(paths):
    for workload, path in paths.items():
        found = {who: run_competitor(who, path, "--check", "1") for who in NAMES}
        print(json.dumps({"workload": workload, "checked": found}), flush=True)
        if any(one != found["cpp"] for one in found.values()):
            sys.exit(f"{workload}: the competitors do not get the same batches; nothing was timed")
        if workload == "tiny" and found["cpp"]["images"] <= TAKE:
            sys.exit(f"--data has {found['cpp']['images']} photos, and a burst takes {TAKE} after the first: give more")


def summary(values, form):
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def outcome(values, goal, more_is_better):
    better = [value >= goal if more_is_better else value <= goal for value in values]
    return "reached" if all(better) else "open: the range holds the goal" if any(better) else "MISSED"


def report(blocks, workload):
    loads = [one["load"] for ones in blocks.values() for one in ones]
    print(f"load average over the blocks: {summary(loads, '.1f')}")
    for who in NAMES[1:]:
        pairs = list(zip(blocks[who], blocks["cpp"]))
        if workload == "tiny":
            added = [mine["us_per_batch"] - cpp["us_per_batch"] for mine, cpp in pairs]
            print(f"tiny, {who}: {summary(added, '.1f')} us of CPU a batch more than the C++ client; goal 50: "
                  f"{outcome(added, 50, False)}")
            continue
        rates = [mine["images_per_s"] / cpp["images_per_s"] for mine, cpp in pairs]
        print(f"photos, {who}: images/s over the C++ client's {summary(rates, '.3f')}; goal 0.98: {outcome(rates, 0.98, True)}")
        for key, what in (("us_per_image", "images for a second of CPU"),
                          ("us_per_image_unread", "the same without reading the values")):
            rates = [cpp[key] / mine[key] for mine, cpp in pairs]
            print(f"photos, {who}: {what}, over the C++ client's {summary(rates, '.3f')}; goal 0.98: {outcome(rates, 0.98, True)}")
        added = [mine["thread_us_per_batch"] - cpp["thread_us_per_batch"] for mine, cpp in pairs]
        print(f"photos, {who}: {summary(added, '.1f')} us of CPU a batch more in the consumer's thread")
    if workload == "tiny":
        print(f"tiny, C++ client: {summary([one['us_per_batch'] for one in blocks['cpp']], '.1f')} us of CPU a batch")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help=f"class folders of photos, more than {TAKE}")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--warmup", type=float, default=1)
    parser.add_argument("--bursts", type=int, default=4, help="iterations in a block of the tiny workload")
    parser.add_argument("--cpus", type=int, default=2, help="everything runs on so many CPUs: the loader has 2 threads")
    parser.add_argument("--only", choices=("tiny", "photos"), help="one workload")
    parser.add_argument("--check-only", action="store_true", help="compare what the competitors get, and time nothing")
    for hidden in ("--consume", "--output", "--check", "--take"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.consume:
        import penstock
        loader = penstock.DataLoader(arguments.consume, split="train", output=arguments.output)
        found = check(loader) if arguments.check else take_bursts(loader, arguments.bursts) if arguments.take else \
            consume(loader, arguments.seconds, arguments.warmup)
        print(json.dumps(found))
        return
    if not arguments.data:
        parser.error("--data is missing: `penstock demo-data FOLDER` makes some")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:arguments.cpus])
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for workload in (arguments.only,) if arguments.only else ("tiny", "photos"):
            paths[workload] = os.path.join(folder, f"{workload}.json")
            with open(paths[workload], "w") as file:
                json.dump(job(os.path.abspath(arguments.data), workload), file)
        same_output(paths)
        if arguments.check_only:
            return
        for workload, path in paths.items():
            blocks = {who: [] for who in NAMES}
            for round_number in range(arguments.rounds):
                for who in NAMES if round_number % 2 == 0 else NAMES[::-1]:
                    one = {"load": os.getloadavg()[0], **block(who, workload, path, arguments)}
                    blocks[who].append(one)
                    print(json.dumps({"workload": workload, "round": round_number, "who": who, **one}), flush=True)
            report(blocks, workload)


if __name__ == "__main__":
    sys.exit(main())
