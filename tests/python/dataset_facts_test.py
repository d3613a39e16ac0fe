"""What programs written for torch ask a data set and a loader: len(), classes, samples, targets, [i], .dataset, .sampler,
.batch_sampler, .drop_last, .num_workers. Compared with torchvision's ImageFolder, and with what the loader delivers.

torchvision takes more time to import than all the rest: without PENSTOCK_FULL=1 its list stands here, and its pictures are Pillow's
(image_folder_torchvision_test has the list from torchvision itself always)."""

import copy
import os
import pickle
import shutil
import tempfile

import numpy
from PIL import Image

import penstock
from containers import samples_of
from jobs import FULL, run_tests, write_job
from penstock import transforms as T
from photos import PHOTOS, TRAIN, WORK, raises

STEPS = [T.CenterCrop(48), T.ToDtype("float32", scale=True)]


def folder():
    return penstock.ImageFolder(TRAIN)


class PlainFolder:
    """As torchvision's ImageFolder has it."""

    def __init__(self, top):
        self.classes = sorted(os.listdir(top))
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.samples = [(path, label) for _, path, label in samples_of(top)]
        self.targets = [label for _, label in self.samples]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        return Image.open(path).convert("RGB"), label


def test_an_image_folder_is_torchvisions():
    if FULL:
        from torchvision.datasets import ImageFolder
    else:
        ImageFolder = PlainFolder
    ours, theirs = folder(), ImageFolder(TRAIN)
    assert len(ours) == len(theirs) > 20 and ours.classes == theirs.classes and ours.class_to_idx == theirs.class_to_idx
    assert ours.samples == theirs.samples and ours.targets == theirs.targets
    for index in (0, 7, len(theirs) - 1, -1):
        (picture, label), (other, other_label) = ours[index], theirs[index]
        assert label == other_label and picture.mode == "RGB" and numpy.array_equal(numpy.asarray(picture), numpy.asarray(other)), index
    if FULL:
        assert len(list(ours)) == len(ours)  # by [i] until IndexError
    raises(IndexError, lambda: ours[len(ours)], "and none at")
    raises(IndexError, lambda: ours[-len(ours) - 1], "and none at")
    raises(penstock.UsageError, lambda: ours["first"], "no integer")


def test_others_are_listed_alike():
    with tempfile.TemporaryDirectory(dir=WORK) as work:
        wanted = folder()
        listed = os.path.join(work, "list.txt")
        with open(listed, "w") as file:
            file.writelines(f"{path} {label}\n" for path, label in wanted.samples)
        ours = penstock.FileList(listed)
        assert len(ours) == len(wanted) and ours.targets == wanted.targets and ours.classes == []
        assert numpy.array_equal(numpy.asarray(ours[3][0]), numpy.asarray(wanted[3][0]))
        shutil.copytree(os.path.join(TRAIN, wanted.classes[0]), os.path.join(work, "pairs", "a"))
        pairs = penstock.PairedFolders(os.path.join(work, "pairs"), targets=os.path.join(work, "pairs"))
        assert len(pairs) == wanted.targets.count(0)


def test_pixels_without_a_file():
    with tempfile.TemporaryDirectory(dir=WORK) as work:
        draw = numpy.random.default_rng(5)
        rows = draw.integers(0, 256, (20, 3073), dtype=numpy.uint8)
        rows[:, 0] = numpy.arange(20) % 10
        for number in range(1, 6):
            rows.tofile(os.path.join(work, f"data_batch_{number}.bin"))
        rows.tofile(os.path.join(work, "test_batch.bin"))
        ours = penstock.CIFAR10(work)
        assert len(ours) == 100 and ours.targets[:12] == [*range(10), 0, 1]
        picture, label = ours[13]
        assert label == 3 and numpy.array_equal(numpy.asarray(picture), rows[13, 1:].reshape(3, 32, 32).transpose(1, 2, 0))


def test_class_folders_may_have_any_name():
    with tempfile.TemporaryDirectory(dir=WORK) as work:
        name = os.fsdecode(b"caf\xe9")
        shutil.copytree(os.path.join(TRAIN, folder().classes[0]), os.path.join(work, name))
        ours = penstock.ImageFolder(work)
        assert ours.classes == [name] and ours.class_to_idx == {name: 0} and ours.samples[0][0].startswith(os.path.join(work, name))
        with penstock.DataLoader(ours, 4, transform=STEPS) as loader:
            assert loader.classes == loader.dataset.classes == [name]


def test_what_cannot_be_listed_or_read_says_why():
    raises(penstock.DatasetError, lambda: len(penstock.ImageFolder(os.path.join(WORK, "nowhere"))), "does not exist")
    with tempfile.TemporaryDirectory(dir=WORK) as work:
        os.mkdir(os.path.join(work, "a"))
        with open(os.path.join(work, "a", "0.jpg"), "wb") as file:
            file.write(b"no picture")
        open(os.path.join(work, "a", "1.jpg"), "w").close()
        for index, name in enumerate(("a/0.jpg", "a/1.jpg")):
            raises(penstock.DatasetError, lambda: penstock.ImageFolder(work)[index], name)


def test_they_travel_without_their_list():
    ours = folder()
    assert len(ours) == len(pickle.loads(pickle.dumps(ours))) == len(copy.deepcopy(ours))


def test_a_loaders_attributes():
    ours = folder()
    with penstock.DataLoader(ours, transform=STEPS, batch_size=8, shuffle=True, drop_last=True, loader__threads=2) as train:
        assert train.dataset is ours and train.batch_size == 8 and train.drop_last is True and train.num_workers == 2
        assert len(train.sampler) == train.num_samples and len(train.batch_sampler) == len(train) == len(ours) // 8
        assert train.batch_sampler.batch_size == 8 and train.batch_sampler.drop_last is True
        first = [batch.indices.tolist() for batch in train]
        train.sampler.set_epoch(0)
        assert train.sampler.epoch == train.epoch == 0
        again = []
        for images, labels in (steps := iter(train)):
            again.append(labels.tolist())
        assert [label for labels in again for label in labels] == [ours.targets[i] for indices in first for i in indices]
        train.batch_sampler.sampler.set_epoch(4)
        assert train.epoch == 4 and train.sampler.num_replicas == 1 and train.sampler.rank == 0
    order = penstock.RandomSampler(len(ours))
    with penstock.DataLoader(ours, transform=STEPS, batch_size=8, sampler=order) as train:
        assert train.sampler is order
    batches = penstock.BatchSampler(order, 4, False)
    with penstock.DataLoader(ours, transform=STEPS, batch_sampler=batches) as train:
        assert train.batch_sampler is batches and train.batch_size == 4


def test_a_jobs_data_set():
    with tempfile.TemporaryDirectory(dir=WORK) as work:
        job = write_job(work, PHOTOS, trainers=1)
        with penstock.DataLoader(job, split="train") as train:
            data = train.dataset
            assert data is train.dataset and len(data) == train.dataset_size == len(folder())
            assert data.classes == train.classes == folder().classes and data.targets == folder().targets
            assert data.samples == [(os.path.abspath(path), label) for path, label in folder().samples]
            assert numpy.array_equal(numpy.asarray(data[2][0]), numpy.asarray(folder()[2][0]))


def test_a_data_set_of_ones_own_is_itself():
    own = [(Image.new("RGB", (60, 60), (i, i, i)), i % 2) for i in range(16)]
    with penstock.DataLoader(own, transform=STEPS, batch_size=4) as train:
        assert train.dataset is own and len(train.dataset) == 16


run_tests(globals())
