"""penstock.DataLoader as a training program uses it: what batches are, how epochs go, what a loop may do."""

import gc
import itertools
import json
import os
import shutil
import subprocess
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from PIL import Image

import penstock
from jobs import PENSTOCK, run_job, run_tests
from photos import WORK, raises, tiny_job
from small_photos import JOB, TRAIN, VAL

T = penstock.transforms


def indices_of(batches):
    return [batch.indices.tolist() for batch in batches]


def hashes(loader):
    split = loader.stats()["splits"][loader.split]
    return split["order_hash"], split["pixel_hash"]


def test_list_and_dict():
    with penstock.DataLoader(JOB, split="train") as train:
        batch = next(iter(train))
        images, labels = batch
        assert isinstance(batch, list) and len(batch) == 2
        assert images.shape == (16, 3, 64, 64) and images.dtype == torch.float32 and images.is_contiguous()
        assert labels.shape == (16,) and labels.dtype == torch.int64
        assert batch.valid.dtype == torch.bool and bool(batch.valid.all()) and batch.num_valid == 16
        assert batch.arithmetic == "exact"
        assert batch.indices.dtype == torch.int64 and len(set(batch.indices.tolist())) == 16
        assert not bool(batch.substituted.any()) and batch.epoch == 0 and batch.step == 0
        batch[1] = labels + 1  # as from torch's, an element may be replaced
        assert torch.equal(batch[1], labels + 1)
    with penstock.DataLoader(JOB, split="train", batch="dict", keys={"image": "pixel_values", "label": "labels"}) as named:
        other = next(iter(named))
        assert isinstance(other, dict) and list(other) == ["pixel_values", "labels"]
        assert torch.equal(other["pixel_values"], images) and torch.equal(other["labels"], labels)
        assert other.indices.tolist() == batch.indices.tolist()
    with penstock.DataLoader(JOB, split="train", batch="dict") as plain:
        assert list(next(iter(plain))) == ["image", "label"]


def test_batches_rebuilt_copied_and_pickled():
    import copy
    import pickle
    with penstock.DataLoader(JOB, split="val", batch="dict") as named, penstock.DataLoader(JOB, split="val") as plain:
        for batch in (next(iter(plain)), next(iter(named))):
            rebuilt = type(batch)(batch) if isinstance(batch, list) else type(batch)(batch.items())  # as Lightning does
            read = pickle.loads(pickle.dumps(batch))  # torch.load() takes nothing but plain types
            assert type(read) in (list, dict) and len(read) == 2
            for again in (rebuilt, copy.copy(batch), copy.deepcopy(batch)):
                assert type(again) is type(batch) and len(again) == 2
                raises(AttributeError, lambda: again.valid, "rebuilt")
                raises(AttributeError, lambda: again.num_valid, "rebuilt")
            deep = copy.deepcopy(batch)
            one, other = (batch[0], deep[0]) if isinstance(batch, list) else (batch["image"], deep["image"])
            assert torch.equal(one, other) and one.data_ptr() != other.data_ptr()


def test_eval_marks_padding_and_len_is_exact():
    counts = []
    for rank in range(4):  # 26 pictures on 4 replicas of 4: 2 steps, the last ones padded
        with penstock.DataLoader(JOB, split="val", batch_size=4, num_replicas=4, rank=rank) as val:
            batches = list(val) if val.num_samples < 5 else [b for b in val]
            assert len(val) == 2 == len(batches)
            assert val.num_replicas == 4 and val.rank == rank
            good = sum(batch.num_valid for batch in batches)
            assert good == val.num_samples == sum(int(batch.valid.sum()) for batch in batches)
            for batch in batches:
                assert bool((batch[1][~batch.valid] == -100).all()) and bool((batch[1][batch.valid] >= 0).all())
            counts.append(good)
    assert sum(counts) == 26, counts
    with penstock.DataLoader(JOB, split="train") as train:
        assert len(train) == 5 == sum(1 for _ in train) and train.num_samples == 80 == train.dataset_size
        assert train.batch_size == 16 and train.classes == sorted(os.listdir(TRAIN)) and train.embedded


def test_output_numpy_dtype_and_memory_format():
    with penstock.DataLoader(JOB, split="train", output="numpy") as loader:
        images, labels = next(iter(loader))
        assert isinstance(images, np.ndarray) and images.flags.writeable and images.dtype == np.float32
        assert labels.dtype == np.int64 and next(iter(loader)).valid.dtype == np.bool_
    with penstock.DataLoader(JOB, split="train", seed=3) as loader:
        torch_images = next(iter(loader))[0]
        assert np.array_equal(torch_images.numpy(), images)
    with penstock.DataLoader(JOB, split="train", channels_last=True) as loader:
        last = next(iter(loader))[0]
        assert last.shape == (16, 3, 64, 64) and last.is_contiguous(memory_format=torch.channels_last)
        assert not last.is_contiguous() and torch.equal(last, torch_images)
        assert torch.nn.Conv2d(3, 4, 3)(last).is_contiguous(memory_format=torch.channels_last)
    for dtype in (torch.float16, "bfloat16", np.float16, np.dtype("float32"), "uint8"):
        with penstock.DataLoader(JOB, split="train", dtype=dtype) as loader:
            images = next(iter(loader))[0]
            name = str(dtype).rpartition(".")[2].rstrip("'>")
            assert str(images.dtype) == f"torch.{name}", (dtype, images.dtype)
            if images.dtype.is_floating_point:
                assert torch.equal(images, torch_images.to(images.dtype))
    with penstock.DataLoader(JOB, split="train", dtype="bfloat16", output="numpy") as loader:
        raises(penstock.UsageError, lambda: next(iter(loader)), "bfloat16", "torch")
    with penstock.DataLoader(JOB, split="train", device="cpu") as loader:
        assert torch.equal(next(iter(loader))[0], torch_images)
    with penstock.DataLoader(JOB, split="train", device="auto") as loader:
        assert next(iter(loader))[0].device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    if not torch.cuda.is_available():
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            penstock.DataLoader(JOB, split="train", pin_memory=True).close()
        assert len(seen) == 1 and "no CUDA" in str(seen[0].message) and seen[0].filename == __file__, seen


def test_closing():
    loader = penstock.DataLoader(JOB, split="train")
    assert repr(loader) == ("<penstock.DataLoader of split 'train': 5 batches of 16, replica 0 of 1, embedded>")
    with loader as same:
        assert same is loader
        running = iter(loader)
        kept, _ = next(running)
        before = kept.clone()
    assert "closed" in repr(loader) and torch.equal(kept, before)
    for use in (lambda: len(loader), lambda: iter(loader), lambda: next(running), loader.state_dict, loader.stats):
        raises(penstock.UsageError, use, "closed")
    loader.close()
    loader.close()
    try:
        with penstock.DataLoader(JOB, split="train") as loader:
            raise KeyError("the program's own")
    except KeyError:
        pass
    raises(penstock.UsageError, lambda: len(loader), "closed")


def test_jobs_and_splits():
    with penstock.DataLoader(tiny_job()) as one:  # its only split
        assert one.split == "train"
        wanted = indices_of(one)
    path = os.path.join(WORK, "tiny.json")
    with open(path, "w") as file:
        json.dump(tiny_job(), file)
    from pathlib import Path
    with penstock.DataLoader(Path(path)) as one:
        assert one.split == "train" and indices_of(one) == wanted
    job = tiny_job()
    job["splits"]["train"]["dataset"] = {"folder": Path(TRAIN)}
    job["splits"]["train"]["batch_size"] = np.int64(16)
    job["seed"] = np.array(3)
    with penstock.DataLoader(job) as one:
        assert indices_of(one) == wanted
    T = penstock.transforms
    made = penstock.DataLoader(penstock.ImageFolder(TRAIN), batch_size=16, tail="pad", seed=3, shuffle=False,
                               transform=T.Compose([T.CenterCrop(32)]))
    with made:
        assert made.split == "train" and indices_of(made) == [list(range(k, k + 16)) for k in range(0, 80, 16)]
    with penstock.DataLoader(penstock.ImageFolder(VAL), split="val", mode="eval", batch_size=10, shuffle=False,
                             transform=[T.Resize(40), T.CenterCrop(32)]) as val:
        assert [len(labels) for _, labels in val] == [10, 10, 6] and val.num_samples == 26
    with penstock.DataLoader(penstock.ImageFolder(VAL), transform=T.CenterCrop(8)) as single:
        assert single.batch_size == 1 and len(single) == 26  # torch's default
    with penstock.DataLoader(penstock.ImageFolder(VAL), batch_size=10, drop_last=True, transform=T.CenterCrop(8)) as cut:
        assert len(cut) == 2


def test_overrides_in_every_form():
    ways = [{"batch_size": 8}, {"overrides": ["splits.train.batch_size=8"]}, {"overrides": "splits.train.batch_size=8"},
            {"overrides": {"splits.train.batch_size": 8}}, {"splits__train__batch_size": 8},
            {"batch_size": 32, "overrides": ["splits.train.batch_size=8"]}]  # the most explicit one comes last
    for way in ways:
        with penstock.DataLoader(tiny_job(), **way) as loader:
            assert loader.batch_size == 8 and len(loader) == 10, way
    with penstock.DataLoader(tiny_job(), loader__threads=3, trainer__timeout_s=7.5) as loader:
        next(iter(loader))
        assert loader.stats()["ranks"][1]["threads"] == 3
    with penstock.DataLoader(JOB, split="train", shuffle=False) as loader:
        assert indices_of(loader)[0] == list(range(16))
    with penstock.DataLoader(JOB, split="train", seed=3) as same, penstock.DataLoader(JOB, split="train", seed=4) as other:
        assert indices_of(same) != indices_of(other)
    with penstock.DataLoader(JOB, split="train") as plain:
        wanted = hashes_after_epoch(plain)
    with penstock.DataLoader(JOB, split="train", seed=3) as same, penstock.DataLoader(JOB, split="val", seed=4):
        assert hashes_after_epoch(same) == wanted


def hashes_after_epoch(loader):
    for _ in loader:
        pass
    return hashes(loader)


def test_same_hashes_as_the_program():
    report = run_job(JOB, options=["--epochs=2"]).hashes()
    with penstock.DataLoader(JOB, split="train", output="numpy") as train, penstock.DataLoader(JOB, split="val", dtype="uint8") as val:
        for _ in range(2):
            for _ in train:
                pass
        for _ in val:
            pass
        assert hashes(train) == report["train"] and hashes(val) == report["val"]


def test_epochs_advance_and_set_epoch():
    with penstock.DataLoader(JOB, split="train") as train:
        first, second = indices_of(train), indices_of(train)
        assert first != second and train.epoch == 2
        train.set_epoch(0)
        assert train.epoch == 0 and indices_of(train) == first and indices_of(train) == second
        train.set_epoch(7)
        assert next(iter(train)).epoch == 7 and next(iter(train)).epoch == 8
        for epoch in range(2):
            train.set_epoch(epoch)
            assert [batch.epoch for batch in train] == [epoch] * 5
        train.set_epoch(np.int64(3))
        assert next(iter(train)).epoch == 3
        for wrong in (-1, 2**32, 2.0, "3", None):
            raises(penstock.UsageError, lambda: train.set_epoch(wrong), f"set_epoch({wrong!r})")
    with penstock.DataLoader(JOB, split="val") as val:
        assert indices_of(val) == indices_of(val) and val.epoch == 0
        assert [batch.epoch for batch in val] == [0, 0]


def test_break_islice_and_two_iterators():
    with penstock.DataLoader(JOB, split="train") as train:
        zero, one = indices_of(train), indices_of(train)
        train.set_epoch(0)
        for _ in train:
            break
        assert indices_of(train) == one
        train.set_epoch(0)
        assert indices_of(itertools.islice(train, 2)) == zero[:2]
        assert indices_of(itertools.islice(train, 3)) == one[:3]
        train.set_epoch(0)
        a, b = iter(train), iter(train)  # epochs 0 and 1, alive at once, in turns
        both = [(next(a).indices.tolist(), next(b).indices.tolist()) for _ in range(5)]
        assert both == list(zip(zero, one))
        raises(StopIteration, lambda: next(a))
        raises(StopIteration, lambda: next(a))
        assert iter(b) is b and len(b) == 5
        raises(StopIteration, lambda: next(b))
        train.set_epoch(0)
        pairs = zip(train, range(10))
        assert [batch.step for batch, _ in pairs] == [0, 1, 2, 3, 4]


def test_lightning_like_sanity_check_and_validation_in_mid_epoch():
    with penstock.DataLoader(JOB, split="train") as train, penstock.DataLoader(JOB, split="val") as val:
        wanted = indices_of(val)
        assert indices_of(itertools.islice(val, 1)) == wanted[:1]  # sanity check
        seen = []
        for step, batch in enumerate(train):
            seen.append(batch.indices.tolist())
            if step in (1, 3):  # val_check_interval; the batch of the training step is still held
                assert indices_of(val) == wanted
        train.set_epoch(0)
        assert indices_of(train) == seen


def test_threads():
    with penstock.DataLoader(JOB, split="train") as train:
        plain = indices_of(train)
        for _ in range(2):  # an iteration that three threads share
            train.set_epoch(0)
            steps, seen = iter(train), []
            threads = [threading.Thread(target=lambda: seen.extend((b.step, b.indices.tolist()) for b in steps))
                       for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            assert [indices for _, indices in sorted(seen)] == plain
        iterations = [iter(train) for _ in range(3)]  # and an iteration for each of three
        epochs = [one.result() for one in map(ThreadPoolExecutor(3).submit, [indices_of] * 3, iterations)]
        for epoch, seen in enumerate(epochs, start=1):
            train.set_epoch(epoch)
            assert indices_of(train) == seen


def test_gradient_accumulation_and_read_ahead():
    with penstock.DataLoader(JOB, split="train") as train:
        plain = indices_of(train)
        train.set_epoch(0)
        window, groups = [], []
        for batch in train:
            window.append(batch)  # two batches held besides none in use
            if len(window) == 2:
                groups.append(indices_of(window))
                window = []
        assert sum(groups, []) + indices_of(window) == plain
        train.set_epoch(0)
        window = batch = None
        reader, ahead = iter(train), []  # Accelerate holds one and asks for the next, to know the last one
        current = next(reader)
        while current is not None:
            following = next(reader, None)
            ahead.append((current.indices.tolist(), following is None))
            current = following
        assert [indices for indices, _ in ahead] == plain and [last for _, last in ahead] == [False] * 4 + [True]


def test_keeping_batches():
    with penstock.DataLoader(JOB, split="train", copy=True) as train:
        everything = list(train)
        assert len(everything) == 5
        train.set_epoch(0)
        first = everything[0]
        assert bool(first.valid.all()) and (first.num_valid, first.epoch, first.step) == (16, 0, 0)
        for kept, again in zip(everything, train):
            assert torch.equal(kept[0], again[0]) and kept.indices.tolist() == again.indices.tolist()
    with penstock.DataLoader(JOB, split="train", batch_size=8, trainer__timeout_s=3, trainer__hold=2) as train:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            problem = raises(penstock.UsageError, lambda: list(train), "holds all batches of split 'train'", "copy=True")
        assert any("hold" in str(one.message) for one in seen), [str(one.message) for one in seen]
        assert all(one.filename == __file__ for one in seen), seen
        assert "hold" in problem.remedy


def test_warning_made_an_error_loses_no_batch():
    with penstock.DataLoader(JOB, split="train", trainer__hold=1) as train:
        plain = indices_of(train)
        train.set_epoch(0)
        steps, held = iter(train), []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            raises(RuntimeWarning, lambda: [held.append(next(steps)) for _ in range(5)], "hold")
            assert train.stats()["splits"]["train"]["batches"] == 5 + len(held)
        seen = indices_of(held)
        held.clear()
        gc.collect()
        seen += indices_of(steps)
        assert seen == plain


def test_stats_show_and_tqdm():
    with penstock.DataLoader(JOB, split="train") as train:
        assert "No batch" in train.stats()["bottleneck"]
        for batch in train:
            pass
        stats = train.stats()
        assert stats["images_per_s"] > 0 and 0 <= stats["wait_fraction"] <= 1
        assert stats["bottleneck"].endswith(".") and "%" in stats["bottleneck"], stats["bottleneck"]
        assert [rank["role"] for rank in stats["ranks"]] == ["trainer", "loader"]
        assert stats["ranks"][1]["images"] >= 80 and stats["splits"]["train"]["images"] == 80
        grid = penstock.show(batch, n=6, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), class_names=train.classes)
        titles = [train.classes[label] for label in batch[1][:6].tolist()]
    check_grid(grid, 6, titles)
    check_grid(penstock.show(batch[0].to(torch.bfloat16), n=100), 16)
    check_grid(penstock.show({"pixel_values": batch[0].numpy(), "labels": batch[1].numpy()}, n=1), 1)
    raises(penstock.UsageError, lambda: penstock.show(batch[1]), "images")
    views = torch.stack([batch[0]] * 5, dim=1)  # as FiveCrop gives them
    check_grid(penstock.show((views, batch[1]), n=12), 10)
    check_grid(penstock.show(views.numpy()[:2], n=100), 10)
    check_grid(penstock.show(views, n=1), 5)
    raises(penstock.UsageError, lambda: penstock.show(batch, mean=(0, 0, 0)), "std")
    for name, wrong in (("columns", "x"), ("columns", 0), ("columns", 1.5), ("n", "x"), ("n", 0), ("class_names", 3)):
        raises(penstock.UsageError, lambda: penstock.show(batch, **{name: wrong}), name)
    for wrong in ("x", (0, 0), [[0, 0, 0]], (0, 0, "x")):
        raises(penstock.UsageError, lambda: penstock.show(batch, mean=wrong, std=(1, 1, 1)), "mean")
        raises(penstock.UsageError, lambda: penstock.show(batch, mean=(0, 0, 0), std=wrong), "std")
    try:
        from tqdm import tqdm
    except ImportError:
        print("no tqdm: progress bar not tried")
        return
    import io
    out = io.StringIO()
    with penstock.DataLoader(JOB, split="train") as train:
        bar = tqdm(train, file=out)
        assert bar.total == 5 and sum(1 for _ in bar) == 5 and "5/5" in out.getvalue()


def check_grid(grid, pictures, titles=None):
    if hasattr(grid, "axes"):  # matplotlib
        filled = [axis for axis in grid.axes if axis.images]
        assert len(filled) == pictures
        if titles is not None:
            assert [axis.get_title() for axis in filled] == titles
        assert grid._repr_png_().startswith(b"\x89PNG")
    else:
        print("no matplotlib: a Pillow grid instead, without titles")
        assert grid.size[0] >= 64 and grid.size[1] >= 64


def test_stats_are_each_loaders_own():
    # Three loaders of one process, two of them of one split: one receiver and one loader, and books of their own.
    with penstock.DataLoader(JOB, split="train") as one, penstock.DataLoader(JOB, split="train") as two, \
            penstock.DataLoader(JOB, split="val") as val:
        assert one.stats()["images"] == one.stats()["batches"] == 0 and one.stats()["pixel_hash"] == "0" * 32
        list(map(len, one))
        alone = one.stats()
        assert (alone["images"], alone["batches"], len(alone["ranges"])) == (80, 5, 1)
        for _ in zip(range(2), two):
            pass
        list(map(len, val))
        assert one.stats()["pixel_hash"] == alone["pixel_hash"] and one.stats()["images"] == 80
        first, second = one.stats(), two.stats()
        assert second["batches"] == 2 and second["ranges"][0]["end_step"] == 2
        assert second["pixel_hash"] == second["ranges"][0]["pixel_hash"] != first["pixel_hash"]
        evaluated = val.stats()
        assert evaluated["images"] == 32 and evaluated["padding"] == 6 and evaluated["images_per_s"] > 0
        assert alone["padding"] == 0
        assert 0 <= evaluated["wait_fraction"] <= 1
        # The process as a whole is the sum.
        whole = first["splits"]["train"]
        assert whole["images"] == 80 + 32 and set(first["splits"]) == {"train", "val"}
        for key in ("order_hash", "pixel_hash"):
            assert int(whole[key], 16) == (int(first[key], 16) + int(second[key], 16)) % 2 ** 128
        two.set_epoch(0)
        list(map(len, two))
        assert two.stats()["ranges"][-1]["pixel_hash"] == first["pixel_hash"]
        assert len(two.stats()["ranges"]) == 2 and two.stats()["images"] == 112
    with penstock.DataLoader(JOB, split="train") as again:  # another one begins at nothing
        assert again.stats()["images"] == 0


def test_two_lists_built_in_python():
    first = [T.RandomResizedCrop(64), T.ToDtype("float32", scale=True)]
    second = [T.Resize(64), T.CenterCrop(64), T.ToDtype("float32", scale=True)]
    data = penstock.ImageFolder(TRAIN)
    with penstock.DataLoader(data, transform=first, gpu_transform=T.Compose(second), cpu_fraction=0.4, batch_size=80,
                             seed=3) as both, \
            penstock.DataLoader(data, transform=first, batch_size=80, seed=3) as only_first, \
            penstock.DataLoader(data, transform=second, batch_size=80, seed=3) as only_second:
        mixed, firsts, seconds = (next(iter(one)) for one in (both, only_first, only_second))
        assert mixed.indices.tolist() == firsts.indices.tolist() == seconds.indices.tolist()
        of_first = [torch.equal(a, b) for a, b in zip(mixed[0], firsts[0])]
        of_second = [torch.equal(a, b) for a, b in zip(mixed[0], seconds[0])]
        assert all(a != b for a, b in zip(of_first, of_second)) and 15 < sum(of_first) < 50, sum(of_first)
        # Whose a sample is stands in the order's hash, and in the state.
        assert both.stats()["order_hash"] != only_first.stats()["order_hash"]
        raises(penstock.ConfigError, lambda: only_first.load_state_dict(both.state_dict()), "cpu_fraction")
    with penstock.DataLoader(data, transform=first, gpu_transform=second, cpu_fraction=0.4, batch_size=80, seed=3,
                             loader__threads=1, loader__executor="auto", loader__cpu_fraction=1.0) as again:
        assert torch.equal(next(iter(again))[0], mixed[0])
    # By learned speeds: a key of the loader, which changes no image.
    with penstock.DataLoader(data, transform=first, cpu_fraction="auto", batch_size=80, seed=3,
                             loader__executor="auto") as shared:
        assert torch.equal(next(iter(shared))[0], firsts[0])
    raises(penstock.UsageError, lambda: penstock.DataLoader(JOB, split="train", cpu_fraction="all"), '"auto"')
    raises(penstock.ConfigError, lambda: penstock.DataLoader(data, transform=first, gpu_transform=second), "cpu_fraction")
    raises(penstock.ConfigError, lambda: penstock.DataLoader(data, transform=first, cpu_fraction=0.4), "gpu_pipeline")
    raises(penstock.ConfigError, lambda: penstock.DataLoader(JOB, split="train", cpu_fraction=0.4), "loader.cpu_fraction")
    raises(penstock.UsageError, lambda: penstock.DataLoader(JOB, split="train", gpu_transform=second),
           "splits.NAME.gpu_pipeline")
    raises(penstock.ConfigError, lambda: penstock.DataLoader(data, transform=first, gpu_transform=T.CenterCrop(32),
                                                             cpu_fraction=0.4), "ToDtype")


def test_the_folder_above_the_splits_is_doubted():
    parent = os.path.dirname(TRAIN)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with penstock.DataLoader(penstock.ImageFolder(parent), transform=T.CenterCrop(8)) as above:
            assert above.classes == ["train", "val"]  # as torchvision has them
    assert [one.category for one in seen] == [RuntimeWarning] and seen[0].filename == __file__, seen
    assert f"penstock.ImageFolder('{parent}/train')" in str(seen[0].message)


def test_wrong_arguments_are_named():
    raises(penstock.UsageError, lambda: penstock.DataLoader(JOB, split=3), "a split has a name")
    raises(penstock.UsageError, lambda: penstock.DataLoader(JOB, split="train", overrides=5), "no list of texts")
    raises(penstock.UsageError, lambda: T.Compose(T.CenterCrop(3)), "a list of transforms")
    raises(penstock.UsageError, lambda: penstock.Preprocessor(JOB, "val", threads=1.5), "no integer")
    raises(penstock.UsageError, lambda: penstock.Preprocessor(JOB, "val", threads=10**9), "1 to 1024")
    raises(penstock.UsageError, lambda: penstock.WebDataset(["a.tar", "b.tar"]), "is no path")
    with penstock.DataLoader(JOB, split="train") as train:
        raises(penstock.UsageError, lambda: train.state_dict(consumed=1.5), "no integer")
    raises(penstock.UsageError, lambda: penstock.DataLoader(penstock.ImageFolder(""), transform=T.CenterCrop(8)), "is empty")
    with penstock.DataLoader(penstock.ImageFolder(TRAIN.encode()), transform=T.CenterCrop(8)) as loader:
        assert loader.dataset_size == 80
    index = os.path.join(WORK, "of_folder.index")
    with open(os.path.join(WORK, "of_folder.yaml"), "w") as file:
        json.dump({"splits": {"train": {"dataset": {"folder": TRAIN, "index": index}, "pipeline": [{"CenterCrop": {"size": 8}}]}}},
                  file)
    subprocess.run([PENSTOCK, "index", file.name], check=True, capture_output=True, timeout=60)
    with penstock.DataLoader(penstock.ImageFolder(TRAIN, index=index), transform=T.CenterCrop(8)) as loader:
        assert loader.dataset_size == 80


def test_names_of_classes_may_be_any_bytes():
    root = os.path.join(WORK, "bytes").encode()
    for name in (b"caf\xe9", b"tea"):
        os.makedirs(os.path.join(root, name))
        some = next(os.scandir(os.scandir(TRAIN).__next__().path)).path
        shutil.copy(some, os.path.join(root, name, b"a.jpg"))
    with penstock.DataLoader(penstock.ImageFolder(root.decode()), transform=T.CenterCrop(8)) as loader:
        assert loader.classes == [os.fsdecode(b"caf\xe9"), "tea"]


def test_show_gives_back_the_pixels():
    from PIL import Image
    with penstock.DataLoader(JOB, split="train", dtype="uint8") as raw, penstock.DataLoader(JOB, split="train") as finished:
        (pixels, _), (floats, _) = next(iter(raw)), next(iter(finished))
    from penstock.show import _pillow_grid, _to_uint8
    wanted = pixels.numpy().transpose(0, 2, 3, 1)
    assert np.array_equal(_to_uint8(pixels, None, None), wanted)
    undone = _to_uint8(floats, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert np.array_equal(undone, wanted)
    grid = np.asarray(_pillow_grid(wanted[:3], 2))
    assert np.array_equal(grid[:64, :64], wanted[0]) and np.array_equal(grid[:64, 66:], wanted[1])
    assert isinstance(Image.fromarray(grid), Image.Image) and np.array_equal(grid[66:, :64], wanted[2])
    stretched = _to_uint8(floats, None, None)
    assert stretched.min() == 0 and stretched.max() == 255


if __name__ == "__main__":
    run_tests(globals())
