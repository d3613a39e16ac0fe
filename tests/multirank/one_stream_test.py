"""One stream: who makes a batch never changes what is in it. The same two hashes of both splits, two epochs, whatever the
number of loaders, threads and trainers, the transport, the sizes of messages and chunk buffers, and the order of grants."""

import json
import os
import tempfile

from jobs import FULL, demo_photos, hashes_of, left_to_full, run_job, run_tests, skip_without_mpirun, write_job
from leftovers import no_leftovers

skip_without_mpirun()
PATTERNS = os.path.join(os.environ["PENSTOCK_BUILD"], "patterns")
TRAINERS_TO_BATCH = {1: 32, 2: 16, 4: 8}  # the global batch stays 32, so the stream does
PHOTOS, VAL_PHOTOS = (80, 26) if FULL else (40, 13)
TINY = ["loader.chunk_samples=1", "loader.chunk_buffers=2", "mpi.max_message_bytes=4096"]

work = tempfile.TemporaryDirectory(prefix="one_stream_test-")
job = write_job(work.name, demo_photos(PHOTOS, VAL_PHOTOS))
expected = None


def trainers(count):
    batch = TRAINERS_TO_BATCH[count]
    return [f"roles.trainers={count}", f"splits.train.batch_size={batch}", f"splits.val.batch_size={batch}"]


def check_same(what, loaders, overrides, count=2, mca=()):
    with no_leftovers() as env:
        result = run_job(job, ranks=count + loaders if loaders else 0, options=["--epochs=2"],
                         overrides=[*trainers(count), *overrides], mca=mca, env=env)
        got = result.hashes()
    assert got == expected, f"{what}: {got}, expected {expected}"
    assert result.report["splits"]["train"]["images"] == 2 * -(-PHOTOS // 32) * 32 and result.report["splits"]["val"]["images"] == 32
    return result.report


def transports(report):
    return {name for rank in report["ranks"] for name in rank.get("chunks_by_transport", {})}


def learned(report):
    parts = [rank.get("learned_index", {}) for rank in report["ranks"]]
    return sum(part.get("photos", 0) for part in parts), sum(part.get("used", 0) for part in parts)


def test_in_one_process():
    global expected
    with no_leftovers() as env:
        # The yardstick learns nothing of its photos; all others do (loader.index_memory_mb).
        plain = run_job(job, options=["--epochs=2"], overrides=[*trainers(1), "loader.index_memory_mb=0"], env=env)
        first = plain.hashes()
        assert set(first) == {"train", "val"} and first["train"] != first["val"]
        assert learned(plain.report) == (0, 0)
        expected = first
    for count in (1, 2, 4) if FULL else (4,):
        report = check_same(f"{count} trainers in one process", 0, [f"loader.threads={1 + count % 4}"], count)
        assert transports(report) == {"inproc"}
        assert learned(report) >= (PHOTOS, PHOTOS), learned(report)


def test_a_program_of_its_own():
    # Without `penstock run`: a program that loads in threads of its own, once as the only trainer and once as each of two.
    def embedded(env, rank, world):
        from leftovers import run
        out = os.path.join(work.name, f"embedded_{rank}_{world}.json")
        result = run([PATTERNS, "all", job, out, *trainers(world)], 60, env=dict(env, RANK=str(rank), WORLD_SIZE=str(world)))
        assert result.returncode == 0, result.stderr
        with open(out) as file:
            return json.load(file)["stats"]

    def added(parts):
        return {name: tuple(f"{sum(int(part['splits'][name][key], 16) for part in parts) % (1 << 128):032x}"
                            for key in ("order_hash", "pixel_hash")) for name in parts[0]["splits"]}

    with no_leftovers() as env:
        assert not FULL or hashes_of(embedded(env, 0, 1)) == expected
        assert added([embedded(env, rank, 2) for rank in (0, 1)]) == expected


def test_loaders_threads_and_transports():
    # Each row under mpirun: loaders, threads, transport.
    rows = [(1, 4, "mpi"), (3, 2, "auto")]
    if FULL:
        rows = [(loaders, threads, transport) for loaders in (1, 2, 3, 4) for threads in (1, 2, 3, 4)
                for transport in ("shm", "mpi", "auto")]
    for loaders, threads, transport in rows:
        report = check_same(f"{loaders} loaders of {threads} threads over {transport}", loaders,
                            [f"loader.threads={threads}", f"transport={transport}"])
        assert transports(report) == {"shm" if transport == "auto" else transport}, transports(report)
        assert sum(rank["role"] == "loader" for rank in report["ranks"]) == loaders


def test_tiny_chunk_buffers_and_messages_and_random_grants():
    random = ["balancer.policy=random"]
    rows = [(2, [*TINY, *random, "transport=mpi"])]
    if FULL:
        rows = [(loaders, [*tiny, *policy, f"transport={transport}"]) for loaders in (1, 2, 3, 4)
                for tiny in ([], TINY, ["loader.chunk_samples=1", "loader.chunk_buffers=1"])
                for policy in ([], random) for transport in ("shm", "mpi")]
    for loaders, overrides in rows:
        check_same(f"{loaders} loaders with {overrides}", loaders, overrides)
    if FULL:
        check_same("tiny chunk buffers and random grants in one process", 0, [*TINY[:2], *random])


@left_to_full("test_in_one_process: four trainers; test_a_program_of_its_own: two")
def test_other_numbers_of_trainers():
    for count in (1, 4):
        for transport in ("shm", "mpi"):
            check_same(f"{count} trainers", 1, [f"transport={transport}"], count)


def test_mpi_without_shared_memory():
    # Open MPI's own shared memory off as well: every byte goes through TCP.
    check_same("MPI over TCP", 2, ["transport=mpi"], mca=[("btl", "tcp,self"), ("pml", "ob1")])


@left_to_full("test_mpi_without_shared_memory: the other of MPI's ways to send")
def test_mpi_that_may_not_read_the_other_rank():
    # As in containers whose processes may not: MPI copies through its own shared memory, in pieces that both ranks drive.
    check_same("MPI in pieces", 2, ["transport=mpi"], mca=[("btl_vader_single_copy_mechanism", "none")])


def test_what_must_differ():
    # The test can fail: another seed is another stream, and so are other epochs.
    with no_leftovers() as env:
        seed = run_job(job, options=["--epochs=2"], overrides=["seed=4"], env=env).hashes()
        epochs = run_job(job, options=["--epochs=3" if FULL else "--epochs=1"], env=env).hashes()
    assert seed["train"][0] != expected["train"][0] and seed["train"][1] != expected["train"][1]
    assert seed["val"] == expected["val"]  # nothing is drawn and nothing shuffled there
    assert epochs["train"] != expected["train"] and epochs["val"] == expected["val"]


if __name__ == "__main__":
    run_tests(globals())
