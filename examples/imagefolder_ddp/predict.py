"""What a trained network says of pictures: classes and their probabilities, or why a file is no picture.

    python examples/imagefolder_ddp/predict.py imagefolder-run/epoch-29.pt photo.jpg
    python examples/imagefolder_ddp/predict.py imagefolder-run/epoch-29.pt FOLDER

The pipeline is that of the job's split `val`, compared with the one that the checkpoint was validated with.
"""

import argparse
import os
import sys

import torch
import torchvision

import penstock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from common import checkpoint  # noqa: E402


def files_in(path):
    if not os.path.isdir(path):
        return [path]
    return sorted(os.path.join(top, name) for top, _, names in os.walk(path) for name in names)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("pictures", help="a picture, or a folder of them")
    parser.add_argument("--top", type=int, default=3, help="so many classes of each")
    arguments = parser.parse_args()

    state = checkpoint.load(arguments.checkpoint)
    if not isinstance(state, dict) or "classes" not in state.get("more", {}):
        raise SystemExit(f"'{arguments.checkpoint}' is no checkpoint of imagefolder_ddp/train.py")
    more = state["more"]
    model = torchvision.models.resnet34(num_classes=len(more["classes"]))
    checkpoint.load_model(model, state["model"], arguments.checkpoint)
    model.eval()
    preprocess = penstock.Preprocessor(more["job"], split="val", overrides=more["overrides"])
    preprocess.check(more["pipeline"])

    paths = files_in(arguments.pictures)
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
        images, statuses = preprocess(encoded, errors="status")
        with torch.inference_mode():
            shares = torch.softmax(model(images), 1)
        for path, status, share in zip(some, statuses, shares):
            if status:
                failed += 1
                print(f"{path}: no usable picture: {status}")
                continue
            best = share.topk(min(arguments.top, len(more["classes"])))
            print(f"{path}: " + ", ".join(f"{more['classes'][int(at)]} {float(value):.4f}" for value, at in zip(*best)))
    return 1 if failed == len(paths) else 0


if __name__ == "__main__":
    sys.exit(main())
