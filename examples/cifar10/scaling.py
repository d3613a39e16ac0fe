"""How training scales: images/s of one to N devices, by DistributedDataParallel, as a table.

    python examples/cifar10/scaling.py --data /data/cifar10 --image-size 112             # over this node's GPUs
    python examples/cifar10/scaling.py --data /data/cifar10 --devices 2 --device cpu     # over processes on its CPU

Each line is train.py with --spawn for two epochs, of which the second one counts; the batch of each device is the same.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

import torch

TRAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train.py")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--devices", type=int, default=torch.cuda.device_count() or 1)
    parser.add_argument("--batch-size", type=int, default=128, help="of each device")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--image-size", type=int, default=32)
    arguments = parser.parse_args()
    print("| devices | images/s | of one device's |\n|---|---|---|", flush=True)
    alone = None
    for count in range(1, arguments.devices + 1):
        with tempfile.TemporaryDirectory() as output:
            words = [sys.executable, TRAIN, "--data", arguments.data, "--epochs", "2", "--output", output, "--device", arguments.device,
                     "--image-size", str(arguments.image_size), "--batch-size", str(count * arguments.batch_size), "--spawn", str(count)]
            done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr}")
        rate = int(re.findall(r"(\d+) images/s", done.stdout)[-1])
        alone = alone or rate
        print(f"| {count} | {rate} | {rate / alone:.2f} |", flush=True)


if __name__ == "__main__":
    main()
