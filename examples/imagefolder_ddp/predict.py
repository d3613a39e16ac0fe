"""What a trained network says of pictures: classes and their probabilities, or why a file is no picture.

    python examples/imagefolder_ddp/predict.py imagefolder-run/epoch-29.pt photo.jpg
    python examples/imagefolder_ddp/predict.py imagefolder-run/epoch-29.pt FOLDER

The pipeline is that of the job's split `val`, compared with the one that the checkpoint was validated with.
"""

import argparse
import os
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]
from common.flags import plainly, positive  # noqa: E402
from trained import read_trained  # noqa: E402


def files_in(path):
    if not os.path.isdir(path):
        return [path]
    return sorted(os.path.join(top, name) for top, _, names in os.walk(path) for name in names)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("pictures", help="a picture, or a folder of them")
    parser.add_argument("--job", help="the job file, where it is not where it was")
    parser.add_argument("--top", type=positive, default=3, help="so many classes of each")
    arguments = parser.parse_args()

    trained = read_trained(arguments.checkpoint, job=arguments.job)
    paths = files_in(arguments.pictures)
    if not paths:
        raise SystemExit(f"'{arguments.pictures}' holds no file")
    failed = 0
    for first in range(0, len(paths), 32):
        some = paths[first:first + 32]
        encoded = []
        for path in some:
            try:
                with open(path, "rb") as file:
                    encoded.append(file.read())
            except OSError as problem:
                raise SystemExit(f"cannot read '{path}': {problem.strerror}") from None
        images, statuses = trained.preprocess(encoded, errors="status")
        with torch.inference_mode():
            shares = torch.softmax(trained.network(images), 1)
        for path, status, share in zip(some, statuses, shares):
            if status:
                failed += 1
                print(f"{path}: no usable picture: {status}")
                continue
            best = share.topk(min(arguments.top, len(trained.classes)))
            print(f"{path}: " + ", ".join(f"{trained.classes[int(at)]} {float(value):.4f}" for value, at in zip(*best)))
    return 1 if failed == len(paths) else 0


if __name__ == "__main__":
    sys.exit(plainly(main))
