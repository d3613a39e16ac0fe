"""penstock's samplers against torch's, index for index, also inside torch's DataLoader; and orders that come from a
file or from the program's own sampler, through penstock.DataLoader."""

import json
import os
import random
import shutil
import sys
import tempfile
import time

try:
    import numpy
    import torch
    from torch.utils import data as torch_data
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

import penstock
from jobs import FULL, run_job, run_tests, write_job
from leftovers import no_leftovers
from small_photos import SMALL

seed = int(os.environ.get("PENSTOCK_TEST_SEED", time.time_ns() % 2**32))
print(f"PENSTOCK_TEST_SEED={seed}")
rng = random.Random(seed)
work = tempfile.TemporaryDirectory(prefix="samplers_test-")
COUNT = 80  # pictures in train
job = write_job(work.name, SMALL, trainers=1, batch=16)


def generator(value):
    made = torch.Generator()
    made.manual_seed(value)
    return made


def loader(sampler=None, *overrides, split="train", **options):
    words = ["splits.train.tail=torch", "trainer.hold=16", *overrides]
    return penstock.DataLoader(job, split=split, sampler=sampler, overrides=words, **options)


def file_sampler(key, name, more="shuffle: false"):
    return f"splits.train.sampler={{{more}, {key}: {path_of(name)}}}"


def indices_of(batches):
    return [int(index) for batch in batches for index in batch.indices]


def hashes(one):
    split = one.stats()["splits"]["train"]
    return int(split["order_hash"], 16), int(split["pixel_hash"], 16), split["images"]


def raises(kind, what, call):
    try:
        call()
    except kind as error:
        assert what in str(error), str(error)
    else:
        raise AssertionError(f"nothing was raised; expected {what!r}")


def path_of(name):
    return os.path.join(work.name, name)


# ---- the classes -----------------------------------------------------------------------------------------------------
def test_distributed_sampler_is_torchs():
    for _ in range(300):
        replicas = rng.choice([1, 2, 3, 8])
        arguments = dict(num_replicas=replicas, rank=rng.randrange(replicas), shuffle=rng.random() < 0.7,
                         seed=rng.getrandbits(40), drop_last=rng.random() < 0.5)
        dataset = range(rng.randint(1, 300))
        theirs = torch_data.DistributedSampler(dataset, **arguments)
        ours = penstock.DistributedSampler(dataset, **arguments)
        for epoch in (0, 1, rng.randrange(1000)):
            theirs.set_epoch(epoch)
            ours.set_epoch(epoch)
            assert list(ours) == list(theirs) and len(ours) == len(theirs), (len(dataset), arguments, epoch)
        assert (ours.num_samples, ours.total_size, ours.epoch) == (theirs.num_samples, theirs.total_size, theirs.epoch)


def test_random_and_sequential_samplers_are_torchs():
    for _ in range(200):
        size, value, epoch = rng.randint(1, 300), rng.getrandbits(40), rng.randrange(100)
        replacement = rng.random() < 0.5
        count = rng.choice([None, 1, 32, rng.randint(1, 1000)])
        ours = penstock.RandomSampler(range(size), replacement, count, seed=value)
        ours.set_epoch(epoch)
        theirs = torch_data.RandomSampler(range(size), replacement, count, generator(value + epoch))
        assert list(ours) == list(theirs) and len(ours) == len(theirs), (size, replacement, count, value, epoch)
        again = list(ours)
        later = torch_data.RandomSampler(range(size), replacement, count, generator(value + epoch + 1))
        assert again == list(later)  # every iteration is a new epoch
        ours.set_epoch(epoch + 1)
        assert list(ours) == again
    assert list(penstock.SequentialSampler([3, 1, 2])) == [0, 1, 2]
    given = penstock.RandomSampler(range(50), generator=generator(3))
    theirs = torch_data.RandomSampler(range(50), generator=generator(3))
    assert [list(given), list(given)] == [list(theirs), list(theirs)]


def test_weighted_random_sampler_is_torchs():
    for _ in range(60):
        weights = [rng.choice([0.0, 1 / 3, rng.random() * 1e6]) for _ in range(rng.randint(2, 500))] + [1.0]
        value, epoch = rng.getrandbits(40), rng.randrange(100)
        replacement = rng.random() < 0.7
        positive = sum(weight > 0 for weight in weights)
        count = rng.choice([1, rng.randint(1, positive), 700 if replacement else positive])
        ours = penstock.WeightedRandomSampler(weights, count, replacement, seed=value)
        ours.set_epoch(epoch)
        theirs = torch_data.WeightedRandomSampler(weights, count, replacement, generator(value + epoch))
        assert list(ours) == list(theirs) and len(ours) == count, (len(weights), count, replacement)
    assert list(penstock.WeightedRandomSampler(torch.ones(9), 20, seed=1)) == list(
        torch_data.WeightedRandomSampler(torch.ones(9), 20, True, generator(1)))


def test_they_work_in_torchs_data_loader():
    dataset = list(range(100, 153))
    for drop_last in (False, True):
        samplers = [kind.DistributedSampler(dataset, 2, 1, seed=7) for kind in (torch_data, penstock, penstock)]
        for sampler in samplers:
            sampler.set_epoch(3)
        theirs, ours, batched = samplers
        ways = [dict(sampler=theirs, batch_size=8, drop_last=drop_last),
                dict(sampler=ours, batch_size=8, drop_last=drop_last),
                dict(batch_sampler=penstock.BatchSampler(batched, 8, drop_last))]
        right, one, two = ([batch.tolist() for batch in torch_data.DataLoader(dataset, **way)] for way in ways)
        assert right == one == two and len(right[0]) == 8
        assert len(ways[2]["batch_sampler"]) == len(right)


def test_wrong_arguments_are_refused():
    raises(ValueError, "rank=2", lambda: penstock.DistributedSampler(range(9), 2, 2))
    raises(ValueError, "does not know its place", lambda: penstock.DistributedSampler(range(9)))
    raises(ValueError, "num_samples=0", lambda: penstock.RandomSampler(range(9), True, 0))
    raises(ValueError, "batch_size=0", lambda: penstock.BatchSampler(range(9), 0, False))
    raises(ValueError, "without replacement", lambda: penstock.WeightedRandomSampler([1.0, 2.0], 3, False))
    raises(ValueError, "weight 1 is", lambda: list(penstock.WeightedRandomSampler([1.0, -1.0], 3)))
    raises(ValueError, "empty dataset", lambda: list(penstock.RandomSampler([], True, 3)))
    for make in (penstock.SequentialSampler, penstock.RandomSampler):
        raises(ValueError, "NoneType has no len()", lambda: list(make(None)))
    for wrong in ("x", 1.5):
        raises(ValueError, "seed: ", lambda: penstock.RandomSampler(9, seed=wrong))
        raises(ValueError, "seed: ", lambda: penstock.DistributedSampler(9, 2, 0, seed=wrong))
        raises(ValueError, "seed: ", lambda: penstock.WeightedRandomSampler([1.0], 2, seed=wrong))
        raises(ValueError, "replacement=", lambda: penstock.RandomSampler(9, wrong))
    for wrong in ("abc", 3, [[1.0]]):
        raises(ValueError, "weights: ", lambda: penstock.WeightedRandomSampler(wrong, 2))
    raises(ValueError, "a dataset of 1180591620717411303424 samples", lambda: list(penstock.RandomSampler(2**70)))
    raises(ValueError, "sampler=3", lambda: penstock.BatchSampler(3, 2, False))


# ---- a program's own sampler -----------------------------------------------------------------------------------------
class Spiral:
    """No class of torch's or ours: from both ends, turned by the epoch."""

    def __init__(self, count):
        self.count, self.epochs = count, []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        turn = self.epochs[-1]
        for i in range(self.count):
            yield (i // 2 if i % 2 else COUNT - 1 - i // 2) if turn % 2 else i

    def __len__(self):
        return self.count


def test_numpys_integers_are_integers():
    one, two = numpy.int64(1), numpy.int64(2)
    assert list(penstock.DistributedSampler(numpy.int64(10), two, one, shuffle=0)) == [1, 3, 5, 7, 9]
    assert len(penstock.RandomSampler(numpy.int64(10))) == 10 and len(penstock.RandomSampler(10, num_samples=two)) == 2
    assert list(penstock.BatchSampler(range(3), two, False)) == [[0, 1], [2]]
    sampler = penstock.RandomSampler(10)
    sampler.set_epoch(two)
    raises(penstock.UsageError, "1.5 is no integer", lambda: sampler.set_epoch(1.5))


def test_any_sampler_gives_the_order():
    spiral = Spiral(37)
    with loader(spiral) as train:
        assert len(train) == 3 and train.num_samples == 37
        for epoch in range(3):
            batches = list(train)
            assert [len(batch.indices) for batch in batches] == [16, 16, 5]
            spiral.epochs.append(epoch)
            assert indices_of(batches) == list(spiral) and {batch.epoch for batch in batches} == {epoch}
        assert spiral.epochs == [0, 0, 1, 1, 2, 2]
    with loader(Spiral(37), drop_last=True) as train:
        assert len(train) == 2 and train.num_samples == 32 and [len(b.indices) for b in train] == [16, 16]


def test_torchs_samplers_do():
    for sampler in (torch_data.SequentialSampler(range(20)), torch_data.SubsetRandomSampler(range(5, 25)),
                    torch_data.RandomSampler(range(COUNT)), torch_data.WeightedRandomSampler([1.0] * COUNT, 200),
                    torch.arange(30)):
        with loader(sampler) as train:
            torch.manual_seed(1)
            right = [int(index) for index in sampler]
            torch.manual_seed(1)
            assert indices_of(train) == right


def test_the_hashes_are_those_of_the_samplers_built_in():
    sums = []
    for build in (True, False):
        total = [0, 0, 0]
        for rank in range(2):
            sampler = None if build else penstock.DistributedSampler(COUNT, 2, rank, seed=3)
            place = dict(num_replicas=2, rank=rank)
            with loader(sampler, **place) as train:
                for epoch in range(2):
                    list(train)
                total = [(a + b) % 2**128 for a, b in zip(total, hashes(train))]
        sums.append(total)
    assert sums[0] == sums[1] and sums[0][2] == 2 * COUNT


def test_repeated_indices_are_drawn_anew():
    with loader([5, 5, 6, 5]) as train:
        (images, _), = train
    assert not torch.equal(images[0], images[1]) and not torch.equal(images[1], images[3])
    with loader([5, 5, 6, 5]) as again:
        (once_more, _), = again
    assert torch.equal(images, once_more)


def test_a_look_at_the_sampler_is_no_set_epoch():
    for make in (lambda: penstock.RandomSampler(COUNT, seed=1), lambda: penstock.WeightedRandomSampler([1.0] * COUNT, 20, seed=1)):
        with loader(make()) as train:
            got = [indices_of(train)]
            ahead = list(train.sampler)
            got += [indices_of(train) for _ in range(2)]
            assert ahead == got[1]
            train.sampler.set_epoch(7)  # which the loader follows
            got.append(indices_of(train))
        for epoch, indices in zip((0, 1, 2, 7), got):
            alone = make()
            alone.set_epoch(epoch)
            assert indices == list(alone), (epoch, alone)


def test_two_passes_and_an_early_end():
    with loader(penstock.RandomSampler(COUNT, seed=1)) as train:
        first, second = iter(train), iter(train)
        a, b = next(first), next(second)
        assert (a.epoch, b.epoch) == (0, 1) and indices_of([a]) != indices_of([b])
        del first
        rest = indices_of(second)
        sampler = penstock.RandomSampler(COUNT, seed=1)
        sampler.set_epoch(1)
        assert indices_of([b]) + rest == list(sampler)


def test_state_goes_on_in_the_same_order():
    whole = indices_of(loader(penstock.RandomSampler(COUNT, seed=1)))
    with loader(penstock.RandomSampler(COUNT, seed=1)) as train:
        passing = iter(train)
        taken = indices_of([next(passing), next(passing)])
        state = json.loads(json.dumps(train.state_dict()))
        del passing
    with loader(penstock.RandomSampler(COUNT, seed=1)) as train:
        train.load_state_dict(state)
        assert taken + indices_of(train) == whole
        assert indices_of(train) != whole  # the next epoch's


def test_state_is_refused_where_the_order_is_another():
    def saved(sampler, **more):
        with loader(sampler, **more) as train:
            passing = iter(train)
            next(passing)
            return train.state_dict()

    def resume(state, sampler, *overrides, **more):
        with loader(sampler, *overrides, **more) as train:
            train.load_state_dict(state)
            next(iter(train))

    state = saved(penstock.RandomSampler(COUNT, seed=1))
    resume(state, penstock.RandomSampler(COUNT, seed=1))
    raises(penstock.ConfigError, "gives another order for epoch 0",
           lambda: resume(state, penstock.RandomSampler(COUNT, seed=2)))
    raises(penstock.ConfigError, "gave 80 samples", lambda: resume(state, penstock.RandomSampler(COUNT - 1, seed=1)))
    raises(penstock.ConfigError, "sampler.shuffle was false", lambda: resume(state, None))
    raises(penstock.ConfigError, "sampler.program", lambda: resume(state, None, "splits.train.sampler.shuffle=false"))
    raises(penstock.ConfigError, "another order", lambda: resume(saved(torch_data.RandomSampler(range(COUNT))),
                                                                torch_data.RandomSampler(range(COUNT))))
    # Another replica may load what one saved: it cannot compare, and goes on.
    half = saved(penstock.DistributedSampler(COUNT, 2, 0), num_replicas=2, rank=0)
    resume(half, penstock.DistributedSampler(COUNT, 2, 1), num_replicas=2, rank=1)
    raises(penstock.ConfigError, "saved with num_replicas 2", lambda: resume(half, penstock.RandomSampler(COUNT // 2)))


class Buckets:
    """A batch sampler of one's own: pairs of neighbours, in another order each epoch; the last batch alone is short."""
    batch_size = 4

    def __init__(self, sizes=(4, 4, 4, 1)):
        self.sizes, self.epoch = sizes, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.sizes)

    def __iter__(self):
        first = self.epoch
        for size in self.sizes:
            yield range(first, first + size)
            first += size


def test_batch_samplers_as_torch_has_them():
    plain = list(range(3, 20))
    for drop_last in (False, True):
        for kind in (torch_data, penstock):
            batches = kind.BatchSampler(torch_data.SubsetRandomSampler(plain) if kind is torch_data else plain, 5, drop_last)
            with penstock.DataLoader(job, split="train", batch_sampler=batches) as train:
                assert len(train) == len(batches) and train.batch_size == 5
                assert train.num_samples == (15 if drop_last else 17)
                seen = [[int(index) for index in batch.indices] for batch in train]
                assert [len(one) for one in seen] == [5, 5, 5] + ([] if drop_last else [2])
                assert set(sum(seen, [])) <= set(plain)
                assert kind is torch_data or seen == list(batches)
    # torch's, over a sampler with epochs: what torch's own DataLoader gives.
    inner = penstock.DistributedSampler(COUNT, 2, 1, seed=3)
    with penstock.DataLoader(job, split="train", batch_sampler=torch_data.BatchSampler(inner, 8, False), num_replicas=2,
                             rank=1) as train:
        for epoch in range(2):
            seen = [batch.indices.tolist() for batch in train]
            inner.set_epoch(epoch)
            assert seen == list(torch_data.BatchSampler(inner, 8, False))
    with penstock.DataLoader(job, split="train", batch_sampler=Buckets()) as train:
        assert len(train) == 4
        assert [batch.indices.tolist() for batch in train][-1] == [12]
        assert next(iter(train)).indices.tolist() == [1, 2, 3, 4]  # epoch 1
        state = train.state_dict()
        train.load_state_dict(state)
        assert [batch.indices.tolist() for batch in train][0] == [5, 6, 7, 8]
    for wrong, words in ((dict(batch_size=4), "excludes batch_size"), (dict(shuffle=True), "excludes"),
                         (dict(sampler=plain), "excludes"), (dict(drop_last=True), "drop_last")):
        raises(penstock.UsageError, words, lambda: penstock.DataLoader(job, split="train", batch_sampler=Buckets(), **wrong))
    raises(penstock.UsageError, "no batch_size", lambda: penstock.DataLoader(job, split="train", batch_sampler=iter([[1, 2]])))
    with penstock.DataLoader(job, split="train", batch_sampler=[[1, 2], [5, 3], [4]]) as train:
        assert delivered(train) == [[1, 2], [5, 3], [4]]
    for sizes, words in (((4, 2, 4), "a batch of 2 indices (number 1), and its batch_size is 4"),
                         ((4, 5), "a batch of 5 indices (number 1)"), ((4, 0), "a batch of 0 indices")):
        with penstock.DataLoader(job, split="train", batch_sampler=Buckets(sizes)) as train:
            raises(penstock.UsageError, words, lambda: iter(train))


def delivered(train):
    return [batch.indices.tolist() for batch in train]


def test_a_loaders_batch_sampler_gives_what_the_loader_will():
    inner = penstock.RandomSampler(COUNT, seed=3)
    cases = [dict(shuffle=True, tail=tail, drop_last=drop_last, batch_size=batch_size, num_replicas=replicas, rank=replicas - 1)
             for tail, drop_last in (("torch", False), ("torch", True), ("pad", None), ("drop", None))
             for batch_size, replicas in ((16, 1), (7, 3))]
    for options in (*cases, dict(mode="eval", tail="torch", shuffle=False, batch_size=7, num_replicas=3, rank=2),
                    dict(sampler=inner, tail="torch"), dict(sampler=range(3, 50), tail="torch", drop_last=True),
                    dict(overrides=["splits.train.sampler.drop_last=true"], tail="torch", num_replicas=3, rank=0)):
        with penstock.DataLoader(job, split="train", **options) as train:
            for _ in range(2):
                wanted = list(train.batch_sampler)
                assert len(wanted) == len(train.batch_sampler) == len(train) and wanted == list(train.batch_sampler)
                assert sum(wanted, []) == list(train.sampler) or "sampler" in options
                assert delivered(train) == wanted, options
            steps = iter(train)
            first = next(steps).indices.tolist()
            train.load_state_dict(train.state_dict())
            wanted = list(train.batch_sampler)  # a whole epoch, though the loader goes on within it
            assert [first, *delivered(train)] == wanted, options
            assert (train.batch_sampler.batch_size, train.batch_sampler.drop_last) == (train.batch_size, train.drop_last)
    numpy.save(path_of("some.npy"), numpy.arange(5))
    with loader(None, file_sampler("indices", "some.npy")) as train:
        raises(penstock.UsageError, "comes from a file", lambda: list(train.batch_sampler))


class OfOneKind:
    """As torchvision's GroupedBatchSampler: batches of even, and of odd indices; what is left over is dropped."""

    def __init__(self, sampler, batch_size):
        self.sampler = sampler
        self.batch_size = batch_size

    def batches(self):
        for kind in (0, 1):
            some = [index for index in self.sampler if index % 2 == kind]
            yield from (some[at:at + self.batch_size] for at in range(0, len(some) - self.batch_size + 1, self.batch_size))

    def __iter__(self):
        return self.batches()

    def __len__(self):
        return len(list(self.batches()))


def test_a_batch_sampler_may_drop_samples_of_its_own_accord():
    with penstock.DataLoader(job, split="train", batch_sampler=OfOneKind(range(14), 4)) as train:
        assert len(train) == len(list(train)) == 2  # and a sampler of 14 would fill 4
        state = train.state_dict()
        train.load_state_dict(state)
        assert len(list(train)) == 2


def test_what_a_sampler_raises_is_its_own():
    class Failing:
        def __len__(self):
            return 4

        def __iter__(self):
            return iter([None + 1])

    with penstock.DataLoader(job, split="train", sampler=Failing(), tail="torch") as train:
        raises(TypeError, "unsupported operand", lambda: iter(train))


def test_a_sampler_that_cannot_be_is_refused():
    raises(penstock.UsageError, "exclude each other", lambda: loader([1], shuffle=True))
    raises(penstock.UsageError, "gave no index", lambda: list(loader([])))
    raises(penstock.UsageError, "integers", lambda: list(loader(penstock.BatchSampler(range(9), 3, False))))
    raises(penstock.DatasetError, "index 80 at position 2 is outside", lambda: list(loader([1, 2, COUNT])))
    raises(penstock.DatasetError, "index -1 at position 0 is outside", lambda: list(loader([-1])))
    raises(penstock.ConfigError, "no batch is left", lambda: list(loader([1, 2], drop_last=True)))
    raises(penstock.ConfigError, "own share", lambda: penstock.DataLoader(job, split="train", sampler=[1]))  # tail: pad


# ---- files -----------------------------------------------------------------------------------------------------------
def test_indices_from_a_file():
    indices = [rng.randrange(COUNT) for _ in range(50)]
    numpy.save(path_of("order.npy"), numpy.array(indices))
    numpy.save(path_of("order32.npy"), numpy.array(indices, numpy.int32))
    numpy.savetxt(path_of("order.txt"), indices, fmt="%d")
    seen = []
    for name in ("order.npy", "order32.npy", "order.txt"):
        for rank in range(2) if FULL or name == "order.npy" else (0,):
            with loader(None, file_sampler("indices", name), num_replicas=2, rank=rank) as train:
                assert len(train) == 2 and train.num_samples == 25 and train.dataset_size == COUNT
                for _ in range(2):
                    assert indices_of(train) == indices[rank::2]
                if rank == 0:
                    seen.append(hashes(train))
    assert seen == [seen[0]] * 3
    with loader(None, file_sampler("indices", "order.npy", "shuffle: true"), "seed=9") as train:
        train.set_epoch(4)
        assert indices_of(train) == list(torch_data.SubsetRandomSampler(indices, generator(13)))


def test_weights_from_a_file():
    weights = numpy.array([rng.random() for _ in range(COUNT)])
    numpy.save(path_of("weights.npy"), weights)
    for count, words in ((COUNT, ""), (200, ", num_samples: 200, replacement: true")):
        with loader(None, file_sampler("weights", "weights.npy", "shuffle: false" + words), "seed=5") as train:
            assert train.num_samples == count and len(train) == -(-count // 16)
            for epoch in range(2):
                right = torch.multinomial(torch.from_numpy(weights), count, True, generator=generator(5 + epoch))
                assert indices_of(train) == right.tolist()


def test_files_that_do_not_fit_are_refused_by_name():
    def refused(kind, what, *sampler):
        raises(kind, what, lambda: loader(None, file_sampler(*sampler)))
    numpy.savetxt(path_of("out.txt"), [0, 1, COUNT], fmt="%d")
    refused(penstock.DatasetError, "out.txt': index 80 at position 2 is outside the dataset", "indices", "out.txt")
    numpy.savetxt(path_of("few.txt"), [0.5, 1])
    refused(penstock.DatasetError, "few.txt' holds 2 weights, and the dataset has 80", "weights", "few.txt")
    numpy.save(path_of("below.npy"), numpy.array([-1.0] * COUNT))
    refused(penstock.DatasetError, "below.npy': weight 0 is -1", "weights", "below.npy")
    refused(penstock.DatasetError, "none.npy", "indices", "none.npy")
    refused(penstock.ConfigError, "replacement: false", "weights", "below.npy", "shuffle: false, replacement: false")


def test_a_state_is_refused_where_the_file_has_changed():
    def opened(name):
        return loader(None, file_sampler("indices", name))
    order = list(range(40))
    numpy.save(path_of("first.npy"), order)
    numpy.save(path_of("moved.npy"), order)
    numpy.save(path_of("other.npy"), order[::-1])
    with opened("first.npy") as train:
        passing = iter(train)
        next(passing)
        state = train.state_dict()
        del passing
    with opened("moved.npy") as train:
        train.load_state_dict(state)
        assert indices_of(train) == order[16:]
    with opened("other.npy") as train:
        raises(penstock.ConfigError, "sampler.file_hash", lambda: train.load_state_dict(state))


# ---- under mpirun ----------------------------------------------------------------------------------------------------
OUTPUT = "torch" if FULL else "numpy"  # of programs: importing torch takes most of their time

PROGRAM = """
import os, sys, penstock
rank = int(os.environ["RANK"])
sampler = penstock.DistributedSampler(80, 2, rank, seed=3)
with penstock.DataLoader(sys.argv[1], split="train", sampler=sampler, overrides=["splits.train.tail=torch"], output=sys.argv[2]) as train:
    for _ in range(2):
        for images, labels in train: pass
"""


def test_the_stream_is_the_same_under_mpirun():
    if shutil.which("mpirun") is None:
        print("not compared under mpirun: there is none in PATH")
        return
    total = [0, 0]
    for rank in range(2):
        with loader(penstock.DistributedSampler(COUNT, 2, rank, seed=3), num_replicas=2, rank=rank) as train:
            for _ in range(2):
                for _ in train:
                    pass
            total = [(a + b) % 2**128 for a, b in zip(total, hashes(train))]
    for transport in ("auto", "mpi") if FULL else ("auto",):
        with no_leftovers() as env:
            result = run_job(job, ranks=3, overrides=["roles.trainers=2", f"transport={transport}"], env=env,
                             program=[sys.executable, "-c", PROGRAM, job, OUTPUT], timeout=180)  # imports of torch, where cores are busy
        assert [int(text, 16) for text in result.hashes()["train"]] == total, transport


# ---- several ranks with the same data --------------------------------------------------------------------------------
def test_ranks_per_replica_embedded():
    seen = {}
    for rank in range(4):
        os.environ.update(RANK=str(rank), WORLD_SIZE="4")
        try:
            with loader(None, ranks_per_replica=2) as train:
                assert (train.rank, train.num_replicas) == (rank // 2, 2)
                seen[rank] = indices_of(train)
            with loader(None, "roles.ranks_per_replica=2") as train:
                assert indices_of(train) == seen[rank]
            raises(penstock.ConfigError, "does not divide the 4 trainers", lambda: loader(None, ranks_per_replica=3))
        finally:
            del os.environ["RANK"], os.environ["WORLD_SIZE"]
    assert seen[0] == seen[1] != seen[2] == seen[3]
    raises(penstock.UsageError, "without ranks", lambda: loader(None, ranks_per_replica=2))


OTHER_COUNT = """
import sys
import penstock
try:
    penstock.DataLoader(sys.argv[1], split="train", ranks_per_replica=2, output=sys.argv[2])
except penstock.UsageError as problem:
    sys.exit(0 if "its receiver belongs to a job of 2" in str(problem) else str(problem))
sys.exit("it opened")
"""


def test_ranks_per_replica_other_than_the_jobs():
    with no_leftovers() as env:
        result = run_job(job, overrides=["roles.trainers=2"], env=env, program=[sys.executable, "-c", OTHER_COUNT, job, OUTPUT])
    assert result.code == 0, result.log


run_tests(globals())
