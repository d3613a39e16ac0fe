"""Serving: the pipeline that validation used, for bytes that arrive from anywhere.

    python serve_preprocessor.py job.yaml photo.jpg another.png

The model here is a stand-in; what to copy is the Preprocessor, its check against the checkpoint, and the batch form that
answers every request, also those whose bytes are no picture.
"""

import sys

import torch

import penstock


def main():
    job, *paths = sys.argv[1:]
    preprocess = penstock.Preprocessor(job, split="val", limits__max_pixels=50_000_000)

    # A checkpoint keeps the pipeline beside the weights: preprocess.state_dict(), or a DataLoader's state_dict().
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 10)).eval()
    checkpoint = {"model": model.state_dict(), "pipeline": preprocess.state_dict()}
    preprocess.check(checkpoint["pipeline"])  # ConfigError names what differs
    print(f"pipeline {preprocess.fingerprint}, {preprocess!r}")

    requests = []
    for path in paths:
        with open(path, "rb") as file:
            requests.append(file.read())
    with torch.inference_mode():
        images, statuses = preprocess(requests, errors="status")
        scores = model(images.float())
    for path, status, score in zip(paths, statuses, scores):
        print(f"{path}: {f'cannot be used: {status}' if status else f'class {int(score.argmax())}'}")
    print(f"{len(paths)} images")


if __name__ == "__main__":
    main()
