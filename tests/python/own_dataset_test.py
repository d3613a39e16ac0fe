"""`penstock.DataLoader(MyDataset(), ...)`: a user's own Python in the data path gives the stream that a folder gives."""

import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time

import numpy as np

from jobs import FULL, run_tests
from photos import TRAIN, descendants, raises, script

import own_functions
import penstock
from penstock import transforms as T

OUTPUT = "torch" if FULL else "numpy"  # importing torch takes most of the time; torch's tensors: own_samples_test, torch_datasets_test
STEPS = [T.RandomResizedCrop(48), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)]


class Photos:
    """What penstock.ImageFolder reads, by hand: encoded bytes and a label."""

    def __init__(self, root):
        classes = sorted(os.listdir(root))
        self.samples = [(os.path.join(root, name, file), number) for number, name in enumerate(classes)
                        for file in sorted(os.listdir(os.path.join(root, name)))]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        with open(path, "rb") as file:
            return file.read(), label


class Arrays:
    """Decoded pictures and a field besides."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index == 13:
            raise ValueError("no picture today")
        return {"image": np.full((40, 50, 3), index, np.uint8), "label": index % 3,
                "weight": np.float32([index, index / 2])}


class Captioned:
    def __len__(self):
        return 12

    def __getitem__(self, index):
        text = "x" * 300 if index == 7 else f"picture {index} \u2014 \U0001F600"
        return {"image": np.full((40, 50, 3), index, np.uint8), "label": index % 3, "text": text,
                "raw": bytes([index, 0]) * index, "weight": np.float32(index)}


def hashes(loader):
    for _ in loader:
        pass
    figures = loader.stats()["splits"]["train"]
    return figures["order_hash"], figures["pixel_hash"]


def load(dataset, **options):
    options.setdefault("output", OUTPUT)
    return penstock.DataLoader(dataset, batch_size=16, shuffle=True, seed=3, **options)


def test_the_same_stream_as_a_folder():
    with load(penstock.ImageFolder(TRAIN), transform=STEPS) as folder:
        expected = hashes(folder)
    with load(Photos(TRAIN), transform=STEPS, loader__threads=1) as own:
        assert len(own) == 5 and own.dataset_size == 80
        assert hashes(own) == expected


def test_fields_and_an_unusable_sample():
    with load(Arrays(), transform=[T.CenterCrop(32)], batch="dict", output="numpy", on_error="substitute",
              bad_samples__max_count=5) as own:
        substituted = 0
        for batch in own:
            assert set(batch) == {"image", "label", "weight"} and batch["weight"].shape == (len(batch["label"]), 2)
            stands_in = batch.substituted
            substituted += int(stands_in.sum())
            good = ~stands_in
            assert (batch["weight"][good, 0] == batch.indices[good]).all()
            assert (batch["image"][good, 0, 0, 0] == batch.indices[good]).all()
        assert substituted == 1
    with load(Arrays(), transform=[T.CenterCrop(32)]) as own:
        raises(penstock.DatasetError, lambda: list(own), "13", "no picture today")


class Talkative(Arrays):
    """Says more than is read of it, in letters of three bytes."""

    def __getitem__(self, index):
        if index == 4:
            raise ValueError("\u9519" * 3000)
        if index == 5:
            sys.exit("\u9519" * 3000)
        return super().__getitem__(index)


def test_a_long_complaint_is_cut():
    with load(Talkative(), transform=[T.CenterCrop(32)], on_error="substitute", bad_samples__max_count=5) as own:
        assert sum(int(batch.substituted.sum()) for batch in own) == 3
        assert any("\u9519" * 1000 in one["reason"] for one in own.stats()["splits"]["train"]["bad_samples"])


class Undecodable(Arrays):
    classes = [os.fsdecode(b"caf\xe9"), "b", "c"]


def test_a_class_that_is_no_text_is_named():
    raises(penstock.DatasetError, lambda: load(Undecodable(), transform=[T.CenterCrop(32)]), "'caf\\udce9' is no text")


def test_text_and_bytes():
    options = dict(batch_size=5, transform=[T.CenterCrop(32)], limits__max_field_bytes=200, on_error="substitute",
                   bad_samples__max_count=5)
    for output in ("torch", "numpy") if FULL else ("numpy",):
        kept = []
        with penstock.DataLoader(Captioned(), batch="dict", keys={"text": "caption"}, output=output, **options) as own:
            for batch in own:
                assert list(batch) == ["image", "label", "raw", "caption", "weight"]
                assert type(batch["caption"]) is list and type(batch["raw"]) is list
                assert len(batch["caption"]) == len(batch["raw"]) == len(batch["label"])
                for row_index, index in enumerate(map(int, batch.indices)):
                    assert batch["caption"][row_index] == f"picture {index} \u2014 \U0001F600" and index != 7
                    assert batch["raw"][row_index] == bytes([index, 0]) * index
                    assert float(batch["weight"][row_index]) == index == int(batch["image"][row_index, 0, 0, 0])
                kept += batch["raw"]
        assert len(kept) == 12 and all(type(value) is bytes for value in kept)  # they need no memory of the batch
    # In evaluation an unusable sample is there, masked and empty.
    with penstock.DataLoader(Captioned(), mode="eval", copy=True, output=OUTPUT, **options) as own:
        images, labels, raw, text, weight = (sum((list(batch[at]) for batch in own), []) for at in range(5))
    assert len(text) == 12 and text[6].startswith("picture 6") and text[7] == "" and raw[7] == b"" and int(labels[7]) == -100
    with penstock.DataLoader(Captioned(), output=OUTPUT, **{**options, "on_error": "fail"}) as own:
        raises(penstock.DatasetError, lambda: list(own), "field 'text' has 300 bytes, above limits.max_field_bytes (200)")


def test_a_transform_of_ones_own():
    with load(penstock.ImageFolder(TRAIN), transform=[T.CenterCrop(48), T.Python(own_functions.dim)]) as first:
        expected = hashes(first)
    with load(penstock.ImageFolder(TRAIN), transform=[T.CenterCrop(48), T.Python(own_functions.dim)], loader__threads=1) as again:
        assert hashes(again) == expected
    with load(penstock.ImageFolder(TRAIN), transform=[T.CenterCrop(48)]) as plain:
        order, pixels = hashes(plain)
        assert order == expected[0] and pixels != expected[1]


def test_an_error_of_a_transform_is_of_its_own_class_as_well():
    steps = [T.CenterCrop(48), T.Python(own_functions.refuse)]
    with load(penstock.ImageFolder(TRAIN), transform=steps) as loader:
        assert isinstance(raises(own_functions.Overexposed, lambda: next(iter(loader)), "own_functions:refuse", "too bright", ", in refuse",
                                 'mend the function for such pictures, or say on_error="substitute"'), penstock.DatasetError)
    job = {"splits": {"val": {"dataset": {"folder": TRAIN}, "pipeline": [{"CenterCrop": {"size": 48}}, {"Python": {
        "function": "own_functions:refuse"}}]}}, "python": {"interpreter": sys.executable}}
    os.environ["PYTHONPATH"] = os.path.dirname(own_functions.__file__) + ":" + os.environ["PYTHONPATH"]
    path = Photos(TRAIN).samples[0][0]
    with penstock.Preprocessor(job, "val", output="numpy", threads=1) as preprocess:
        raises(own_functions.Overexposed, lambda: preprocess(path, index=3), "too bright", ", in refuse")
        (reason,) = preprocess([path], index=[3], errors="status")[1]
        assert "too bright" in reason and "\n" not in reason


def test_a_file_that_is_missing_fails_at_once():
    photos = Photos(TRAIN)
    photos.samples[20] = "/nowhere/at/all.jpg", 0
    for workers in (0, 1):
        begun = time.monotonic()
        with load(photos, transform=STEPS, num_workers=workers) as own:
            raises(FileNotFoundError, lambda: list(own), "Photos[20]", "/nowhere/at/all.jpg")
        assert time.monotonic() - begun < 15, workers
    # Where another sample may stand in its place, it does, and a list of such samples has a line for it.
    with load(photos, transform=STEPS, on_error="substitute", bad_samples__max_count=5, num_workers=0) as own:
        assert sum(int(batch.substituted.sum()) for batch in own) == 1
        (bad,) = own.stats()["splits"]["train"]["bad_samples"]
        assert "FileNotFoundError" in bad["reason"] and "\n" not in bad["reason"]


def test_workers_of_a_job_file_run_the_programs_interpreter():
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "bin"))
        other = os.path.join(folder, "bin", "python3")
        with open(other, "w") as file:
            file.write("#!/bin/sh\necho another Python >&2\nexit 9\n")
        os.chmod(other, 0o755)
        job = {"splits": {"train": {"dataset": {"python": "own_functions:Slow", "path": os.path.dirname(own_functions.__file__)},
                                    "batch_size": 4, "pipeline": [{"CenterCrop": {"size": 8}}]}}}
        path = os.path.join(folder, "job.yaml")
        with open(path, "w") as file:
            json.dump(job, file)
        before = os.environ["PATH"]
        os.environ["PATH"] = os.path.join(folder, "bin") + ":" + before
        try:
            with penstock.DataLoader(path, output="numpy") as loader:
                assert sorted(next(iter(loader))[1]) != []
            raises(penstock.RunError, lambda: penstock.DataLoader(path, python__interpreter=other), "another Python")
            os.environ["PENSTOCK_PYTHON"] = other
            raises(penstock.RunError, lambda: penstock.DataLoader(path), "another Python")
        finally:
            os.environ["PATH"] = before
            os.environ.pop("PENSTOCK_PYTHON", None)


class Batched(Arrays):
    """As torch's data sets may be that read a whole batch at once."""

    def __getitem__(self, index):
        raise NotImplementedError

    def __getitems__(self, indices):
        return [(np.full((40, 50, 3), index, np.uint8), index) for index in indices]


class OnlyBatched:
    __len__, __getitems__ = Batched.__len__, Batched.__getitems__


def test_getitems_gives_the_pictures_where_there_is_one():
    for dataset, workers in ((Batched(), 1), (Batched(), 0), (OnlyBatched(), 0), *([(OnlyBatched(), 1)] if FULL else [])):
        with load(dataset, transform=[T.CenterCrop(8)], num_workers=workers, output="numpy") as own:
            given = [(int(image[0, 0, 0]), int(label)) for images, labels in own for image, label in zip(images, labels)]
        assert sorted(given) == [(index, index) for index in range(20)], (dataset, workers)


def test_functions_in_both_of_two_lists():
    def images(*functions, **more):
        lists = [[T.CenterCrop(32), *([T.Python(one)] if one else [])] for one in functions]
        if len(lists) > 1:
            more.update(gpu_transform=lists[1], cpu_fraction=0.5)
        with penstock.DataLoader(penstock.ImageFolder(TRAIN), transform=lists[0], batch_size=40, seed=7, dtype="uint8",
                                 output="numpy", **more) as loader:
            return next(iter(loader))[0].copy()

    plain, both = images(None), images(own_functions.dim, own_functions.negative)
    negative = [np.array_equal(one, 255 - other) for one, other in zip(both, plain)]
    dimmed = [one.shape == other.shape and 1 <= int((other.astype(int) - one).max()) < 10 and (one <= other).all()
              for one, other in zip(both, plain)]
    assert all(a != b for a, b in zip(negative, dimmed)) and 10 < sum(negative) < 30, (negative, dimmed)
    assert np.array_equal(images(own_functions.dim, own_functions.negative, loader__threads=1), both)


class Some(Captioned):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


def test_workers_of_a_dataset_that_is_closed_end():
    options = dict(batch_size=2, transform=[T.CenterCrop(32)], loader__threads=2, output=OUTPUT)
    with penstock.DataLoader(Some(5), **options) as stays:
        next(iter(stays))
        alone = descendants()
        assert alone
        for count in range(2, 5):
            with penstock.DataLoader(Some(count), **options) as other:
                next(iter(other))
                assert descendants() - alone
            deadline = time.monotonic() + 20
            # One more may have been started for `stays`, which has two threads and a fork server.
            while len(descendants()) > max(len(alone), 3):
                assert time.monotonic() < deadline, (alone, descendants())
                time.sleep(0.02)
        assert len(list(stays)) == 3


class OpensAFile:
    """Each worker has a file position of its own: nothing is unpickled before the fork."""

    def __init__(self, path):
        self.path = path
        self.__setstate__(self.__dict__)

    def __len__(self):
        return 64

    def __getstate__(self):
        return {"path": self.path}

    def __setstate__(self, state):
        self.path = state["path"]
        self.file = open(self.path, "rb", buffering=0)

    def __getitem__(self, index):
        self.file.seek(index)
        time.sleep(0.002)
        return np.full((8, 8, 3), self.file.read(1)[0], np.uint8), index


def test_workers_share_no_file():
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(range(64)))
        file.flush()
        with penstock.DataLoader(OpensAFile(file.name), batch_size=8, loader__threads=3, output=OUTPUT) as loader:
            for images, labels in loader:
                read = np.asarray(images)[:, 0, 0, 0]
                assert (read == np.asarray(labels)).all(), (read, labels)


def test_a_preprocessor_with_a_transform_of_ones_own_needs_an_index():
    job = {"splits": {"val": {"dataset": {"folder": TRAIN}, "pipeline": [{"CenterCrop": {"size": 48}}, {"Python": {
        "function": "own_functions:dim"}}]}}, "python": {"interpreter": sys.executable}}
    os.environ["PYTHONPATH"] = os.path.dirname(own_functions.__file__) + ":" + os.environ["PYTHONPATH"]
    path = Photos(TRAIN).samples[0][0]
    with penstock.Preprocessor(job, "val", output="numpy", threads=1) as preprocess:
        assert preprocess.random_transforms == ["Python"]
        raises(penstock.UsageError, lambda: preprocess(path), "draws (Python)", "image 0 has no index", "arguments index and epoch")
        first = preprocess(path, index=3)
        assert (first == preprocess([path], index=[3])).all() and (first != preprocess(path, index=4)).any()


class Listed(Some):
    def __init__(self, count):
        super().__init__(count)
        self.paths = [f"photos/part{i % 7}/{i:08}.jpg" for i in range(60_000)]


def test_a_large_list_of_paths_is_sent_compressed_and_resumes():
    listed = Listed(6)
    assert len(pickle.dumps(listed)) > 1_000_000
    with load(listed, transform=[T.CenterCrop(32)]) as own:
        assert sum(len(images) for images, *_ in own) == 6
        own.load_state_dict(own.state_dict())
    # A state with a pickle in it that does not shrink.
    noisy = Some(6)
    noisy.noise = random.Random(2).randbytes(400_000)
    with load(noisy, transform=[T.CenterCrop(32)]) as own:
        state = own.state_dict()
        assert len(json.dumps(state)) > 500_000
        own.load_state_dict(state)
        noisy.noise = b""
        with load(noisy, transform=[T.CenterCrop(32)]) as other:
            raises(penstock.ConfigError, lambda: other.load_state_dict(state), "dataset.pickle")


PROGRAM = """
import sys
import numpy, penstock
{imports}
NUMBER = int(sys.argv[1])

class Own:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return numpy.zeros((8, 8, 3), numpy.uint8), NUMBER

def main():
    with penstock.DataLoader(Own(), batch_size=4, transform=[penstock.transforms.CenterCrop(8)], output=sys.argv[2]) as loader:
        print([labels.tolist() for _, labels in loader])

{guard}main()
"""
GUARD = "if __name__ == '__main__':\n    "


def test_a_programs_own_class_sees_its_arguments_and_its_package():
    """As with multiprocessing's spawn; without cloudpickle, which sends the class itself."""
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(os.path.join(folder, "own_package"))
        for name, imports, guard in (("plain.py", "", GUARD), ("own_package/train.py", "from . import helper", GUARD),
                                     ("own_package/__init__.py", "", ""), ("own_package/helper.py", "", ""),
                                     ("unguarded.py", "", "")):
            with open(os.path.join(folder, name), "w") as file:
                file.write("" if name[-11:] in ("__init__.py", "e/helper.py") else PROGRAM.format(imports=imports, guard=guard))
        with open(os.path.join(folder, "cloudpickle.py"), "w") as file:
            file.write("raise ImportError('not here')")

        def run(*arguments):
            return subprocess.run([sys.executable, *arguments, "77", OUTPUT], cwd=folder, capture_output=True, text=True, timeout=120)

        for arguments in (["plain.py"], ["-m", "own_package.train"]):
            done = run(*arguments)
            assert (done.returncode, done.stdout) == (0, "[[77, 77, 77, 77]]\n"), done
        done = run("unguarded.py")
        assert done.returncode != 0 and 'put what the program does under if __name__ == "__main__":' in done.stderr, done


def test_what_cannot_be_sent_says_why():
    class Local(Arrays):
        def __init__(self):
            self.file = open(os.devnull)

    raises(TypeError, lambda: load(Local(), transform=STEPS), "Local", "pickled")
    raises(penstock.errors.UnpicklableDataset, lambda: load(Local(), transform=STEPS), "Local")
    assert penstock.UnpicklableDataset is penstock.errors.UnpicklableDataset
    raises(penstock.UsageError, lambda: load(3, transform=STEPS), "no dataset")


if __name__ == "__main__":
    run_tests(globals())
