"""penstock.Preprocessor: the tensors of the DataLoader byte for byte, every kind of input, what is wrong with broken
bytes, threads, Ctrl-C, the check against a checkpoint; and the serving example."""

import contextlib
import io
import os
import pathlib
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from unittest import mock

import numpy as np
import torch

import penstock
from jobs import FULL, demo_photos, run_tests, write_job
from leftovers import BUSY_S

SOURCE = os.environ.get("PENSTOCK_SOURCE") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


class Photos:
    """The demo photos' validation split in the order of its dataset, and broken files; removed with the object."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        root = os.path.join(self.folder.name, "photos")
        os.makedirs(root)
        photos = demo_photos()
        os.symlink(os.path.join(photos, "train"), os.path.join(root, "train"))
        first = sorted(os.listdir(os.path.join(photos, "val")))[0]
        for name in os.listdir(os.path.join(photos, "val")):
            os.makedirs(os.path.join(root, "val", name))
            for file in os.listdir(os.path.join(photos, "val", name)):
                shutil.copy(os.path.join(photos, "val", name, file), os.path.join(root, "val", name, file))
        good = os.path.join(root, "val", first, sorted(os.listdir(os.path.join(root, "val", first)))[0])
        with open(good, "rb") as file:
            self.good = file.read()
        self.broken = {"a_empty.jpg": b"", "b_cut.jpg": self.good[:len(self.good) // 2], "c_text.jpg": b"<html>" * 9}
        for name, content in self.broken.items():
            with open(os.path.join(root, "val", first, name), "wb") as file:
                file.write(content)
        self.job = write_job(self.folder.name, root)
        self.paths = sorted((os.path.join(root, "val", c, f) for c in os.listdir(os.path.join(root, "val"))
                             for f in os.listdir(os.path.join(root, "val", c))),
                            key=lambda path: (os.path.dirname(path), os.path.basename(path)))


PHOTOS = Photos()


def raises(kind, part, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as error:
        assert part in str(error), f"{error!s} does not say {part!r}"
        return error
    raise AssertionError(f"no {kind.__name__}")


def bits(tensor):
    """Comparable bit for bit, whatever the dtype and memory format."""
    return tensor.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def test_equals_data_loader():
    ways = ({}, {"dtype": "float16", "channels_last": True}, {"dtype": torch.bfloat16}, {"dtype": "uint8"})
    for options in ways if FULL else ways[:2]:
        preprocess = penstock.Preprocessor(PHOTOS.job, split="val", **options)
        images, statuses = preprocess(PHOTOS.paths, errors="status")
        assert images.shape == (29, 3, 64, 64) and len(statuses) == 29
        loader = penstock.DataLoader(PHOTOS.job, split="val", on_error="substitute", num_replicas=1, rank=0, **options)
        seen = 0
        for batch in loader:
            for place, index in enumerate(batch.indices.tolist()):
                if not batch.valid[place] and statuses[index] is None:
                    continue  # padding
                assert torch.equal(bits(batch[0][place]), bits(images[index])), (options, index)
                assert bool(batch.valid[place]) == (statuses[index] is None)
                seen += 1
            assert batch[0].stride() == images[:len(batch[0])].stride()
        assert seen == 29
        assert sum(status is not None for status in statuses) == 3


def test_fast_equals_the_data_loader_and_says_so():
    small = [{"Resize": {"size": 72}}, {"CenterCrop": {"size": 64}}]
    fast = penstock.Preprocessor(PHOTOS.job, split="val", arithmetic="fast", splits__val__pipeline=small)
    exact = penstock.Preprocessor(PHOTOS.job, split="val", splits__val__pipeline=small)
    assert (fast.arithmetic, exact.arithmetic) == ("fast", "exact") and fast.fingerprint != exact.fingerprint
    raises(penstock.ConfigError, "arithmetic", fast.check, exact.state_dict())
    images, _ = fast(PHOTOS.paths, errors="status")
    others, _ = exact(PHOTOS.paths, errors="status")
    assert not torch.equal(images, others)
    loader = penstock.DataLoader(PHOTOS.job, split="val", arithmetic="fast", splits__val__pipeline=small,
                                 on_error="substitute", num_replicas=1, rank=0)
    for batch in loader:
        assert batch.arithmetic == "fast"
        for place, index in enumerate(batch.indices.tolist()):
            if batch.valid[place]:
                assert torch.equal(batch[0][place], images[index]), index


def test_opencv_equals_the_data_loader_and_is_another_pipeline():
    small = {"splits__val__pipeline": [{"Resize": {"size": [64, 64], "interpolation": "area"}}]}
    exact = penstock.Preprocessor(PHOTOS.job, split="val", splits__val__pipeline=[{"Resize": {"size": [64, 64]}}])
    opencv = penstock.Preprocessor(PHOTOS.job, split="val", arithmetic="opencv", **small)
    bgr = penstock.Preprocessor(PHOTOS.job, split="val", arithmetic="opencv", color="bgr", **small)
    unturned = penstock.Preprocessor(PHOTOS.job, split="val", arithmetic="opencv", exif=False, **small)
    assert opencv.arithmetic == "opencv"
    assert len({one.fingerprint for one in (exact, opencv, bgr, unturned)}) == 4
    raises(penstock.ConfigError, "arithmetic (saved: exact, now: opencv)", opencv.check, exact.state_dict())
    raises(penstock.ConfigError, "color", opencv.check, bgr.state_dict())
    raises(penstock.ConfigError, "exif", opencv.check, unturned.state_dict())
    opencv.check(opencv.state_dict())
    images, _ = opencv(PHOTOS.paths, errors="status")
    swapped, _ = bgr(PHOTOS.paths, errors="status")
    assert torch.equal(images, swapped.flip(1)) and not torch.equal(images, swapped)
    with penstock.DataLoader(PHOTOS.job, split="val", arithmetic="opencv", on_error="substitute", num_replicas=1, rank=0, **small) as loader:
        for batch in loader:
            assert batch.arithmetic == "opencv"
            for place, index in enumerate(batch.indices.tolist()):
                if batch.valid[place]:
                    assert torch.equal(batch[0][place], images[index]), index
    raises(penstock.ConfigError, "lanczos is Pillow's", penstock.Preprocessor, PHOTOS.job, split="val", arithmetic="opencv",
           splits__val__pipeline=[{"Resize": {"size": [64, 64], "interpolation": "lanczos"}}])


def test_inputs_and_shapes():
    preprocess = penstock.Preprocessor(PHOTOS.job, split="val", threads=1)
    wanted = preprocess(PHOTOS.good)
    assert wanted.shape == (1, 3, 64, 64) and wanted.dtype == torch.float32
    array = np.frombuffer(PHOTOS.good, np.uint8)
    path = next(p for p in PHOTOS.paths if open(p, "rb").read() == PHOTOS.good)
    kinds = [bytearray(PHOTOS.good), memoryview(PHOTOS.good), array, torch.tensor(array), path, pathlib.Path(path)]
    for kind in kinds:
        assert torch.equal(preprocess(kind), wanted), type(kind)
    many = preprocess(kinds)
    assert many.shape == (6, 3, 64, 64) and all(torch.equal(image, wanted[0]) for image in many)
    assert preprocess([]).shape == (0, 3, 64, 64)
    as_numpy = penstock.Preprocessor(PHOTOS.job, split="val", output="numpy")(PHOTOS.good)
    assert isinstance(as_numpy, np.ndarray) and np.array_equal(as_numpy, wanted.numpy())
    assert torch.equal(penstock.Preprocessor(PHOTOS.job, split="val", device="cpu")(PHOTOS.good), wanted)
    raises(penstock.UsageError, "image 1 is a int", preprocess, [PHOTOS.good, 7])
    raises(penstock.UsageError, "2 dimensions", preprocess, array[:100].reshape(10, 10))
    raises(penstock.UsageError, "image 0 is a ndarray", preprocess, array[::2])
    raises(penstock.UsageError, "4 bytes", preprocess, np.zeros(9, np.float32))
    raises(FileNotFoundError, "nowhere.jpg", preprocess, "/nowhere.jpg")


def test_broken_bytes_say_why():
    preprocess = penstock.Preprocessor(PHOTOS.job, split="val", limits__max_pixels=1_000_000)
    raises(penstock.DatasetError, "image cannot be used: empty file", preprocess, b"")
    raises(penstock.DatasetError, "premature end", preprocess, PHOTOS.good[:len(PHOTOS.good) // 2])
    raises(penstock.DatasetError, "image 1 of 2 cannot be used: not a JPEG, PNG", preprocess,
           [PHOTOS.good, b"<html>"])
    small = penstock.Preprocessor(PHOTOS.job, split="val", limits__max_pixels=100)
    raises(penstock.DatasetError, "over the limit of 100", small, PHOTOS.good)
    cut = next(path for path in PHOTOS.paths if path.endswith("b_cut.jpg"))
    raises(penstock.DatasetError, f"'{cut}' cannot be used", preprocess, pathlib.Path(cut))
    images, statuses = preprocess([b"", PHOTOS.good], errors="status")
    assert statuses == ["empty file", None]
    images, statuses = preprocess(["/nowhere.jpg", PHOTOS.good, "/dev/zero"], errors="status")
    assert "No such file" in statuses[0] and statuses[1] is None and "not a file" in statuses[2], statuses
    raises(OSError, "not a file: '/dev/zero'", preprocess, "/dev/zero")
    assert torch.equal(images[1], preprocess(PHOTOS.good)[0])
    # A black picture, finished: what an evaluating loader puts there.
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    assert torch.allclose(images[0].amax((1, 2)), -mean / std) and torch.allclose(images[0].amin((1, 2)), -mean / std)
    raises(penstock.UsageError, "errors=", preprocess, b"", errors="ignore")


def test_draws_need_an_index():
    preprocess = penstock.Preprocessor(PHOTOS.job, split="train")
    assert preprocess.random_transforms == ["RandomResizedCrop", "RandomHorizontalFlip"]
    raises(penstock.UsageError, "draws (RandomResizedCrop, RandomHorizontalFlip)", preprocess, PHOTOS.good)
    raises(penstock.UsageError, "1 images, but 2 indices", preprocess, [PHOTOS.good], index=[1, 2])
    one = preprocess(PHOTOS.good, index=5, epoch=2)
    assert torch.equal(one, preprocess([PHOTOS.good], index=[5], epoch=2, occurrence=[0]))
    assert not torch.equal(one, preprocess(PHOTOS.good, index=5, epoch=3))
    assert not torch.equal(one, preprocess(PHOTOS.good, index=5, epoch=2, occurrence=1))


def test_checkpoint_is_compared():
    loader = penstock.DataLoader(PHOTOS.job, split="val", num_replicas=1, rank=0)
    state = loader.state_dict()
    preprocess = penstock.Preprocessor(PHOTOS.job, split="val", dtype="float16", limits__max_pixels=10**7)
    preprocess.check(state)
    preprocess.check(preprocess.state_dict())
    other = penstock.Preprocessor(PHOTOS.job, split="val", overrides=["splits.val.pipeline.0.Resize.size=70"])
    assert other.fingerprint != preprocess.fingerprint and len(other.fingerprint) == 32
    for saved in (state, preprocess.state_dict()):
        raises(penstock.ConfigError, "splits.val.pipeline.0.Resize.size (saved: [72], now: [70])", other.check, saved)
    raises(penstock.ConfigError, "decoders: another then", preprocess.check, dict(state, decoders="another"))
    raises(penstock.ConfigError, "neither", preprocess.check, {})


def test_threads_and_lifetime():
    preprocess = penstock.Preprocessor(PHOTOS.job, split="val", threads=2)
    good = [path for path in PHOTOS.paths if os.path.basename(path) not in PHOTOS.broken]
    wanted = preprocess(good)
    equal = []
    callers = [threading.Thread(target=lambda: equal.extend(torch.equal(preprocess(good), wanted) for _ in range(5 if FULL else 2)))
               for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert equal == [True] * (20 if FULL else 8)
    copy = wanted.clone()
    preprocess.close()
    raises(penstock.UsageError, "closed", preprocess, PHOTOS.good)
    with penstock.Preprocessor(PHOTOS.job, split="val") as another:
        another([good[0]] * len(good))
    assert torch.equal(wanted, copy)


def test_bad_use():
    raises(penstock.ConfigError, "/nowhere.yaml", penstock.Preprocessor, "/nowhere.yaml", split="val")
    raises(penstock.UsageError, "vall", penstock.Preprocessor, PHOTOS.job, split="vall")
    raises(penstock.UsageError, "say split", penstock.Preprocessor, PHOTOS.job)
    raises(penstock.UsageError, "threads=0", penstock.Preprocessor, PHOTOS.job, split="val", threads=0)
    raises(penstock.UsageError, "is no job", penstock.Preprocessor, penstock.ImageFolder("x"))
    raises(penstock.UsageError, "int64", penstock.Preprocessor, PHOTOS.job, split="val", dtype="int64")
    for name, wrong in (("split", 3), ("channels_last", "no"), ("cpu_fraction", [1]), ("threads", 2.0)):
        raises(penstock.UsageError, name, penstock.Preprocessor, PHOTOS.job, **{"split": "val", name: wrong})
    preprocess = penstock.Preprocessor(PHOTOS.job, split="val", output="numpy")
    for name, wrong in (("index", 1.5), ("index", "a"), ("index", 2**70), ("occurrence", 1.0), ("epoch", 2**70)):
        raises(penstock.UsageError, f"{name}=", preprocess, PHOTOS.good, **{"index": 1, name: wrong})
    assert preprocess(PHOTOS.good, index=np.int64(1), epoch=np.int8(1)).shape[0] == 1


def test_ctrl_c_ends_a_call():
    program = ("import penstock, sys\n"
               "p = penstock.Preprocessor(sys.argv[1], split='val', threads=1, output=sys.argv[3])\n"
               "data = open(sys.argv[2], 'rb').read()\n"
               "try:\n    print('ready', flush=True)\n    p([data] * 200_000)\n"
               "except KeyboardInterrupt:\n    print('interrupted', flush=True)\n")
    path = next(path for path in PHOTOS.paths if os.path.basename(path) not in PHOTOS.broken)
    # uint8 of 64 x 64: 200,000 places are 2.5 GB of address space, of which few are touched before the signal.
    child = subprocess.Popen([sys.executable, "-c", program.replace("threads=1", "threads=1, dtype='uint8'"),
                              PHOTOS.job, path, "torch" if FULL else "numpy"], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "ready\n"
        try:
            child.wait(1 if FULL else 0.3)  # in the midst of it
        except subprocess.TimeoutExpired:
            pass
        child.send_signal(signal.SIGINT)
        begun = time.monotonic()
        assert child.stdout.readline() == "interrupted\n"
        assert time.monotonic() - begun < 5 + BUSY_S, "Ctrl-C took its time"  # the whole call would take a minute
        child.communicate(timeout=30)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0, child.returncode


def test_example():
    words = [os.path.join(SOURCE, "examples", "serve_preprocessor.py"), PHOTOS.job,
             *sorted(PHOTOS.paths, key=lambda path: os.path.basename(path))[-6:]]
    if FULL:
        run = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr
        said = run.stdout
    else:  # in this process, which has imported torch
        with contextlib.redirect_stdout(io.StringIO()) as out, mock.patch.object(sys, "argv", words):
            runpy.run_path(words[0], run_name="__main__")
        said = out.getvalue()
    assert "empty file" in said and "6 images" in said, said


if __name__ == "__main__":
    run_tests(globals())
