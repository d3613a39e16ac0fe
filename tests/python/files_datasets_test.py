"""penstock.WebDataset, CIFAR10 and the others: the job file's words, and batches."""

import json
import os
import shutil
import tempfile
import warnings

import numpy as np

import containers
import leftovers
import penstock
from jobs import FULL, PENSTOCK, run_tests
from penstock import transforms as T
from photos import TRAIN, raises


def first_batch(dataset, **more):
    with penstock.DataLoader(dataset, transform=T.CenterCrop(24), batch_size=6, shuffle=False, output="numpy", batch="dict",
                             **more) as loader:
        batch = next(iter(loader))
        return {name: np.array(batch[name]) for name in batch.keys()}, loader.dataset_size


def test_the_same_batch_from_every_kind():
    with tempfile.TemporaryDirectory() as top:
        some = os.path.join(top, "some")  # of each class: all of them are packed five times
        for _, path, _ in [sample for sample in containers.samples_of(TRAIN) if FULL or sample[1].endswith(("0.jpg", "1.jpg"))]:
            target = os.path.join(some, os.path.relpath(path, TRAIN))
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy(path, target)
        samples = containers.samples_of(some)
        assert len(samples) > 10 and len({label for _, _, label in samples}) > 1
        wanted, size = first_batch(penstock.ImageFolder(some))
        kinds = [
            penstock.WebDataset(containers.write_tars(os.path.join(top, "tar"), samples)),
            penstock.MDS(containers.write_mds(os.path.join(top, "mds"), samples)),
            penstock.TFRecord(containers.write_tfrecords(os.path.join(top, "tf"), samples)),
            penstock.CSVDataset(containers.write_csv(os.path.join(top, "x.csv"), samples), fields=["number"]),
            penstock.FileList(containers.write_list(os.path.join(top, "x.txt"), samples)),
        ]
        for dataset in list(kinds):
            packed = os.path.join(top, f"{len(kinds)}.pack")
            job = os.path.join(top, "job.yaml")
            with open(job, "w") as file:
                json.dump({"splits": {"train": {"dataset": dataset.to_spec(), "pipeline": [{"CenterCrop": {"size": 24}}], "batch_size": 1}}}, file)
            made = leftovers.run([PENSTOCK, "pack", job, packed, "--quiet"], 60)
            assert made.returncode == 0, made.stderr
            kinds.append(penstock.PackedDataset(packed))
        for dataset in kinds:
            got, count = first_batch(dataset)
            assert count == size, dataset
            assert (got["image"] == wanted["image"]).all() and (got["label"] == wanted["label"]).all(), dataset
            assert (list(got["number"]) == list(range(6))) if "number" in got else True


def test_names_of_classes_beside_tar_shards():
    with tempfile.TemporaryDirectory() as top:
        samples = containers.samples_of(TRAIN)[::4]
        urls = containers.write_tars(os.path.join(top, "tar"), samples)
        assert penstock.WebDataset(urls).classes == []
        names = [f"cläss {label}" for label in range(max(label for _, _, label in samples) + 1)]
        path = os.path.join(top, "tar", "classes.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("".join(name + "\n" for name in names))
        dataset = penstock.WebDataset(urls)
        assert dataset.classes == names and dataset.class_to_idx[names[1]] == 1
        with open(path, "w") as file:
            file.write("one\n")
        raises(penstock.DatasetError, lambda: penstock.WebDataset(urls).classes, f"'{path}' has 1 names of classes")


def test_published_files():
    with tempfile.TemporaryDirectory() as top:
        pixels = np.random.default_rng(3).integers(0, 256, (10, 3, 32, 32), dtype=np.uint8)
        with open(os.path.join(top, "test_batch.bin"), "wb") as file:
            for i in range(10):
                file.write(bytes([i]) + pixels[i].tobytes())
        got, size = first_batch(penstock.CIFAR10(top, train=False))
        assert size == 10 and list(got["label"]) == [0, 1, 2, 3, 4, 5]
        assert (got["image"] == pixels[:6, :, 4:28, 4:28]).all()

        grey = pixels[:, 0]
        with open(os.path.join(top, "t10k-images-idx3-ubyte"), "wb") as file:
            file.write(b"\0\0\x08\x03" + (10).to_bytes(4, "big") + (32).to_bytes(4, "big") * 2 + grey.tobytes())
        with open(os.path.join(top, "t10k-labels-idx1-ubyte"), "wb") as file:
            file.write(b"\0\0\x08\x01" + (10).to_bytes(4, "big") + bytes(range(10)))
        got, size = first_batch(penstock.MNIST(top, train=False))
        assert size == 10 and (got["image"] == grey[:6, None, 4:28, 4:28]).all()


class Bare:
    """Pictures of a dataset in Python; only those from number `labelled` on have a label."""

    def __init__(self, labelled):
        self.labelled = labelled

    def __len__(self):
        return 12

    def __getitem__(self, index):
        image = np.full((40, 50, 3), index, np.uint8)
        return {"image": image, "label": index} if index >= self.labelled else {"image": image}


def test_without_labels():
    """No field, no zeros; and a training split of pictures alone is warned of."""
    options = dict(transform=T.CenterCrop(24), batch_size=6, output="numpy")
    with tempfile.TemporaryDirectory() as top:
        table = os.path.join(top, "x.csv")
        with open(table, "w") as file:
            file.write("image,number\n" + "".join(f"{path},{i}\n" for i, (path, *_) in enumerate(pictures_below(TRAIN))))
        for dataset, why in [(penstock.CSVDataset(table), f"nothing in {table} is called 'label'"), (Bare(99), "have no 'label'")]:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                with penstock.DataLoader(dataset, **options) as loader:
                    batch = next(iter(loader))
                    assert len(batch) == 1 and batch[0].shape == (6, 3, 24, 24)
            assert any("split 'train' has no labels" in str(one.message) and why in str(one.message) for one in said), said
            mixed = dict(options, transform=T.Compose([T.CenterCrop(24), T.ToDtype("float32", scale=True), T.MixUp(num_classes=3)]))
            raises(penstock.ConfigError, lambda: penstock.DataLoader(dataset, **mixed), "MixUp and CutMix mix labels")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # who names fields, or evaluates, knows
            with penstock.DataLoader(penstock.CSVDataset(table, fields="number"), **options) as loader:
                images, number = next(iter(loader))
                assert number.shape == (6,)
            with penstock.DataLoader(penstock.CSVDataset(table), mode="eval", batch="dict", **options) as loader:
                assert list(next(iter(loader))) == ["image"]
                raises(penstock.UsageError, lambda: penstock.DataLoader(
                    penstock.CSVDataset(table), mode="eval", batch="dict", keys={"label": "y"}, **options), "no field 'label'")
    with penstock.DataLoader(Bare(6), mode="eval", **options) as loader:
        raises(penstock.DatasetError, lambda: list(loader), "it has a field 'label', and the first sample has none")


def pictures_below(folder):
    return [(os.path.join(top, name),) for top, _, names in sorted(os.walk(folder)) for name in sorted(names)]


def test_a_new_loader_looks_at_the_files_again():
    """While an older one is in the middle of an iteration, which keeps its list."""
    with tempfile.TemporaryDirectory() as top:
        copy = os.path.join(top, "train")
        shutil.copytree(TRAIN, copy)
        one_class = os.path.join(copy, sorted(os.listdir(copy))[0])
        first = sorted(os.listdir(one_class))[0]
        options = dict(transform=T.CenterCrop(24), batch_size=8, shuffle=False, output="numpy", copy=True)
        with penstock.DataLoader(penstock.ImageFolder(copy), **options) as old:
            passing = iter(old)
            batches = [next(passing)]
            shutil.copy(os.path.join(one_class, first), os.path.join(one_class, "0000-first-of-all.jpg"))
            with penstock.DataLoader(penstock.ImageFolder(copy), **options) as new:
                assert (old.dataset_size, new.dataset_size) == (80, 81)
                fresh = list(new)
            with penstock.DataLoader(penstock.ImageFolder(copy), **options) as third:
                assert third.dataset_size == 81 and len(list(third)) == 11
            batches += list(passing)
            assert len(batches) == 10 and sum(len(batch[1]) for batch in batches) == 80
            assert (fresh[0][0][1] == batches[0][0][0]).all() and (fresh[0][0][0] == fresh[0][0][1]).all()
            again = list(old)  # its own list still
            assert all((a[0] == b[0]).all() for a, b in zip(again, batches))


def test_words_and_mistakes():
    assert penstock.WebDataset("/s/{0..1}.tar", fields=["a", "b"]).to_spec() == {"tar": "/s/{0..1}.tar", "fields": "a,b"}
    assert penstock.ImageFolder("/f", val_share=0.25, train=False).to_spec() == {"folder": "/f", "val_share": 0.25, "val_seed": 0,
                                                                                 "train": False}
    assert penstock.CIFAR10("/c").to_spec() == {"cifar10": "/c", "train": True}
    assert penstock.PackedDataset("/p").to_spec() == {"pack": "/p"} and repr(penstock.PackedDataset("/p")) == "PackedDataset('/p')"
    raises(penstock.DatasetError, lambda: first_batch(penstock.PackedDataset("/nowhere")), "a folder that `penstock pack` made")
    for made in (penstock.ImageFolder("/f", index="/x", local=True), penstock.WebDataset("/t", index="/x", local=True),
                 penstock.CIFAR10("/c", index="/x", local=True), penstock.CSVDataset("/c", index="/x", local=True),
                 penstock.FileList("/l", index="/x", local=True), penstock.MDS("/m", index="/x", local=True),
                 penstock.TFRecord("/r", index="/x", local=True), penstock.Parquet("/p", index="/x", local=True),
                 penstock.PackedDataset("/k", local=True)):
        assert made.to_spec()["local"] is True, made
    assert "local" not in penstock.MDS("/m").to_spec()
    assert penstock.Parquet("/p/*.parquet", index="/x", label="y").to_spec() == {"parquet": "/p/*.parquet", "label": "y", "index": "/x"}
    raises(penstock.DatasetError, lambda: first_batch(penstock.Parquet("/p/*.parquet", index="/nowhere/x")), "make it with `penstock index`")
    assert repr(penstock.MDS("m", label="y")) == "MDS('m', label='y')"
    raises(penstock.DatasetError, lambda: first_batch(penstock.WebDataset("/nowhere/{0..1}.tar")), "/nowhere/0.tar")
    raises(penstock.DatasetError, lambda: first_batch(penstock.MNIST("/nowhere")), "train-images-idx3-ubyte")


if __name__ == "__main__":
    run_tests(globals())
