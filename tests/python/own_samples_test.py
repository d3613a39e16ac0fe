"""Data sets whose samples are the program's own Python: tensors, numbers, texts in tuples and dicts, as torch's DataLoader takes
them, in worker processes and in this process; and collate_fn."""

import contextlib
import enum
import gc
import io
import json
import os
import random
import threading
import time
import warnings

import numpy
import torch
from PIL import Image
from torch.utils.data import default_collate, get_worker_info

import penstock
from jobs import FULL, run_tests
from own_data import Boxes, Drawing, Numbered, Outliers, Rich, Slow, digest, one_process_that_imports, same
from penstock._worker import memory_files
from photos import TRAIN, descendants, raises

warnings.filterwarnings("ignore", message=".*read and transformed in Python.*")
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


class Uneven(torch.utils.data.Dataset):
    """Boxes, as for detection: another number in each picture."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return torch.full((3, 5 + index % 3, 6), index, dtype=torch.float32), {
            "boxes": torch.zeros(index % 4, 4) + index, "labels": torch.arange(index % 4), "picture": Image.new("RGB", (4, 4), index)}


class Speed(torch.Tensor):
    """A class of the program's own."""


class Colour(enum.IntEnum):
    RED = 1


class Sentence(str):
    pass


def with_note(tensor):
    tensor.note = "a note"
    return tensor


class Rare(torch.utils.data.Dataset):
    """More than their numbers: by one shape, and by shapes of their own."""

    def __init__(self, uneven):
        self.uneven = uneven

    def __len__(self):
        return 17

    def __getitem__(self, index):
        n = 2 + index * self.uneven
        pairs = numpy.array([(index, 2.5)] * n, dtype=[("a", "i4"), ("b", ">f8")])
        complexes = torch.full((n,), index + 2j)
        return {"speed": torch.full((n,), float(index)).as_subclass(Speed), "note": with_note(torch.ones(n)),
                "parameter": torch.nn.Parameter(torch.ones(n) * index), "grad": torch.full((n,), float(index), requires_grad=True),
                "coo": torch.eye(n).mul(index).to_sparse(), "csr": torch.eye(n).mul(index + 1).to_sparse_csr(),
                "conjugate": complexes.conj(), "negative": complexes.conj().imag,
                "quantized": torch.quantize_per_tensor(torch.ones(n) * index, 0.1, 0, torch.quint8),
                "big": numpy.arange(n).astype(">f4"), "pairs": pairs, "record": pairs.view(numpy.recarray), "pair": pairs[0],
                "objects": numpy.array([index, "x", None] * n, dtype=object), "u2": numpy.full(n, index, "u2"),
                "dates": numpy.array(["2020-01-01"] * n, dtype="M8[D]"), "fortran": numpy.asfortranarray(numpy.ones((n, 3))),
                "float64": numpy.float64(index), "text": numpy.str_(index), "flag": numpy.bool_(index % 2), "colour": Colour.RED,
                "sentence": Sentence(index), "size": torch.ones(n).shape, "plain": "K:1" if index % 2 else "E:1", "bytes": b"K:%d" % index}


def same_as_torchs(dataset, workers, **options):
    compared = 0
    theirs = torch.utils.data.DataLoader(dataset, 8, **options)
    with penstock.DataLoader(dataset, 8, num_workers=workers, **options) as ours:
        assert len(ours) == len(theirs)
        for mine, wanted in zip(ours, theirs):
            assert same(mine, wanted), (mine, wanted)
            compared += 1
    assert compared == len(theirs) > 2


def test_samples_are_collated_as_torch_does():
    # Workers take their time to start: most of it in this process.
    for workers in (0, 2) if FULL else (0,):
        same_as_torchs(Rich(), workers, drop_last=True)
        same_as_torchs(Rich(), workers, collate_fn=list)
        same_as_torchs(Uneven(), workers, collate_fn=list)
    same_as_torchs(Rich(), 0)
    same_as_torchs(Rich(), 1)
    same_as_torchs(Uneven(), 1, collate_fn=lambda samples: tuple(zip(*samples)))  # never pickled
    with penstock.DataLoader(Rich(), 8) as loader:
        batch = next(iter(loader))
        assert batch.indices.tolist() == list(range(8)) and batch["tensor"].shape == (8, 3, 4)


def test_what_is_more_than_its_numbers_comes_as_it_was():
    for uneven, workers in ((False, 1), (True, 0), (False, 0), (True, 1)) if FULL else ((False, 1), (True, 0)):
        same_as_torchs(Rare(uneven), workers, collate_fn=list)

    class Speeds(Numbered):
        def __getitem__(self, index):
            return Rare(False)[index]["speed"]

    same_as_torchs(Speeds(), 0)  # torch's own stack makes a Speed of them


def test_draws_follow_from_the_sample_wherever_it_is_made():
    streams = []
    for workers in (0, 1, 3) if FULL else (0, 1):
        with penstock.DataLoader(Drawing(), 8, True, num_workers=workers, seed=5) as loader:
            streams.append([digest(loader), digest(loader)])
    assert all(stream == streams[0] for stream in streams) and streams[0][0] != streams[0][1]
    by_sample = {index: row for batch in streams[0][0] for index, *row in zip(*batch)}
    with penstock.DataLoader(Drawing(), 5, sampler=[7, 3, 11], seed=5, num_workers=0) as loader:
        (batch,) = digest(loader)
    assert {index: row for index, *row in zip(*batch)} == {index: by_sample[index] for index in (7, 3, 11)}


def test_the_programs_generators_stay_as_they_were():
    def state():
        return random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with penstock.DataLoader(Drawing(), 8, num_workers=0, collate_fn=lambda samples: (torch.rand(1), random.random())) as loader:
        torch.rand(1)
        before = state()
        first = [(float(a), b) for a, b in loader]
        assert state() == before and len(set(first)) == 3
    with penstock.DataLoader(Drawing(), 8, num_workers=1, collate_fn=lambda samples: (torch.rand(1), random.random())) as loader:
        assert [(float(a), b) for a, b in loader] == first


def test_numpy_samples_for_a_collate_fn():
    samples = [(numpy.full((2, 3), index, numpy.float32), numpy.int32(index), numpy.array([index > 1, True]), index, f"text {index}")
               for index in range(4)]
    hashes = set()
    for workers in (0, 1):
        with penstock.DataLoader(samples, 4, output="numpy", collate_fn=list, num_workers=workers) as loader:
            made, = loader
            assert type(made[2][1]) is numpy.int32 and same(list(made), samples), made
        with penstock.DataLoader(samples, 4, output="numpy", num_workers=workers) as loader:
            (arrays, numbers, flags, counts, texts), = loader
            assert arrays.shape == (4, 2, 3) and numbers.tolist() == counts.tolist() == [0, 1, 2, 3]
            assert texts == tuple(one[-1] for one in samples)
            assert {type(one) for one in (arrays, numbers, flags, counts)} == {numpy.ndarray} and flags.dtype == bool
            hashes.add(loader.stats()["pixel_hash"])
    assert len(hashes) == 1, hashes


def test_dicts_of_samples_made_in_python():
    from torchvision import transforms as V
    from torchvision.datasets import ImageFolder
    keys = {"image": "pixel_values", "label": "labels"}
    steps = [V.Resize((32, 32)), Image.Image.copy, V.PILToTensor()]
    theirs, ours = ImageFolder(TRAIN, V.Compose(steps)), penstock.ImageFolder(TRAIN)
    for dataset, options in ((theirs, {}), (ours, dict(transform=steps[1:], batch_size=1)), (theirs, dict(collate_fn=default_collate))):
        options = {"batch_size": 8, **options}
        with penstock.DataLoader(dataset, batch="dict", keys=keys, **options) as named, penstock.DataLoader(dataset, **options) as plain:
            batch, (images, labels) = next(iter(named)), next(iter(plain))
            assert isinstance(batch, dict) and list(batch) == ["pixel_values", "labels"], batch
            assert torch.equal(batch["pixel_values"], images) and torch.equal(batch["labels"], labels)
    # A collate_fn gets the new names, too, as where loaders read the pictures.
    stacked = {"collate_fn": lambda samples: {"pixel_values": torch.stack([one["pixel_values"] for one in samples])}}
    with penstock.DataLoader(theirs, 8, batch="dict", keys=keys, **stacked) as named, penstock.DataLoader(theirs, 8) as plain:
        assert torch.equal(next(iter(named))["pixel_values"], next(iter(plain))[0])
    with penstock.DataLoader(Pictures(), 6, batch="dict", transform=[V.Resize((32, 32)), negative, V.PILToTensor()]) as named:
        assert list(next(iter(named))) == ["image", "label"]
    with penstock.DataLoader(Rich(), 8, batch="dict", keys={"number": "count"}) as named:
        assert next(iter(named))["count"].tolist() == list(range(8))
    for wrong, words in (({"label": "labels"}, ("no field 'label'", "'number'")), ({"number": "name"}, ("the same name",))):
        raises(penstock.UsageError, lambda: penstock.DataLoader(Rich(), 8, batch="dict", keys=wrong), *words)
    for dataset in (Numbered(), Lengthening(10), Uneven()):
        raises(penstock.UsageError, lambda: penstock.DataLoader(dataset, 8, batch="dict"), f"{type(dataset).__name__}'s samples are made in")
    with penstock.DataLoader(Numbered(), 8, batch="dict", keys={"first": "one"}, collate_fn=lambda samples: {"first": samples}) as loader:
        assert list(next(iter(loader))) == ["one"]


def test_samples_of_very_many_parts():
    samples = [list(range(first, first + 10_020)) for first in (0, 7)]
    with penstock.DataLoader(samples, 2) as loader:
        batch, = loader
    assert [one.tolist() for one in batch] == [list(pair) for pair in zip(*samples)]


def test_samples_without_parts():
    boxes = [[] if index != 7 else [index] for index in range(40)]
    for samples in ([{}] * 8, [([], {})] * 8, boxes):
        for workers in (0, 1):
            with penstock.DataLoader(samples, 4, collate_fn=list, num_workers=workers) as loader:
                assert [one for batch in loader for one in batch] == samples
    with penstock.DataLoader([{}] * 8, 4) as loader:
        assert list(loader) == list(torch.utils.data.DataLoader([{}] * 8, 4))


def test_what_else_samples_may_be():
    name = os.fsdecode(b"caf\xe9.jpg")
    for workers in (0, 1):
        with penstock.DataLoader([(number, name, numpy.array(number)) for number in range(4)], 4, collate_fn=list, num_workers=workers) as loader:
            samples = next(iter(loader))
            assert [one for _, one, _ in samples] == [name] * 4
            assert all(type(one) is numpy.ndarray and one.shape == () and int(one) == number for number, _, one in samples)
    dataset = Slow()
    dataset.version, dataset.classes = lambda what: 1, [name]  # mean something else than penstock's
    with penstock.DataLoader(dataset, 32) as loader:
        assert len(list(loader)) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = penstock.DataLoader(Slow(), 32)
        list(loader)
        del loader
        gc.collect()  # no socket is left to it


def test_any_number_of_batches_may_be_kept():
    for workers in (0, 1) if FULL else (0,):
        with penstock.DataLoader(Rich(), 3, num_workers=workers) as loader:
            kept = list(loader)
    assert len(kept) == 13
    assert torch.cat([batch["number"] for batch in kept]).tolist() == list(range(37))
    assert torch.cat([batch.indices for batch in kept]).tolist() == list(range(37))


class Lengthening(torch.utils.data.Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index >= self.size:
            raise IndexError(index)
        return torch.tensor(index)


def test_the_length_is_asked_for_in_each_epoch():
    for make in (torch.utils.data.DataLoader, penstock.DataLoader):
        dataset = Lengthening(10)
        loader = make(dataset, 4)
        for size in (10, 13, 5):
            dataset.size = size
            assert len(loader) == -(-size // 4)
            assert torch.cat(list(loader)).tolist() == list(range(size)), (make, size)
        steps = iter(loader)
        next(steps)
        dataset.size = 7  # behind the beginning of an epoch it is the next one's
        assert torch.cat(list(steps)).tolist() == [4]
        assert torch.cat(list(loader)).tolist() == list(range(7))
        for options in (dict(shuffle=True), dict(sampler=Order(dataset))):
            dataset.size = 6
            loader = make(dataset, 4, **options)
            list(loader)
            dataset.size = 9
            assert sorted(torch.cat(list(loader)).tolist()) == list(range(9)), (make, options)
    state = loader.state_dict()
    with penstock.DataLoader(dataset, 4, sampler=Order(dataset)) as other:
        other.load_state_dict(state)
    loader.load_state_dict(state)
    dataset.size = 0
    assert list(loader) == []


class Order:
    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __iter__(self):
        return iter(range(len(self.dataset)))


def test_a_collate_fn_gets_small_tensors_of_any_shape():
    for workers in (0, 1) if FULL else (0,):
        with penstock.DataLoader(Boxes(), 20, num_workers=workers, collate_fn=list) as loader:
            samples = [sample for batch in loader for sample in batch]
        assert [len(boxes) for _, boxes in samples] == [len(boxes) for _, boxes in (Boxes()[i] for i in range(200))]
        assert all((boxes == index).all() for index, (_, boxes) in enumerate(samples))


def kept_parts():
    """Bytes of large parts in this process and its children."""
    total = 0
    for process in ("self", *descendants()):
        for path, name in memory_files(process):
            with contextlib.suppress(OSError):  # closed meanwhile
                total += os.stat(path).st_size if name.startswith("penstock-large") else 0
    return total


def test_parts_that_are_much_larger_than_the_others():
    hashes = set()
    for workers in (0, 1):
        same_as_torchs(Outliers(), workers, collate_fn=list)
        with penstock.DataLoader(Outliers(), 4, shuffle=True, collate_fn=list, num_workers=workers, seed=2) as loader:
            for _ in range(3):
                for _, batch in zip(range(3), loader):  # broken off
                    pass
                assert {index: len(sample[0]) for batch in loader for index, sample in zip(batch.indices.tolist(), batch)}[5] == 1_000_000
            assert kept_parts() < 20_000_000  # of what was broken off
            hashes.add(loader.stats()["pixel_hash"])
        del loader, batch  # which keeps the loader's end of the socket
        until = time.monotonic() + 30  # the thread, or the worker, ends behind close()
        while kept_parts() and time.monotonic() < until:
            gc.collect()
            time.sleep(0.05)
        assert kept_parts() == 0, (workers, kept_parts())
    assert len(hashes) == 1, hashes
    with penstock.DataLoader(Outliers(), 8, collate_fn=list, limits__max_field_bytes=1 << 21) as roomy:
        assert [len(sample[0]) for batch in roomy for sample in batch][5] == 1_000_000 and kept_parts() == 0


class Ragged(torch.utils.data.Dataset):
    """Those that are looked at have one shape; all others are much larger."""

    def __len__(self):
        return 2400

    def __getitem__(self, index):
        return torch.full((4 if index % 200 == 0 or index in (1, 2399) else 100_000,), index % 100, dtype=torch.uint8)


def test_nearly_all_samples_may_be_unlike_those_looked_at():
    from penstock import _large_parts
    looks, look = [], _large_parts._look
    _large_parts._look = lambda: (looks.append(1), look())
    for workers in (0, 1):
        # More than a thousand large parts ahead of the program, which has 1,024 files open by default.
        with penstock.DataLoader(Ragged(), 300, collate_fn=list, num_workers=workers, prefetch_factor=8) as loader:
            steps, until = iter(loader), time.monotonic() + 100
            while workers and kept_parts() < 1025 * 100_000 and time.monotonic() < until:
                time.sleep(0.05)
            assert not workers or kept_parts() >= 1025 * 100_000, kept_parts()
            assert all(len(one) in (4, 100_000) and int(one[-1]) == index % 100
                       for batch in steps for one, index in zip(batch, batch.indices.tolist()))
    _large_parts._look = look
    assert 1 <= len(looks) < 200, len(looks)  # for 2,388 parts: each look goes through all files of the worker


def test_room_follows_the_largest_but_for_a_few_huge_ones():
    from penstock._own_samples import Layout, room_for
    layout = Layout.of([b"bytes"])
    assert room_for([10] * 13 + [300_000] * 2, layout, True) == room_for([300_000] * 15, layout, True) == 65536 + 375_000
    assert room_for([10] * 13 + [50_000_000] * 2, layout, True) == room_for([10] * 15, layout, True) == 65576
    assert room_for([50_000_000] * 15, layout, True) == 65536 + (4 << 20)
    assert room_for([10] * 14 + [50_000_000], layout, False) > 50_000_000


class Batched:
    """No Dataset of torch's, and without __getitem__."""

    def __len__(self):
        return 19

    def __getitems__(self, indices):
        return [torch.tensor(index) * 3 for index in indices] * (2 if 7 in indices and len(indices) == 1 else 1)


class Both(torch.utils.data.Dataset):
    def __len__(self):
        return 19

    def __getitem__(self, index):
        raise NotImplementedError

    def __getitems__(self, indices):
        return [(index, f"text {index}") for index in indices]


def test_getitems_gives_the_samples_where_there_is_one():
    for workers in (0, 1) if FULL else (0,):
        with penstock.DataLoader(Both(), 4, num_workers=workers) as loader:
            assert [list(texts) for _, texts in loader] == [[f"text {i}" for i in range(at, min(at + 4, 19))] for at in range(0, 19, 4)]
    with penstock.DataLoader(Batched(), 4, sampler=[2, 3, 5]) as loader:
        assert [batch.tolist() for batch in loader] == [[6, 9, 15]]
    with penstock.DataLoader(Batched(), 4) as loader:
        raises(penstock.DatasetError, lambda: list(loader), "Batched[7]", "__getitems__([7]) gave 2 samples")


def test_a_dict_of_samples_is_a_data_set():
    samples = {index: (torch.full((2,), index), f"text {index}") for index in range(20)}
    for workers in (0, 1):
        same_as_torchs(samples, workers)
    with penstock.DataLoader({1: 2, 2: 3}) as loader:
        raises(KeyError, lambda: list(loader), "dict[0]")
    raises(penstock.ConfigError, lambda: penstock.DataLoader({"first": 1}), "first")


def test_epochs_without_a_batch():
    few = [(torch.tensor(index), f"text {index}") for index in range(3)]
    order = torch.utils.data.DistributedSampler([], 2, 1)
    for dataset, options in (([], {}), (few, {"drop_last": True}), (few, {"shuffle": True, "drop_last": True}), ([], {"sampler": order}),
                             (few, {"sampler": []}), (few, {"sampler": [2], "drop_last": True}), ([], {"num_workers": 1}),
                             (few, {"batch_sampler": penstock.BatchSampler([], 4, False)}),
                             (few, {"num_replicas": 2, "rank": 1, "drop_last": True, "ranks_per_replica": 2}), (few, {"drop_last": True, "collate_fn": list})):
        size = {} if "batch_sampler" in options else {"batch_size": 4}
        with penstock.DataLoader(dataset, **size, **options) as loader:
            assert len(loader) == len(loader.batch_sampler) == 0 and list(loader) == list(loader.batch_sampler) == [], options
            assert loader.num_samples == 0 and loader.dataset is dataset and loader.epoch == 1
            assert loader.batch_size == 4 and "0 batches" in repr(loader) and loader.stats()["batches"] == 0
            state = loader.state_dict()
            loader.load_state_dict(state)
            assert list(loader) == [] and loader.state_dict()["epoch"] == 2, options
    raises(penstock.DatasetError, lambda: penstock.DataLoader([], 4, shuffle=True), "list is empty")  # torch: a ValueError
    with penstock.DataLoader([], 4, sampler=[0]) as loader:
        raises(penstock.DatasetError, lambda: list(loader), "index 0", "empty")
    with penstock.DataLoader(few, 2) as loader:
        raises(penstock.ConfigError, lambda: loader.load_state_dict(state))
        state = loader.state_dict()
    with penstock.DataLoader([], 2) as loader:
        raises(penstock.ConfigError, lambda: loader.load_state_dict(state), "no batch now")


def test_a_data_set_may_become_empty_and_be_filled_again():
    samples = []
    with penstock.DataLoader(samples, 2, drop_last=True) as loader:
        for count in (0, 1, 5, 4, 1, 0, 2):
            samples[:] = [(index, f"text {index}") for index in range(count)]
            assert [batch[0].tolist() for batch in loader] == [[at, at + 1] for at in range(0, count - 1, 2)], count
            assert len(loader) == count // 2
    samples.clear()
    with penstock.DataLoader(samples, 4, sampler=Order(samples), drop_last=True, seed=7) as loader:
        assert list(loader) == []
        samples[:] = range(6)
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3]] and len(loader) == 1 and loader._seed == 7


class OneHuge(torch.utils.data.Dataset):
    """The second sample has 20 MB, in each of its parts; others have ten bytes."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        size = 10 if index != 1 else 20_000_000
        return numpy.full(size, index, numpy.uint8), "x" * size, bytes(size)


def test_one_huge_sample_among_the_first_takes_no_room_in_the_others():
    # Chunk buffers for parts of 50 MB each would not fit into loader.memory_gb.
    with penstock.DataLoader(OneHuge(), 16, collate_fn=list) as loader:
        assert json.loads(loader._given.job)["limits"]["max_field_bytes"] < 1 << 17
        samples = [sample for batch in loader for sample in batch]
    assert [len(part) for part in samples[1]] == [20_000_000] * 3
    assert all(len(set(map(len, sample))) == 1 for sample in samples) and len(samples) == 40


def test_values_are_of_torchs_types():
    class Mixed(Numbered):
        def __getitem__(self, index):
            return torch.ones(2), f"text {index}", numpy.int64(index), {"text": f"{index}"}

    with penstock.DataLoader(Mixed(), 4) as ours:
        mine, wanted = next(iter(ours)), next(iter(torch.utils.data.DataLoader(Mixed(), 4)))
    assert type(mine[1]) is type(wanted[1]) is tuple and mine[1] == wanted[1]
    assert type(mine[3]["text"]) is type(wanted[3]["text"]) is list and torch.equal(mine[2], wanted[2])
    with penstock.DataLoader(Mixed(), 4, collate_fn=list) as ours:
        assert {next(iter(ours))[2][2]: "hashable"} == {2: "hashable"}


def started(number):
    os.environ["STARTED"] = str(10 + number)
    os.environ["SEEDS"] = f"{torch.initial_seed()} {get_worker_info().seed} {random.random()} {numpy.random.random()}"


class Seeds(torch.utils.data.Dataset):
    """What worker_init_fn found."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.01)  # for both workers to have some
        return (get_worker_info().id, os.environ["SEEDS"]) if get_worker_info() else (-1, "")


def slow_start(number):
    time.sleep(1.5)


def test_a_timeout_is_for_batches_and_not_for_the_start_of_workers():
    begun = time.monotonic()
    penstock.DataLoader(Numbered(), 3, num_workers=1, worker_init_fn=slow_start, timeout=1).close()
    assert time.monotonic() - begun > 1.5


class Nested(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.nested.nested_tensor([torch.ones(index + 1), torch.zeros(2)])


class Rare8(Nested):
    def __getitem__(self, index):
        return torch.full((3,), index).to(torch.float8_e4m3fn)


def test_tensors_that_numpy_does_not_know():
    if not hasattr(torch, "float8_e4m3fn"):  # torch 1.13
        return
    for workers in (0, 1):
        with penstock.DataLoader(Nested(), 2, num_workers=workers, collate_fn=list) as loader:
            assert [[len(one.unbind()[0]) for one in batch] for batch in loader] == [[1, 2], [3, 4], [5, 6]]
        with penstock.DataLoader(Rare8(), 6, num_workers=workers) as loader:
            batch, = loader
            assert batch.dtype == torch.float8_e4m3fn and batch.float()[:, 0].tolist() == list(range(6))


class State(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        info = get_worker_info()
        return torch.tensor(1.5), torch.is_grad_enabled(), info.id < info.num_workers


def test_workers_have_torchs_state():
    before = torch.get_default_dtype()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")  # that none of the samples that are looked at can be made
        torch.set_default_dtype(torch.float64)
        try:
            (numbers, grads, known), = penstock.DataLoader(State(), 8, num_workers=1)
        finally:
            torch.set_default_dtype(before)
    assert numbers.dtype == torch.float64 and not grads.any() and known.all() and get_worker_info() is None


def test_workers_know_their_numbers():
    with penstock.DataLoader(Numbered(), 3, num_workers=2, worker_init_fn=started) as loader:
        _, ids, counts, said = map(torch.cat, zip(*loader))
    assert set(ids.tolist()) <= {0, 1} and set(counts.tolist()) == {2} and said.tolist() == [10 + one for one in ids.tolist()]
    with penstock.DataLoader(Numbered(), 3) as loader:
        assert {tuple(row) for batch in loader for row in zip(*(one.tolist() for one in batch[1:]))} == {(-1, -1, -1)}
    found = {}
    for seed in (3, 3, 40):
        with penstock.DataLoader(Seeds(), 8, num_workers=2, worker_init_fn=started, seed=seed) as loader:
            for ids, texts in loader:
                for worker, text in zip(ids.tolist(), texts):
                    assert found.setdefault((seed, worker), text) == text
    assert len(found) >= 3 and len(set(found.values())) == len(found)
    for (seed, worker), text in found.items():
        assert text.split()[:2] == [str(seed + worker)] * 2


class Listing(torch.utils.data.Dataset):
    """As ImageNet's: a long list of paths, which no compression makes short."""

    def __init__(self):
        draw = random.Random(3)
        self.samples = [("%032x" % draw.getrandbits(128), number) for number in range(120_000)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def test_a_large_data_set_reaches_the_workers():
    dataset = Listing()
    with penstock.DataLoader(dataset, 50, num_workers=2, sampler=[0, 119_999, 60_000]) as loader:
        ((names, numbers),) = list(loader)
        state = loader.state_dict()
        assert list(names) == [dataset.samples[number][0] for number in (0, 119_999, 60_000)] and numbers.tolist() == [0, 119_999, 60_000]
    assert len(str(state)) < 100_000
    with penstock.DataLoader(Listing(), 50, num_workers=1, sampler=[0, 119_999, 60_000]) as loader:
        loader.load_state_dict(state)


def test_resuming():
    for workers in (0, 2) if FULL else (0,):
        with penstock.DataLoader(Drawing(), 4, True, num_workers=workers, seed=2) as whole:
            wanted = digest(whole)
        with penstock.DataLoader(Drawing(), 4, True, num_workers=workers, seed=2) as first:
            steps = iter(first)
            got = digest([next(steps), next(steps)])
            state = first.state_dict()
        with penstock.DataLoader(Drawing(), 4, True, num_workers=1 if workers == 0 else 0, seed=2) as second:
            second.load_state_dict(state)
            assert got + digest(second) == wanted


def test_resuming_where_texts_have_another_length():
    def loader(root, **options):
        return penstock.DataLoader([(torch.tensor(index), f"{root}/{index}.jpg") for index in range(12)], 4, **options)
    with loader("/a") as first:
        next(iter(first))
        state = first.state_dict()
    with loader("/another/machine") as second:
        second.load_state_dict(state)
        assert [texts[0] for _, texts in second] == ["/another/machine/4.jpg", "/another/machine/8.jpg"]
    with loader("/a", limits__max_field_bytes=70_000) as named:  # is the program's to keep
        raises(penstock.ConfigError, lambda: named.load_state_dict(state), "limits.max_field_bytes")


def negative(picture):
    assert isinstance(picture, Image.Image) and picture.size == (32, 32)
    return Image.eval(picture, lambda value: 255 - value)


def test_the_first_steps_are_the_loaders():
    from torch.utils.data import Subset
    from torchvision import transforms as V
    from torchvision.datasets import ImageFolder
    first = [V.RandomResizedCrop(32), V.RandomHorizontalFlip()]
    options = dict(batch_size=16, shuffle=True, seed=4)
    for rows in (range(80), range(20, 60)) if FULL else (range(20, 60),):
        with penstock.DataLoader(Subset(ImageFolder(TRAIN, V.Compose([*first, V.PILToTensor()])), rows), **options) as native:
            wanted = [(255 - images, labels.clone()) for images, labels in native]
        for workers in (0, 1):
            with penstock.DataLoader(Subset(ImageFolder(TRAIN, V.Compose([*first, negative, V.PILToTensor()])), rows),
                                     num_workers=workers, **options) as loader:
                got = [(images.clone(), labels.clone()) for images, labels in loader]
            assert len(got) == len(wanted) > 1
            for (images, labels), (others, numbers) in zip(got, wanted):
                assert torch.equal(images, others) and torch.equal(labels, numbers)
            said = penstock.describe_transforms(loader, file=io.StringIO())
            where = "runs: Python worker" if workers else "runs: this process, in Python"
            assert said.count(f"{where}, by penstock") == 2 and said.count(where) == 4, said
            assert "or this process" not in said, said
    # Without a size at its end nothing of it is penstock's.
    with penstock.DataLoader(ImageFolder(TRAIN, V.Compose([V.Resize(40), Image.Image.copy, V.CenterCrop(32), V.PILToTensor()])), 16) as loader:
        said = penstock.describe_transforms(loader, file=io.StringIO())
        assert said.count("runs: this process, in Python") == 4 and "by penstock" not in said, said


class Pictures(torch.utils.data.Dataset):
    """One picture in each of the ways that there are."""

    def __init__(self, as_dict=False):
        self.as_dict = as_dict

    def __len__(self):
        return 6

    def __getitem__(self, index):
        pixels = numpy.random.default_rng(3).integers(0, 256, (40, 50, 3), dtype=numpy.uint8)
        picture, file = Image.fromarray(pixels), io.BytesIO()
        picture.save(file, "PNG")
        image = (picture, file.getvalue(), pixels)[index % 3]
        return {"image": image, "number": index} if self.as_dict else (image, index)


def test_steps_around_one_that_cannot_be_translated():
    from torchvision import transforms as V

    from penstock import transforms as T
    steps = [V.Resize((32, 32)), negative, V.CenterCrop(16), V.PILToTensor()]
    wanted = V.Compose(steps)(Pictures()[0][0])
    for transform, workers in ((steps, 0), (T.Compose(steps), 1), (V.Compose(steps), 0), ([steps[0], V.Compose(steps[1:])], 0)):
        with penstock.DataLoader(Pictures(), 6, transform=transform, num_workers=workers) as loader:
            (images, numbers), = loader
        assert numbers.tolist() == list(range(6)) and all(torch.equal(one, wanted) for one in images), transform
    with penstock.DataLoader(Pictures(as_dict=True), 6, transform=steps) as loader:
        batch, = loader
        assert batch["number"].tolist() == list(range(6)) and all(torch.equal(one, wanted) for one in batch["image"])
    # Arrays: the first step makes pictures of them itself, or is a function that takes them as they are.
    arrays = [(numpy.asarray(Pictures()[0][0]), number) for number in range(6)]
    for transform in ([V.ToPILImage(), *steps], V.Compose([V.ToPILImage(), *steps]), steps):
        with penstock.DataLoader(arrays, 6, transform=transform) as loader:
            assert all(torch.equal(one, wanted) for one in next(iter(loader))[0]), transform
    with penstock.DataLoader(arrays, 6, transform=torch.from_numpy) as loader:
        assert next(iter(loader))[0].shape == (6, *arrays[0][0].shape)
    # Pictures that penstock could read, whose first steps do not end in one size.
    several = [V.Resize(40), Image.Image.copy, V.CenterCrop(32), V.PILToTensor()]
    with penstock.DataLoader(penstock.ImageFolder(TRAIN), 16, transform=several) as loader:
        assert next(iter(loader))[0].shape == (16, 3, 32, 32)
    raises(penstock.UsageError, lambda: penstock.DataLoader(Pictures(), 6, transform=[T.Resize((32, 32)), negative]), "Resize(size=[32, 32]",
           "negative()")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="none of the samples that were looked at")
        with penstock.DataLoader([torch.ones(3, 4)] * 4, 4, transform=[negative]) as loader:
            raises(penstock.DatasetError, lambda: list(loader), "__getitem__ returned Tensor: expected a dict of fields or a tuple")


def test_a_data_set_that_makes_its_samples_has_no_steps_to_describe():
    for dataset in (Slow(), []):
        with penstock.DataLoader(dataset, 4) as loader:
            file = io.StringIO()
            assert penstock.describe_transforms(loader, file=file) + "\n" == file.getvalue()
            assert "samples are made in Python" in file.getvalue() and "CenterCrop" not in file.getvalue()


class Locked:
    """No worker process can have it."""

    def __init__(self):
        self.lock = threading.Lock()

    def __repr__(self):
        return "Locked()"

    def __call__(self, picture):
        return picture


def test_a_transform_that_cannot_be_pickled_is_named():
    from torchvision import transforms as V
    from torchvision.datasets import ImageFolder
    whole = ImageFolder(TRAIN, V.Compose([V.Resize((32, 32)), Locked(), V.PILToTensor()]))
    none_first = ImageFolder(TRAIN, V.Compose([V.Compose([Locked()]), V.Resize((32, 32)), V.PILToTensor()]))
    for dataset, words in ((whole, "the transform Locked() of ImageFolder cannot be pickled"), (none_first, "Locked()")):
        try:
            penstock.DataLoader(dataset, 16, num_workers=1)
        except penstock.UnpicklableDataset as error:
            text = str(error)
        assert words in text and "num_workers=0" in text and "Begun" not in text and "Transformed" not in text, text


def test_collate_fn_of_pictures_that_loaders_make():
    from penstock import transforms as T
    steps = [T.Resize(40), T.CenterCrop(32), T.ToDtype("float32", scale=True)]
    options = dict(transform=steps, seed=1, tail="torch")
    with penstock.DataLoader(penstock.ImageFolder(TRAIN), 16, **options) as plain, \
            penstock.DataLoader(penstock.ImageFolder(TRAIN), 16, collate_fn=default_collate, **options) as collated, \
            penstock.DataLoader(penstock.ImageFolder(TRAIN), 16, collate_fn=list, batch="dict", **options) as rows:
        compared = 0
        for (images, labels), (others, numbers), samples in zip(plain, collated, rows):
            assert torch.equal(images, others) and torch.equal(labels, numbers)
            assert [int(one["label"]) for one in samples] == labels.tolist() and torch.equal(samples[3]["image"], images[3])
            compared += 1
        assert compared == 5
        assert plain.stats()["pixel_hash"] == collated.stats()["pixel_hash"]


def test_pictures_are_images_to_v2s_transforms():
    try:
        from torchvision import tv_tensors
        from torchvision.transforms import v2
    except ImportError:  # torchvision 0.14
        return
    from torchvision.datasets import ImageFolder
    for steps, kind in (([v2.ToImage()], tv_tensors.Image), ([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)], tv_tensors.Image),
                        ([v2.ToImage(), v2.ToPureTensor()], torch.Tensor), ([v2.PILToTensor()], torch.Tensor)):
        dataset = ImageFolder(TRAIN, v2.Compose([v2.Resize((20, 20)), *steps]))
        for loader in (torch.utils.data.DataLoader(dataset, 8, collate_fn=list), penstock.DataLoader(dataset, 8, collate_fn=list)):
            assert {type(picture) for picture, _ in next(iter(loader))} == {kind}, (loader, steps)


if __name__ == "__main__":
    with one_process_that_imports():
        run_tests(globals())
