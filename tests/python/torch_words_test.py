"""The words of torch's DataLoader: its arguments in its order, its samplers, its seeds."""

import collections
import inspect
import itertools
import json
import os
import sys
import threading
import warnings
from unittest import mock

import numpy
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler, SequentialSampler, Subset, SubsetRandomSampler, WeightedRandomSampler
from torchvision import transforms as V
from torchvision.datasets import ImageFolder

import penstock
from jobs import run_tests
from photos import JOB, TRAIN, raises

STEPS = V.Compose([V.Resize(40), V.CenterCrop(32), V.ToTensor()])


def folder():
    return ImageFolder(TRAIN, STEPS)


def order(loader):
    return [int(index) for batch in loader for index in batch.indices]


def test_the_arguments_are_torchs():
    def names(function):
        return [name for name, one in inspect.signature(function).parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    theirs = names(torch.utils.data.DataLoader.__init__)
    mine = names(penstock.DataLoader.__init__)
    positional = mine[:mine.index("generator") + 1]
    assert positional == theirs[:len(positional)] and len(positional) == 14, (positional, theirs)
    every = set(inspect.signature(penstock.DataLoader.__init__).parameters)
    missing = set(inspect.signature(torch.utils.data.DataLoader.__init__).parameters) - every
    assert not missing, missing


def test_the_table_of_arguments_is_that_of_the_signature():
    sys.path.append(os.path.join(os.environ["PENSTOCK_SOURCE"], "bindings", "python"))
    import torch_table
    with open(os.path.join(os.environ["PENSTOCK_SOURCE"], "docs", "guides", "from_torch.md")) as file:
        said = file.read().partition("<!-- table -->\n")[2].partition("<!-- end of table -->")[0]
    newer = "in_order" in inspect.signature(torch.utils.data.DataLoader.__init__).parameters
    assert newer or said == torch_table.table(), "write it anew: python3 -P bindings/python/torch_table.py"
    assert said.count("\n| `") >= 16


def test_a_loader_of_few_words():
    with penstock.DataLoader(folder(), 32, True) as loader:
        assert (loader.batch_size, len(loader), loader.drop_last, loader.num_replicas) == (32, 3, False, 1)
        assert sorted(order(loader)) == list(range(80))
        sizes = [len(labels) for _, labels in loader]
        assert sizes == [32, 32, 16] and loader.num_samples == 80
    with penstock.DataLoader(folder()) as loader:
        assert loader.batch_size == 1 and len(loader) == 80 and order(loader) == list(range(80))
    with penstock.DataLoader(folder(), 32, num_workers=3, prefetch_factor=2, timeout=30, persistent_workers=True) as loader:
        assert loader.num_workers == 3 and loader.timeout == 30 and loader.persistent_workers
    with penstock.DataLoader(JOB, split="val", num_workers=1, prefetch_factor=2) as loader:
        assert loader.num_workers == 1 and len(list(loader)) == 2


def test_what_has_no_meaning_is_told_once():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            penstock.DataLoader(folder(), 16, multiprocessing_context="spawn").close()
    assert len([one for one in said if "multiprocessing_context" in str(one.message)]) == 1
    for name, value in (("num_workers", -1), ("prefetch_factor", 0), ("timeout", -1)):
        raises(penstock.UsageError, lambda: penstock.DataLoader(folder(), 16, **{name: value}), name)


def test_a_distributed_sampler_is_made_by_the_library():
    for shuffle in (False, True):
        for drop_last in (False, True):
            for rank in range(3):
                sampler = DistributedSampler(folder(), 3, rank, shuffle=shuffle, seed=4, drop_last=drop_last)
                with penstock.DataLoader(folder(), 5, sampler=sampler) as loader:
                    assert loader.sampler is sampler and (loader.num_replicas, loader.rank) == (3, rank)
                    assert "order" not in loader.state_dict()  # a program's own
                    assert order(loader) == list(sampler) and len(loader) == -(-len(sampler) // 5)
                    sampler.set_epoch(7)
                    assert order(loader) == list(sampler) and loader.state_dict()["epoch"] == 8
                    assert (loader.dataset_size, loader.num_samples) == (80, len(sampler))
    batches = BatchSampler(DistributedSampler(folder(), 2, 1, seed=4), 6, drop_last=True)
    with penstock.DataLoader(folder(), batch_sampler=batches) as loader:
        assert loader.batch_sampler is batches and loader.sampler is batches.sampler and len(loader) == len(batches)
        batches.sampler.set_epoch(2)
        assert order(loader) == [index for batch in batches for index in batch]
    raises(penstock.UsageError, lambda: penstock.DataLoader(folder(), 5, sampler=DistributedSampler(folder(), 2, 0, seed=4), seed=5),
           "seed=5", "seed=4")


def test_a_state_goes_on_with_another_number_of_ranks():
    def loaders(ranks):
        return [penstock.DataLoader(folder(), 8 // ranks, sampler=DistributedSampler(folder(), ranks, rank, seed=4))
                for rank in range(ranks)]
    (one,) = loaders(1)
    with one:
        steps = iter(one)
        for _ in range(3):
            next(steps)
        state = one.state_dict()
        rest = [sorted(batch.indices.tolist()) for batch in steps]
    two = loaders(2)
    for loader in two:
        loader.load_state_dict(state)
    assert [sorted(a.indices.tolist() + b.indices.tolist()) for a, b in zip(*two)] == rest
    for loader in two:
        loader.close()


def test_a_loaders_batch_sampler_is_of_the_data_set_that_was_given():
    """Of a Subset that loaders read its own numbers, and after a DistributedSampler's set_epoch, as from torch."""
    some = Subset(folder(), list(range(70, 20, -1)))
    for options in (dict(shuffle=True), dict(sampler=[4, 2, 30]), dict(drop_last=True)):
        with penstock.DataLoader(some, 8, **options) as loader:
            wanted = list(loader.batch_sampler)
            assert [[some.indices[place] for place in batch] for batch in wanted] == [batch.indices.tolist() for batch in loader]
    sampler = DistributedSampler(folder(), 3, 1, seed=4)
    theirs = torch.utils.data.DataLoader(folder(), 8, sampler=sampler)
    with penstock.DataLoader(folder(), 8, sampler=sampler) as loader:
        for epoch in (0, 5):
            sampler.set_epoch(epoch)
            assert list(loader.batch_sampler) == list(theirs.batch_sampler) == [batch.indices.tolist() for batch in loader]
    with penstock.DataLoader(Subset(folder(), []), 8) as loader:
        assert list(loader) == list(loader.batch_sampler) == []
    with penstock.DataLoader(folder(), 81, drop_last=True) as loader:
        assert list(loader) == [] and len(loader) == 0 and loader.dataset_size == 80


def test_other_samplers():
    with penstock.DataLoader(folder(), 16, sampler=SequentialSampler(folder())) as loader:
        assert order(loader) == list(range(80)) and "order" not in loader.state_dict()
    with penstock.DataLoader(folder(), 16, sampler=RandomSampler(folder()), seed=3) as loader, \
            penstock.DataLoader(folder(), 16, True, seed=3) as shuffled:
        assert "order" not in loader.state_dict() and order(loader) == order(shuffled)
    for sampler in (RandomSampler(folder(), replacement=True), SubsetRandomSampler(range(20)), [3, 1, 2]):
        with penstock.DataLoader(folder(), 16, sampler=sampler) as loader:
            assert "order" in loader.state_dict() and len(order(loader)) == len(sampler)


class Permuted(Sampler):
    """Draws when iter() is called, not when the first index is asked for."""

    def __init__(self):
        pass

    def __len__(self):
        return 80

    def __iter__(self):
        return iter(torch.randperm(80).tolist())


class PermutedBatches(Permuted):
    batch_size = 16

    def __len__(self):
        return 5

    def __iter__(self):
        return iter(torch.randperm(80).reshape(5, 16).tolist())


def test_a_programs_samplers_draw_as_under_torchs_loader():
    def samplers():
        yield RandomSampler(folder(), replacement=True)
        yield SubsetRandomSampler(range(5, 60))
        yield WeightedRandomSampler(torch.arange(80.0), 40)
        yield BatchSampler(SubsetRandomSampler(range(30)), 8, False)
        yield Permuted()
        yield PermutedBatches()
    def drawn(make, sampler, **options):
        words = dict(batch_sampler=sampler, batch_size=1) if isinstance(sampler, (BatchSampler, PermutedBatches)) else dict(batch_size=16, sampler=sampler)
        loader = make(Numbers(), **words, **options)
        torch.manual_seed(5)
        return [torch.cat(list(loader)).tolist() for _ in range(2)] + torch.rand(2).tolist()
    for sampler in samplers():
        assert drawn(penstock.DataLoader, sampler) == drawn(torch.utils.data.DataLoader, sampler)
        mine, theirs = (drawn(make, sampler, generator=torch.Generator().manual_seed(4))
                        for make in (penstock.DataLoader, torch.utils.data.DataLoader))
        assert mine == theirs


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        return index


def test_a_sampler_without_an_end_is_refused():
    with penstock.DataLoader(Numbers(), 16, sampler=itertools.cycle(range(80))) as loader:
        raises(penstock.UsageError, lambda: iter(loader), "more than 1,001,600 indices for a data set of 80 samples", "islice")
    with penstock.DataLoader(Numbers(), 16, sampler=list(itertools.islice(itertools.cycle(range(80)), 5000))) as loader:
        assert sum(map(len, loader)) == 5000
    with penstock.DataLoader(JOB, split="train", tail="torch", sampler=[0] * 1_000_100) as loader:  # of a job, too, by its data set's size
        iter(loader)


def test_what_programs_read_of_a_loader():
    class Endless:
        def __iter__(self):
            return iter([3, 1, 2, 0])
    with penstock.DataLoader(Numbers(), 2, sampler=Endless()) as loader:
        raises(TypeError, lambda: len(loader), "no len()")  # as tqdm expects it
        assert [batch.tolist() for batch in loader] == [[3, 1], [2, 0]] and len(loader) == 2
    with penstock.DataLoader([{"a": torch.ones(2), "b": (torch.ones(1), "x")}] * 4, 2) as loader:
        found = torch.utils._pytree.tree_map(lambda one: one + 1 if isinstance(one, torch.Tensor) else one, next(iter(loader)))
        assert found["a"].tolist() == [[2, 2], [2, 2]] and found["b"][0].tolist() == [[2], [2]]
        assert loader.collate_fn([{"a": 1}, {"a": 2}])["a"].tolist() == [1, 2] and loader.pin_memory_device == ""
    for batches in (torch.arange(6).reshape(3, 2), [torch.tensor([1, 2]), torch.tensor([5])]):
        with penstock.DataLoader(Numbers(), batch_sampler=batches) as loader:
            assert [batch.tolist() for batch in loader] == [one.tolist() for one in batches]
    for workers in (0, 3):
        with penstock.DataLoader(folder(), 16, num_workers=workers) as loader:
            assert loader.num_workers == workers
    assert penstock.DataLoader[int] is not None


def test_wrong_words_are_named():
    for words, said in ((dict(generator=5), "generator=5"), (dict(batch_size="4"), "batch_size='4'"),
                        (dict(batch_size=0), "batch_size=0"), (dict(batch_size=True), "batch_size=True"),
                        (dict(num_workers=1, worker_init_fn=threading.Lock().acquire), "worker_init_fn")):
        raises(penstock.UsageError, lambda: penstock.DataLoader(Numbers(), **words), said)
    with penstock.DataLoader(Numbers(), 16, 1, drop_last=0) as loader:
        assert sorted(one for batch in loader for one in batch.tolist()) == list(range(80))


def test_a_batch_is_placed_behind_the_collate_fn():
    """The device "meta" stands for one that this machine lacks."""
    def collate(samples):
        assert all(one.device.type == "cpu" for one, *_ in samples)
        Pair = collections.namedtuple("Pair", "images labels")
        return Pair({"all": torch.stack([one for one, *_ in samples])}, [torch.tensor([label for _, label in samples]), "a text", None])
    for dataset in (folder(), [(torch.ones(3) * index, index) for index in range(20)]):
        with penstock.DataLoader(dataset, 4, collate_fn=collate, device="meta") as loader:
            images, (labels, *rest) = next(iter(loader))
            assert images["all"].device.type == labels.device.type == "meta" and labels.shape == (4,) and rest == ["a text", None]
    with penstock.DataLoader([(torch.ones(3), "x")] * 8, 4, device="meta") as loader:
        numbers, texts = next(iter(loader))
        assert numbers.device.type == "meta" and list(texts) == ["x"] * 4
    for words in (dict(dtype="float16"), dict(channels_last=True)):
        raises(penstock.UsageError, lambda: penstock.DataLoader(Numbers(), 4, **words), next(iter(words)), "Numbers")


def test_a_programs_batches_keep_the_place_that_was_said():
    batches = penstock.BatchSampler(penstock.SequentialSampler(8), 4, drop_last=False)
    for dataset, options in ((JOB, {"split": "train"}), (folder(), {})):
        with penstock.DataLoader(dataset, batch_sampler=batches, num_replicas=2, rank=1, **options) as loader:
            assert (loader.num_replicas, loader.rank, len(loader)) == (2, 1, 2)
    # A job's name is no data set, though it has a length.
    batches = BatchSampler(SequentialSampler(JOB), 4, drop_last=False)
    with penstock.DataLoader(JOB, split="train", batch_sampler=batches) as loader:
        assert "order" in loader.state_dict() and order(loader) == list(range(len(JOB)))


def test_seeds_come_from_torch():
    def of(**options):
        with penstock.DataLoader(folder(), 16, True, **options) as loader:
            return order(loader)
    torch.manual_seed(11)
    first, second = of(), of()
    assert first != second  # as torch's, which draw, too
    torch.manual_seed(11)
    assert (of(), of()) == (first, second)
    torch.manual_seed(12)
    assert of() != first
    assert of(seed=11) == of(generator=torch.Generator().manual_seed(11)) == of(seed=11)
    def seed_of(**options):
        with penstock.DataLoader(folder(), **options) as loader:
            return json.loads(loader.state_dict()["spec"])["seed"]
    for options in (dict(batch_size=16, sampler=[3, 1, 2] * 16), dict(batch_sampler=BatchSampler(range(32), 8, True))):
        torch.manual_seed(13)
        assert seed_of(**options) == 13
        assert seed_of(**options, generator=torch.Generator().manual_seed(7)) == 7
    shares = []
    for rank in range(2):
        torch.manual_seed(20 + rank)  # as processes that nobody seeds
        shares.append(of(num_replicas=2, rank=rank))
    assert sorted(shares[0] + shares[1]) == list(range(80)) and of(num_replicas=1, rank=0) == of(seed=0)
    raises(penstock.UsageError, lambda: of(seed=3, generator=torch.Generator()), "generator", "seed")


class OwnSampler(DistributedSampler):
    """A class that the library does not know."""


class Secretive(OwnSampler):
    """The epoch that it has is nobody's business, or NumPy's."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._epoch = self.epoch
        del self.epoch

    def set_epoch(self, epoch):
        self._epoch = numpy.int64(epoch)

    def __iter__(self):
        self.epoch = int(self._epoch)
        try:
            return super().__iter__()
        finally:
            del self.epoch


def test_an_own_samplers_set_epoch_is_followed():
    def order_of(epoch):
        sampler = OwnSampler(folder(), 2, 1, seed=4)
        sampler.set_epoch(epoch)
        return list(sampler)
    for given in (lambda one: dict(batch_size=16, sampler=one), lambda one: dict(batch_sampler=BatchSampler(one, 16, False))):
        for first, kind in ((None, OwnSampler), (0, OwnSampler), (5, OwnSampler), (None, Secretive), (5, Secretive)):
            sampler = kind(folder(), 2, 1, seed=4)
            with penstock.DataLoader(folder(), **given(sampler)) as loader:
                if first is None:  # nothing said: each iteration is the next epoch
                    assert [order(loader) for _ in range(3)] == [order_of(epoch) for epoch in range(3)]
                for epoch in (first or 7, 8, 3, 2):
                    sampler.set_epoch(epoch)
                    assert order(loader) == order_of(epoch), epoch
                assert order(loader) == order_of(2), "the sampler says the same as before"
                loader.set_epoch(6)
                assert [order(loader) for _ in range(2)] == [order_of(6), order_of(7)]


def test_what_changes_behind_the_loader_is_said():
    generator = torch.Generator().manual_seed(3)
    with warnings.catch_warnings(record=True) as said, penstock.DataLoader(folder(), 16, True, generator=generator) as loader:
        warnings.simplefilter("always")
        first = order(loader)
        generator.manual_seed(3)
        assert order(loader) != first and not said
        generator.manual_seed(4)
        iter(loader)
        assert "was seeded again" in str(said.pop().message)
        loader.dataset.transform.transforms[0].size = 48
        iter(loader)
        iter(loader)
        assert "has another transform" in str(said.pop().message) and not said
    dataset = folder()
    with warnings.catch_warnings(record=True) as said, penstock.DataLoader(Subset(dataset, range(32)), 16) as loader:
        warnings.simplefilter("always")
        iter(loader)
        assert not said
        dataset.transform = V.Compose([V.CenterCrop(32), V.ToTensor()])
        iter(loader)
        assert "ImageFolder has another transform" in str(said.pop().message)
    with warnings.catch_warnings(), penstock.DataLoader(Numbers(), 16, sampler=DistributedSampler(Numbers(), 2, 0),
                                                        generator=generator.manual_seed(5)) as loader:
        warnings.simplefilter("error")  # that generator seeds no order
        generator.manual_seed(6)
        assert len(list(loader)) == 3


def test_a_batch_may_be_larger_than_the_data_set():
    for size in (1000, 10**7, 2**40):
        with penstock.DataLoader(Numbers(), size) as loader:
            assert [batch.tolist() for batch in loader] == [list(range(80))] and len(loader) == 1 and loader.batch_size == size
            state = loader.state_dict()
            loader.load_state_dict(state)
    with penstock.DataLoader(folder(), 5000, num_workers=1) as loader:
        assert [len(labels) for _, labels in loader] == [80]
    # Padding fills batches up; and a larger batch than a job may have, of a data set that has it, is refused.
    with penstock.DataLoader(folder(), 100, tail="pad") as loader:
        assert [(len(batch[0]), batch.num_valid) for batch in loader] == [(100, 100)]
    with penstock.DataLoader(folder(), 100, mode="eval", tail="pad") as loader:
        assert [(len(batch[0]), batch.num_valid) for batch in loader] == [(100, 80)]
    raises(penstock.ConfigError, lambda: penstock.DataLoader(range(3 << 20), 2 << 20), "batch_size")
    growing = list(range(3))
    with penstock.DataLoader(growing, 8) as loader:
        for length in (3, 30, 2, 0, 9):
            growing[:] = range(length)
            assert torch.cat([torch.zeros(0), *loader]).tolist() == growing and len(loader) == -(-length // 8), length


def test_a_state_brings_its_seed():
    torch.manual_seed(21)
    with penstock.DataLoader(folder(), 16, True) as loader:
        steps = iter(loader)
        next(steps)
        state = loader.state_dict()
        rest = [batch.indices.tolist() for batch in steps]
    torch.manual_seed(22)  # as in another process
    with penstock.DataLoader(folder(), 16, True) as loader:
        loader.load_state_dict(state)
        assert [batch.indices.tolist() for batch in loader] == rest
    with penstock.DataLoader(folder(), 16, True, seed=5) as loader:
        raises(penstock.ConfigError, lambda: loader.load_state_dict(state), "seed")
    torch.manual_seed(22)
    with penstock.DataLoader(folder(), 8, True) as loader:  # one that is refused changes nothing
        before, opened = loader.state_dict(), loader._native
        raises(penstock.ConfigError, lambda: loader.load_state_dict(state), "batch_size")
        assert loader.state_dict() == before and loader._native is opened and not opened.closed
    with penstock.DataLoader(Numbers(), 16, sampler=Permuted()) as loader:
        steps = iter(loader)
        next(steps)
        good = loader.state_dict()
        loader.load_state_dict(good)
        raises(penstock.ConfigError, lambda: loader.load_state_dict({**good, "batch": 4}))
        raises(penstock.ConfigError, lambda: iter(loader), "the sampler gives another order")  # the good one's is compared still


def test_every_rank_gets_everything_unless_it_asks():
    with mock.patch.dict(os.environ, RANK="1", WORLD_SIZE="2"):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with penstock.DataLoader(folder(), 16) as loader:
                assert loader.num_replicas == 1 and order(loader) == list(range(80))
        assert any('num_replicas="auto"' in str(one.message) and one.filename == __file__ for one in said), said
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with penstock.DataLoader(folder(), 16, sampler=SequentialSampler(folder())) as loader:
                assert loader.num_replicas == 1
        assert [one.filename for one in said if 'num_replicas="auto"' in str(one.message)] == [__file__], said
        with penstock.DataLoader(folder(), 16, num_replicas="auto") as loader:
            assert (loader.num_replicas, loader.rank) == (2, 1) and order(loader) == list(range(1, 80, 2))
        with penstock.DataLoader(penstock.ImageFolder(TRAIN, STEPS), 16) as loader:  # not torch's
            assert loader.num_replicas == 2


if __name__ == "__main__":
    run_tests(globals())
