#!/usr/bin/env python3
"""What Python costs: the package beside the C++ client (bench_consumer), both with the loader in their own process.

    PYTHONPATH=build/release/python build/venv/bin/python bench/python/overhead.py --data /tmp/photos

Two workloads, in rounds in which the competitors take turns (odd rounds run backwards), each a fresh process:

  photos   the delivery workload's pipeline (RandomResizedCrop(224), flip, normalised float32), batches of 64; the
           consumer reads one value of every cache line. images/s of Python over that of C++, and CPU time of the whole
           process (the loader is in it) for an image, likewise: the rate where the CPU is the limit and nobody else is.
  tiny     uint8 centre crops of 8x8, one a batch, all of an epoch prefetched: batches lie ready, the consumer takes and
           drops them. Microseconds per batch of the consumer's thread (CPU time: what others do on the machine does not
           count) of Python less that of C++: what Python adds to a batch.

Prints one JSON line a block and at the end the medians with the range over rounds.
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


def job(data, workload):
    pipeline = [{"CenterCrop": {"size": 8}}] if workload == "tiny" else [
        {"RandomResizedCrop": {"size": 224}}, {"RandomHorizontalFlip": {}}, {"ToDtype": {"dtype": "float32", "scale": True}},
        {"Normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}]
    return {"seed": 1, "loader": {"threads": 2, "memory_gb": 1, "prefetch": 4 if workload == "photos" else 128},
            "splits": {"train": {"mode": "train", "dataset": {"folder": data}, "pipeline": pipeline, "tail": "pad",
                                 "batch_size": 1 if workload == "tiny" else 64, "sampler": {"shuffle": True}}}}


def take_bursts(path, output, bursts):
    """take_bursts of bench_consumer.cpp."""
    import penstock
    loader = penstock.DataLoader(path, "train", output=output)
    cpu = batches = 0
    for _ in range(bursts):
        steps = iter(loader)
        batch = next(steps)
        time.sleep(1)
        before = time.thread_time()
        for batch in steps:
            images, labels = batch
            batches += 1
        cpu += time.thread_time() - before
    print(json.dumps({"batches": batches, "thread_cpu_s": cpu}))


def consume(path, output, seconds, warmup):
    """main of bench_consumer.cpp."""
    import penstock
    loader = penstock.DataLoader(path, "train", output=output)
    begun = time.monotonic()
    opened = None
    images = batches = 0
    checksum = 0.0
    while True:
        for batch in loader:
            array = batch[0] if output == "numpy" else batch[0].numpy()
            checksum += float(array.reshape(-1)[::16].sum())
            batches += 1
            now = time.monotonic()
            if opened is None:
                if now - begun >= warmup and batches >= 8:
                    opened, cpu = now, time.process_time()
                continue
            images += len(batch[1])
            if now - opened >= seconds:
                print(json.dumps({"images": images, "seconds": now - opened, "checksum": checksum,
                                  "process_cpu_s": time.process_time() - cpu}))
                return


def block(who, workload, path, arguments):
    how = ["--bursts", str(arguments.bursts)] if workload == "tiny" else [
        "--seconds", str(arguments.seconds), "--warmup", str(arguments.warmup)]
    words = [os.path.join(BUILD, "bench_consumer"), "--job", path] if who == "cpp" else [
        sys.executable, os.path.abspath(__file__), "--consume", path, "--output", who, "--workload", workload]
    result = subprocess.run([*words, *how], capture_output=True, text=True, check=True)
    found = json.loads(result.stdout.strip().splitlines()[-1])
    if workload == "tiny":
        return {"us_per_batch": 1e6 * found["thread_cpu_s"] / found["batches"], "batches": found["batches"]}
    return {"images_per_s": found["images"] / found["seconds"],
            "us_per_image": 1e6 * found["process_cpu_s"] / found["images"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="class folders of photos")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--warmup", type=float, default=1)
    parser.add_argument("--bursts", type=int, default=4, help="passes in a block of the tiny workload")
    parser.add_argument("--only", choices=("tiny", "photos"), help="one workload")
    parser.add_argument("--consume", help=argparse.SUPPRESS)
    parser.add_argument("--output", help=argparse.SUPPRESS)
    parser.add_argument("--workload", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.consume:
        if arguments.workload == "tiny":
            return take_bursts(arguments.consume, arguments.output, arguments.bursts)
        return consume(arguments.consume, arguments.output, arguments.seconds, arguments.warmup)
    if not arguments.data:
        parser.error("--data is missing: `penstock demo-data FOLDER` makes some")
    names = ["cpp", "torch", "numpy"]
    blocks = {}
    with tempfile.TemporaryDirectory() as folder:
        for workload in (arguments.only,) if arguments.only else ("tiny", "photos"):
            path = os.path.join(folder, f"{workload}.json")
            with open(path, "w") as file:
                json.dump(job(os.path.abspath(arguments.data), workload), file)
            for round_number in range(arguments.rounds):
                for who in names if round_number % 2 == 0 else names[::-1]:
                    one = block(who, workload, path, arguments)
                    blocks.setdefault((workload, who), []).append(one)
                    print(json.dumps({"workload": workload, "round": round_number, "who": who, "load": os.getloadavg()[0], **one}),
                          flush=True)

    def summary(values, form):
        return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"

    def ratio(who, key, upside_down=False):
        pairs = [(a[key], b[key]) for a, b in zip(blocks["photos", who], blocks["photos", "cpp"])]
        return summary([b / a if upside_down else a / b for a, b in pairs], ".3f")

    for who in names[1:]:
        if arguments.only != "tiny":
            print(f"photos, {who}: images/s over the C++ client's {ratio(who, 'images_per_s')}, "
                  f"images for a second of CPU {ratio(who, 'us_per_image', upside_down=True)}")
        if arguments.only != "photos":
            added = [a["us_per_batch"] - b["us_per_batch"] for a, b in zip(blocks["tiny", who], blocks["tiny", "cpp"])]
            print(f"tiny, {who}: {summary(added, '.1f')} us a batch more than the C++ client")
    if arguments.only != "photos":
        print(f"tiny, C++ client: {summary([b['us_per_batch'] for b in blocks['tiny', 'cpp']], '.1f')} us a batch")


if __name__ == "__main__":
    sys.exit(main())
