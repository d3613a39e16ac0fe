"""torchvision's and torch's data sets in penstock.DataLoader: which ones loaders read themselves, and that they give what torch's
DataLoader gives."""

import json
import os
import pickle
import shutil
import tempfile
import time
import unittest.mock
import warnings

import numpy
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset, random_split
from torchvision import transforms as V
from torchvision.datasets import CIFAR10, MNIST, CocoCaptions, CocoDetection, DatasetFolder, ImageFolder, cifar
from torchvision.datasets.folder import IMG_EXTENSIONS, default_loader

import penstock
from jobs import run_tests
from penstock import _torch_datasets
from photos import WORK, raises
from small_photos import TRAIN, VAL

STEPS = V.Compose([V.Resize(40), V.CenterCrop(32), V.ToTensor()])


def folder(**more):
    return ImageFolder(TRAIN, STEPS, **more)


def same_pixels(ours, theirs):
    """Equal bytes; as floats they differ in the last bit, as ToTensor divides and ToDtype multiplies."""
    return ours.dtype == theirs.dtype and torch.equal(ours.mul(255).round(), theirs.mul(255).round()) and \
        float((ours - theirs).abs().max()) < 1e-7


def same_as_torchs(dataset, native=True, **options):
    """Both loaders' batches are equal; the number of samples compared."""
    assert (_torch_datasets.recognise(dataset).why == "") == native, _torch_datasets.recognise(dataset).why
    compared = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if not native else "error")
        ours = penstock.DataLoader(dataset, 16, **options)
    with ours:
        theirs = torch.utils.data.DataLoader(dataset, 16, **options)
        assert len(ours) == len(theirs) and len(ours.dataset) == len(dataset)
        for (images, labels), (wanted, numbers) in zip(ours, theirs):
            assert same_pixels(images, wanted)
            assert labels.dtype == numbers.dtype and torch.equal(labels, numbers)
            compared += len(labels)
    samples = len(options.get("sampler", dataset))
    assert compared == (samples // 16 * 16 if options.get("drop_last") else samples) > 0, compared
    return compared


def test_an_image_folder():
    same_as_torchs(folder())
    same_as_torchs(folder(), drop_last=True)
    same_as_torchs(DatasetFolder(TRAIN, default_loader, IMG_EXTENSIONS, STEPS))
    with penstock.DataLoader(folder(), 16) as loader:
        assert loader.classes == folder().classes and loader.dataset.class_to_idx == folder().class_to_idx


def test_lists_that_the_program_changed_are_followed():
    fewer = folder()
    fewer.samples = fewer.imgs = fewer.samples[5:60:2]
    fewer.targets = [label for _, label in fewer.samples]
    assert type(_torch_datasets.recognise(fewer).source) is penstock.FileList
    assert same_as_torchs(fewer) == 28
    other = folder()
    other.samples = [(path, 7 - label) for path, label in other.samples]
    same_as_torchs(other)
    left_out = {path for path, _ in folder().samples[::7]}
    assert same_as_torchs(ImageFolder(TRAIN, STEPS, is_valid_file=lambda path: path not in left_out)) == 68


def test_subsets_and_concatenations():
    draw = torch.Generator().manual_seed(3)
    first, second = random_split(folder(), [50, 30], generator=draw)
    assert same_as_torchs(first) == 50 and same_as_torchs(second) == 30
    assert same_as_torchs(Subset(first, [4, 0, 4, 49])) == 4
    assert same_as_torchs(Subset(folder(), [3, -1, -80])) == 3  # from the end, as a list
    assert same_as_torchs(ConcatDataset([folder(), ImageFolder(VAL, STEPS)])) == 80 + 26
    together = folder().transform
    val = ImageFolder(VAL, together)
    train = ImageFolder(TRAIN, together)
    assert same_as_torchs(Subset(ConcatDataset([Subset(train, range(10, 40)), val]), range(20, 50))) == 30
    # Another order of the same rows, shuffled: torch's permutation of the subset's places.
    with penstock.DataLoader(first, 10, True, seed=5) as loader:
        order = torch.cat([batch.indices for batch in loader]).tolist()
    places = torch.randperm(50, generator=torch.Generator().manual_seed(5)).tolist()
    assert order == [first.indices[place] for place in places]


def annotated(kind, transform=STEPS, **more):
    """The first 20 pictures with none to three boxes and captions each."""
    names = [os.path.relpath(path, TRAIN) for path, _ in ImageFolder(TRAIN).samples[:20]]
    boxes = [(image, box) for image in range(20) for box in range(image % 4)]
    said = {"images": [{"id": 100 + image, "file_name": name} for image, name in enumerate(names)], "categories": [{"id": 1}],
            "annotations": [{"id": number, "image_id": 100 + image, "category_id": 1, "bbox": [image, box, 5, 5], "iscrowd": 0,
                             "area": 25, "caption": f"{image}, {box}"} for number, (image, box) in enumerate(boxes, 1)]}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "instances.json")
        with open(path, "w") as file:
            json.dump(said, file)
        return kind(TRAIN, path, transform=transform, **more)


def pairs_of(samples):
    """A collate_fn of torchvision's detection programs."""
    return tuple(zip(*samples))


def test_pictures_of_coco_with_their_annotations():
    for kind in (CocoDetection, CocoCaptions):
        dataset = annotated(kind)
        dataset.ids = [one for one in dataset.ids if dataset.coco.getAnnIds(one)]  # as detection programs do
        for given, rows in ((dataset, range(15)), (Subset(dataset, [9, 3, 3, 14]), [9, 3, 3, 14])):
            assert type(_torch_datasets.recognise(given).source) is penstock.FileList
            with penstock.DataLoader(given, 4, collate_fn=pairs_of) as loader:
                got = [pair for batch in loader for pair in zip(*batch)]
            assert len(got) == len(rows)
            for (picture, target), row in zip(got, rows):
                wanted, annotations = dataset[row]
                assert same_pixels(picture, wanted) and target == annotations and len(target) > 0
        with penstock.DataLoader(dataset, 4, shuffle=True, collate_fn=pairs_of) as loader:
            for batch in loader:
                assert list(batch[1]) == [dataset[index][1] for index in batch.indices.tolist()]
    dataset = annotated(CocoCaptions)
    dataset.ids = dataset.ids[1::4]  # of one caption each, which torch's default_collate takes
    with penstock.DataLoader(dataset, 2) as loader:
        theirs = list(torch.utils.data.DataLoader(dataset, 2))
        assert [targets for _, targets in loader] == [targets for _, targets in theirs]


def test_pictures_that_no_step_gives_one_size():
    """torch needs none where all pictures have one size, or a collate_fn takes several."""
    top = os.path.join(WORK, "one_size")
    for label in "ab":
        os.makedirs(os.path.join(top, label))
        for number in range(5):
            Image.new("RGB", (24, 20), (number, 7, 40 * number)).save(os.path.join(top, label, f"{number}.png"))
    for transform in (V.ToTensor(), V.Compose([V.Resize(16), V.ToTensor()])):
        dataset = ImageFolder(top, transform)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            loader = penstock.DataLoader(dataset, 4)
        assert any("CenterCrop((height, width))" in str(one.message) for one in said), said
        with loader:
            for (images, labels), (wanted, numbers) in zip(loader, torch.utils.data.DataLoader(dataset, 4)):
                assert torch.equal(images, wanted) and torch.equal(labels, numbers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = penstock.DataLoader(ImageFolder(top), 4, collate_fn=pairs_of)
    with loader:
        assert [picture.size for picture in next(iter(loader))[0]] == [(24, 20)] * 4  # Pillow's pictures
    coco = annotated(CocoDetection, V.ToTensor())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = penstock.DataLoader(coco, 4, collate_fn=pairs_of)
    with loader:
        for place, batch in enumerate(loader):
            for row, (picture, target) in enumerate(zip(*batch), 4 * place):
                wanted, annotations = coco[row]
                assert torch.equal(picture, wanted) and target == annotations
    with penstock.DataLoader(ImageFolder(top, V.Compose([V.CenterCrop((20, 24)), V.ToTensor()])), 4) as loader:
        assert next(iter(loader))[0].shape == (4, 3, 20, 24)


def test_coco_that_python_has_to_read():
    for dataset in (annotated(CocoDetection, target_transform=len), ConcatDataset([annotated(CocoDetection)] * 2)):
        assert _torch_datasets.recognise(dataset).why
    own_step = annotated(CocoDetection, V.Compose([*STEPS.transforms, lambda picture: picture * 2]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = penstock.DataLoader(own_step, 4, collate_fn=pairs_of)
    with loader:
        pictures, targets = next(iter(loader))
    assert targets == tuple(own_step[row][1] for row in range(4)) and torch.equal(pictures[3], own_step[3][0])


def test_a_programs_sampler_counts_in_the_subset():
    rows = Subset(folder(), range(40, 70))
    same_as_torchs(rows, sampler=[29, 0, 7, 7, 3])


def test_cifar_and_mnist():
    draw = numpy.random.default_rng(5)
    with tempfile.TemporaryDirectory(dir=WORK) as work:
        base = os.path.join(work, "cifar-10-batches-py")
        os.mkdir(base)
        for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
            with open(os.path.join(base, name), "wb") as file:
                pickle.dump({"data": draw.integers(0, 256, (8, 3072), dtype=numpy.uint8), "labels": [3, 1, 4, 1, 5, 9, 2, 6]}, file)
        with open(os.path.join(base, "batches.meta"), "wb") as file:
            pickle.dump({"label_names": [f"class {number}" for number in range(10)]}, file)
        # The published files' checksums are not those of these.
        with unittest.mock.patch.object(cifar, "check_integrity", lambda *_: True):
            cifars = CIFAR10(work, train=True, transform=V.ToTensor())
            as_bytes = CIFAR10(work, train=True, transform=V.PILToTensor())  # nothing but a conversion
        assert same_as_torchs(cifars) == 40
        assert same_as_torchs(Subset(cifars, range(3, 37, 3))) == 12
        assert _torch_datasets.recognise(as_bytes).why == ""
        with penstock.DataLoader(as_bytes, 40) as loader:
            images, _ = next(iter(loader))
            assert images.dtype == torch.uint8 and images.shape == (40, 3, 32, 32) and torch.equal(images[7], as_bytes[7][0])
        cifars.data = cifars.data.copy()
        cifars.data[33, 5, 5, 1] ^= 1
        assert "picture 33" in _torch_datasets.recognise(cifars).why
        assert same_as_torchs(cifars, native=False) == 40
    with tempfile.TemporaryDirectory(dir=WORK) as work:
        raw = os.path.join(work, "MNIST", "raw")
        os.makedirs(raw)
        for part, count in (("train", 30), ("t10k", 20)):
            with open(os.path.join(raw, f"{part}-images-idx3-ubyte"), "wb") as file:
                file.write(b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (count, 28, 28)) +
                           draw.integers(0, 256, count * 784, dtype=numpy.uint8).tobytes())
            with open(os.path.join(raw, f"{part}-labels-idx1-ubyte"), "wb") as file:
                file.write(b"\0\0\x08\x01" + count.to_bytes(4, "big") + bytes(n % 10 for n in range(count)))
        grey = V.Compose([V.Grayscale(3), V.ToTensor()])
        assert same_as_torchs(MNIST(work, train=False, transform=grey)) == 20
        for one_channel in (V.ToTensor(), V.Compose([V.Grayscale(1), V.ToTensor()])):
            assert "one channel" in _torch_datasets.recognise(MNIST(work, train=False, transform=one_channel)).why
            assert same_as_torchs(MNIST(work, train=False, transform=one_channel), native=False) == 20


class Further(ImageFolder):
    def __getitem__(self, index):
        picture, label = super().__getitem__(index)
        return 1 - picture, label


def own_loader(path):
    return Image.open(path).convert("RGB")


def test_labels_that_are_no_classes_stay_what_they_are():
    for labels in (float, lambda label: label + 0.5, bool, lambda label: torch.tensor(label / 2)):
        dataset = folder()
        dataset.samples = [(path, labels(label)) for path, label in dataset.samples]
        assert "type int" in _torch_datasets.recognise(dataset).why
        same_as_torchs(dataset, native=False)
        parts = ConcatDataset([dataset, dataset])
        assert "type int" in _torch_datasets.recognise(parts).why


def test_others_run_in_python():
    for dataset, why in ((Further(TRAIN, STEPS), "does not know"), (folder(loader=own_loader), "loader of its own"),
                         (folder(target_transform=lambda label: label + 1), "target_transform")):
        assert why in _torch_datasets.recognise(dataset).why
        same_as_torchs(dataset, native=False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        penstock.DataLoader(folder(target_transform=lambda label: label + 1), 16).close()
    assert any("in this process (num_workers=0)" in str(one.message) and "target_transform" in str(one.message)
               and one.filename == __file__ for one in said), said


def test_transforms_that_leave_pictures_as_they_are():
    """Or to the collate_fn: as torch's DataLoader has them."""
    def equal(one, other):
        return type(one) is type(other) and (all(map(equal, one, other)) if isinstance(one, tuple) else
                                             torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other)
    def same(dataset, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with penstock.DataLoader(dataset, 4, **options) as ours:
                for mine, theirs in zip(ours, torch.utils.data.DataLoader(dataset, 4, **options)):
                    for one, other in zip(mine, theirs):
                        assert equal(one, other), (one, other)
    cropped = V.Compose([V.Resize(40), V.CenterCrop(32)])
    for steps in (V.Compose([]), cropped):
        same(ImageFolder(TRAIN, steps), collate_fn=list)
    same(ImageFolder(TRAIN, V.PILToTensor()), collate_fn=list)
    same(Subset(ImageFolder(TRAIN, V.PILToTensor()), [3]))


def test_a_files_trouble_is_an_os_error_at_once():
    with tempfile.TemporaryDirectory() as root:
        shutil.copytree(TRAIN, os.path.join(root, "train"))
        dataset = ImageFolder(os.path.join(root, "train"), STEPS)
        os.truncate(dataset.samples[10][0], 5)
        with penstock.DataLoader(dataset, 16) as loader:
            os.remove(dataset.samples[40][0])
            steps, found, begun = iter(loader), [], time.monotonic()
            while len(found) < 5:
                try:
                    found.append(len(next(steps)[1]))
                except FileNotFoundError as error:
                    assert "index 40" in str(error) and isinstance(error, penstock.DatasetError), error
                    assert error.errno == 2 and error.filename == dataset.samples[40][0] and error.__cause__ is None
                    found.append("missing")
                except OSError as error:
                    assert "index 10" in str(error) and isinstance(error, penstock.DatasetError), error
                    found.append("torn")
            assert found == ["torn", 16, "missing", 16, 16] and next(steps, None) is None
            assert time.monotonic() - begun < 10


def test_a_subset_of_what_is_not_there_fails_when_it_is_asked_for():
    for rows in ([3, -1], [3, 80]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with penstock.DataLoader(Subset(ConcatDataset([folder()]), rows), 1) as loader:
                steps = iter(loader)
                assert int(next(steps)[1]) == folder()[3][1]
                if rows[1] == 80:
                    raises(IndexError, lambda: next(steps), "index 1")
                else:
                    assert int(next(steps)[1]) == folder()[79][1]


def test_a_transform_that_is_changed_later_is_noticed():
    dataset = folder()
    with penstock.DataLoader(dataset, 16) as loader:
        dataset.transform = V.Compose([V.Resize(32), V.CenterCrop(32), V.ToTensor()])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            raises(RuntimeWarning, lambda: iter(loader), "another transform")


def test_limits_hold_where_the_first_steps_are_the_loaders():
    steps = V.Compose([V.Resize(40), V.CenterCrop(32), Image.Image.copy, V.ToTensor()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with penstock.DataLoader(ImageFolder(TRAIN, steps), 16, limits__max_pixels=100) as loader:
            raises(penstock.DatasetError, lambda: next(iter(loader)), "limits.max_pixels")


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(())


def test_what_is_refused():
    raises(penstock.UsageError, lambda: penstock.DataLoader(Endless()), "IterableDataset", "WebDataset")
    raises(penstock.UsageError, lambda: penstock.DataLoader(folder(), None), "batch_size=None", "batch_size=1")
    raises(penstock.UsageError, lambda: penstock.DataLoader(ImageFolder(TRAIN), 16), "no transform")
    raises(penstock.UsageError, lambda: penstock.DataLoader(folder(), 16, transform=STEPS), "both")
    raises(penstock.UsageError, lambda: penstock.DataLoader(17), "int", "ImageFolder")


def test_penstocks_own_with_a_transform():
    for ours in (penstock.ImageFolder(TRAIN, STEPS), penstock.ImageFolder(TRAIN, transform=STEPS)):
        with penstock.DataLoader(ours, 16) as loader, penstock.DataLoader(folder(), 16, tail="drop") as torchs:
            for (images, labels), (wanted, numbers) in zip(loader, torchs):
                assert same_pixels(images, wanted) and torch.equal(labels, numbers)


def test_nothing_is_left_open():
    import gc
    before, until = len(os.listdir("/proc/self/fd")), time.monotonic() + 30
    for _ in range(3):
        penstock.DataLoader(Subset(folder(), range(20)), 4).close()
    gc.collect()
    while len(os.listdir("/proc/self/fd")) > before + 2 and time.monotonic() < until:
        time.sleep(0.02)  # threads may close theirs behind close()
    assert len(os.listdir("/proc/self/fd")) <= before + 2, os.listdir("/proc/self/fd")


if __name__ == "__main__":
    run_tests(globals())
