"""Compares the samplers with torch's own, index for index.

Every query is one line to the program print_sampler; its answer has to equal what torch gives for the same arguments:
all of a grid of sizes, ranks, seeds, epochs and flags, then a random sample of batched combinations (its seed is
printed; PENSTOCK_TEST_SEED repeats one), then the sizes 100,003 and 1,000,003. By default a few of the seeds and epochs at
each place of the grid, in turn, so that all of them are met, and fewer batched combinations; with PENSTOCK_FULL=1 all.
"""
import itertools
import os
import random
import subprocess
import sys
import time

try:
    import torch
    from torch.utils.data import (BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler,
                                  WeightedRandomSampler)
    from torch.utils.data.distributed import DistributedSampler
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

from jobs import FULL

PROGRAM = os.path.join(os.environ["PENSTOCK_BUILD"], "tests", "sampler", "print_sampler")

SIZES = [1, 2, 3, 5, 7, 8, 11, 16, 31, 64, 100, 257]  # several below the number of ranks
RANKS = [1, 2, 3, 4, 7, 8, 16]
SEEDS = [0, 1, 42, 2**32 - 1, 2**32, 2**40 + 12345, 2**63 - 1]
EPOCHS = [0, 1, 5]


def some(values, place, count):
    """By default `count` of the values, others at each place."""
    values = list(values)
    return values if FULL else [values[(place * count + i) % len(values)] for i in range(min(count, len(values)))]


def ask(queries):
    """The answers of print_sampler, one text a query."""
    done = subprocess.run([PROGRAM], input="\n".join(queries) + "\n", capture_output=True, text=True, check=True)
    answers = done.stdout.split("\n")[:-1]
    assert len(answers) == len(queries), f"{len(queries)} queries, {len(answers)} answers"
    return answers


def numbers(answer):
    return [int(word) for word in answer.split()]


def batches(answer):
    return [numbers(part) for part in answer.split("|")[:-1]]


def torch_sampler(size, ranks, rank, shuffle, seed, drop_last, epoch):
    sampler = DistributedSampler(range(size), ranks, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
    sampler.set_epoch(epoch)
    return sampler


def generator(seed):
    made = torch.Generator()
    made.manual_seed(seed)
    return made


def words(name, *arguments):
    return " ".join([name] + [str(int(argument)) for argument in arguments])


def compare(what, queries, expected, read):
    answers = ask(queries)
    for query, answer, right in zip(queries, answers, expected):
        got = None if answer.startswith("error") else read(answer)
        if got != right:
            sys.exit(f"FAIL {what}: {query}\n  torch:    {str(right)[:300]}\n  penstock: {answer[:300]}")
    print(f"{what}: {len(queries)} equal")
    return len(queries)


def test_distributed_grid():
    queries, expected = [], []
    for place, (size, ranks, shuffle, drop_last) in enumerate(itertools.product(SIZES, RANKS, [False, True], [False, True])):
        # Without shuffling the seed and epoch have no part; one pair shows it.
        pairs = some(itertools.product(SEEDS, EPOCHS), place, 4) if shuffle else [(42, 5)]
        for (seed, epoch), rank in itertools.product(pairs, range(ranks)):
            arguments = (size, ranks, rank, shuffle, seed, drop_last, epoch)
            queries.append(words("distributed", *arguments))
            expected.append(list(torch_sampler(*arguments)))
    assert any(len(indices) == 0 for indices in expected), "the grid should hold a rank left with nothing"
    return compare("DistributedSampler", queries, expected, numbers)


def test_worked_examples():
    eleven = [list(torch_sampler(11, 2, rank, False, 0, False, 0)) for rank in range(2)]
    assert eleven == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 0]], eleven
    one = [list(torch_sampler(1, 3, rank, True, 0, False, 0)) for rank in range(3)]
    assert one == [[0], [0], [0]], one
    queries = [words("distributed", 11, 2, rank, 0, 0, 0, 0) for rank in range(2)]
    queries += [words("distributed", 1, 3, rank, 1, 0, 0, 0) for rank in range(3)]
    return compare("worked examples", queries, eleven + one, numbers)


def test_random_and_sequential():
    queries, expected = [], []
    for size, seed, epoch in itertools.product(SIZES + [1000, 4099], SEEDS, EPOCHS):
        queries.append(words("random", size, seed, epoch))
        expected.append(list(RandomSampler(range(size), generator=generator(seed + epoch))))
    for size in SIZES:
        queries.append(words("sequential", size))
        expected.append(list(SequentialSampler(range(size))))
    return compare("RandomSampler, SequentialSampler", queries, expected, numbers)


def test_draws(rng):
    """RandomSampler's replacement and num_samples, SubsetRandomSampler, WeightedRandomSampler."""
    queries, expected = [], []
    for place, (size, seed) in enumerate(itertools.product(SIZES + [4099], SEEDS)):
        for count in some([1, 5, 31, 32, 33, 257, 1000], place, 2):
            queries.append(words("permutations", size, count, seed))
            expected.append(list(RandomSampler(range(size), num_samples=count, generator=generator(seed))))
            queries.append(words("replacement", size, count, seed))
            expected.append(list(RandomSampler(range(size), True, count, generator=generator(seed))))
    for size, seed in itertools.product(SIZES, SEEDS):
        indices = [rng.randrange(10**6) for _ in range(size)]
        queries.append(words("subset", seed, *indices))
        expected.append(list(SubsetRandomSampler(indices, generator=generator(seed))))
    for size, seed in itertools.product(SIZES + [1000, 20000], SEEDS):
        kind = rng.randrange(3)
        # Classes of equal weight, as imbalanced datasets have; weights of every size; zeros among them.
        weights = [[1.0 / rng.choice([3, 7, 1300]), rng.random() * 10.0 ** rng.randint(-30, 30),
                    rng.choice([0.0, rng.random()])][kind] for _ in range(size)]
        weights[rng.randrange(size)] = 1.0
        count = rng.choice([2, 31, 2000])
        queries.append(" ".join(["weighted", str(count), str(seed)] + [repr(weight) for weight in weights]))
        expected.append(list(WeightedRandomSampler(weights, count, True, generator=generator(seed))))
    return compare("draws with repetitions", queries, expected, numbers)


def test_batches(rng, count):
    """BatchSampler over DistributedSampler, from the classes and from the Plan's random access."""
    queries, plans, expected, refused = [], [], [], []
    for _ in range(count):
        ranks = rng.choice([1, 2, 3, 4, 5, 8, 13])
        size = rng.choice([rng.randint(1, ranks), rng.randint(1, 200), rng.randint(1, 600)])
        arguments = (size, ranks, rng.randrange(ranks), rng.random() < 0.7, rng.getrandbits(63), rng.random() < 0.5,
                     rng.randint(0, 1000))
        batch_size, batch_drop_last = rng.randint(1, 33), rng.random() < 0.5
        right = list(BatchSampler(torch_sampler(*arguments), batch_size, batch_drop_last))
        queries.append(words("batches", *arguments, batch_size, batch_drop_last))
        expected.append(right)
        plan = words("plan", *arguments, batch_size, batch_drop_last)
        if right:
            plans.append((plan, right))
        else:
            refused.append(plan)
    total = compare("BatchSampler", queries, expected, batches)
    total += compare("Plan", [plan for plan, _ in plans], [right for _, right in plans], batches)
    # Where torch's loop would silently run zero times, a Plan says so.
    assert refused, "no combination left nothing; the sample should hold some"
    for query, answer in zip(refused, ask(refused)):
        assert answer.startswith("error: no batch is left"), (query, answer)
    print(f"Plan: {len(refused)} with no batch left, all refused")
    return total + len(refused)


def test_large():
    queries, expected = [], []
    for size, ranks, seed, epoch in [(100003, 8, 2**33 + 7, 2), (1000003, 3, 17, 90)]:
        for rank, drop_last in itertools.product(range(ranks), [False, True]):
            if rank not in (0, ranks - 1) or not FULL and size > 10**6 and (rank == 0) != drop_last:
                continue
            arguments = (size, ranks, rank, True, seed, drop_last, epoch)
            queries.append(words("distributed", *arguments))
            expected.append(list(torch_sampler(*arguments)))
    queries.append(words("random", 1000003, 2**40, 1))
    expected.append(torch.randperm(1000003, generator=generator(2**40 + 1)).tolist())
    return compare("100,003 and 1,000,003 samples", queries, expected, numbers)


def test_inside_out():
    """torch 2.6's shuffle of large sets, written out here over torch's own 64-bit draws: any size shows the rule."""
    queries, expected = [], []
    for size, seed in itertools.product([1, 2, 10, 1000], SEEDS):
        draws = generator(seed)
        order = []
        for i in range(size):
            drawn = int(torch.empty(1, dtype=torch.int64).random_(-2**63, None, generator=draws))
            place = (drawn % 2**64) % (i + 1)  # over the whole range the value is the 64 drawn bits themselves
            order.append(i)
            order[i] = order[place]
            order[place] = i
        queries.append(words("inside_out", size, seed))
        expected.append(order)
    return compare("inside-out shuffle", queries, expected, numbers)


def main():
    if not os.path.exists(PROGRAM):
        sys.exit(f"FAIL: {PROGRAM} is not built")
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", time.time_ns() % 2**32))
    print(f"torch {torch.__version__}; PENSTOCK_TEST_SEED={seed}")
    total = test_worked_examples() + test_distributed_grid() + test_random_and_sequential()
    total += test_draws(random.Random(seed))
    total += test_batches(random.Random(seed), 4000 if FULL else 800) + test_large() + test_inside_out()
    print(f"{total} combinations equal to torch's")


if __name__ == "__main__":
    main()
