"""Every published CIFAR-10 record of ../shared/data/cifar10: pixels, labels, counts a class; and from Python's version of them."""

import json
import os
import pickle
import sys
import tempfile

import numpy

import containers
import leftovers
from jobs import PENSTOCK, run_job

DATA = os.path.join(os.environ["PENSTOCK_SOURCE"], "..", "shared", "data", "cifar10")
JOB = """\
splits:
  train:
    mode: train
    dataset: {{cifar10: {data}, train: {train}}}
    pipeline: [{{CenterCrop: {{size: 32}}}}]
    batch_size: 512
    tail: torch
"""


def records(names):
    raw = b"".join(open(os.path.join(DATA, name), "rb").read() for name in names)
    return numpy.frombuffer(raw, numpy.uint8).reshape(-1, 3073)


def python_version(folder):
    """The same records in torchvision's layout."""
    top = os.path.join(folder, "cifar-10-batches-py")
    os.makedirs(top, exist_ok=True)
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        raw = open(os.path.join(DATA, name + ".bin"), "rb").read()
        pickled = containers.cifar_pickle([raw[at:at + 3073] for at in range(0, len(raw), 3073)])
        unpickled = pickle.loads(pickled, encoding="latin1")  # as torchvision does
        assert unpickled["data"].tobytes()[:3072] == raw[1:3073] and unpickled["labels"][0] == raw[0]
        with open(os.path.join(top, name), "wb") as file:
            file.write(pickled)


def pixel_hash(folder, data):
    job = os.path.join(folder, "hash.yaml")
    with open(job, "w") as file:
        file.write(JOB.format(data=json.dumps(os.path.abspath(data)), train="true"))
    return run_job(job).hashes()


def main():
    if not os.path.exists(os.path.join(DATA, "data_batch_1.bin")):
        print("SKIP: no ../shared/data/cifar10")
        return 77
    with open(os.path.join(DATA, "batches.meta.txt")) as file:
        names = file.read().split()
    for train, files in ((True, [f"data_batch_{i}.bin" for i in range(1, 6)]), (False, ["test_batch.bin"])):
        wanted = records(files)
        with tempfile.TemporaryDirectory(prefix="cifar10-") as top:
            job = os.path.join(top, "job.yaml")
            with open(job, "w") as file:
                file.write(JOB.format(data=json.dumps(os.path.abspath(DATA)), train=json.dumps(train)))
            out = os.path.join(top, "out")
            inspected = leftovers.run([PENSTOCK, "inspect", job, "--raw", "--steps=99", "--sheet=0", "--out", out], 120)
            assert inspected.returncode == 0, inspected.stderr
            checked = leftovers.run([PENSTOCK, "check", job, "--most=10"], 60)
            assert checked.returncode == 0, checked.stdout + checked.stderr
            parts = {"images": [], "labels": [], "indices": []}
            for folder, _, found in os.walk(out):
                for name in sorted(found):
                    for part, arrays in parts.items():
                        if name.endswith(part + ".npy"):
                            arrays.append(numpy.load(os.path.join(folder, name)))
        images, labels, indices = (numpy.concatenate(arrays) for arrays in parts.values())
        order = numpy.argsort(indices)
        assert (indices[order] == numpy.arange(len(wanted))).all()
        images, labels = images[order], labels[order]
        assert len(wanted) == (5170 if train else 1017), len(wanted)
        assert images.shape == (len(wanted), 3, 32, 32) and images.dtype == numpy.uint8, (images.shape, images.dtype)
        assert (images.reshape(len(wanted), -1) == wanted[:, 1:]).all()
        assert (labels == wanted[:, 0]).all()
        counts = numpy.bincount(wanted[:, 0], minlength=10)
        for name, count in zip(names, counts):
            line = next(line for line in checked.stdout.splitlines() if f" {name} " in line)
            assert line.split()[-1] == f"{count:,}" and count > 80, line
    with tempfile.TemporaryDirectory(prefix="cifar10-") as top:
        python_version(top)
        assert pixel_hash(top, top) == pixel_hash(top, DATA)
    print("ok: 5,170 and 1,017 records")
    return 0


if __name__ == "__main__":
    sys.exit(main())
