"""Orders from files, and several ranks with the same data, in whole jobs under mpirun: one trainer's stream."""

import os
import random
import subprocess
import tempfile

from jobs import FULL, PENSTOCK, demo_photos, left_to_full, run_job, run_tests, skip_without_mpirun, write_job
from leftovers import no_leftovers

skip_without_mpirun()
work = tempfile.TemporaryDirectory(prefix="sampler_test-")
# Steps of 32 of 80 photos, or by default of 8 of 24.
COUNT, GLOBAL_BATCH = (80, 32) if FULL else (24, 8)
job = write_job(work.name, demo_photos() if FULL else demo_photos(COUNT, 8, 3), batch=GLOBAL_BATCH // 2)


def run(ranks, trainers, *overrides):
    with no_leftovers() as env:
        return run_job(job, ranks=ranks, overrides=[f"roles.trainers={trainers}", *overrides], env=env)


def write(name, lines):
    with open(os.path.join(work.name, name), "w") as file:
        file.write("\n".join(map(str, lines)))


def test_two_ranks_of_one_replica_get_the_same_batches_and_count_once():
    alone = run(2 if FULL else 0, 1).report
    together = run(3, 2, "roles.ranks_per_replica=2").report
    for name, split in alone["splits"].items():
        for key in ("order_hash", "pixel_hash", "images", "batches"):
            assert together["splits"][name][key] == split[key], (name, key)
    trainers = [rank for rank in together["ranks"] if rank["role"] == "trainer"]
    assert [(rank["trainer"], rank["replica"], rank["counted"]) for rank in trainers] == [(0, 0, True), (1, 0, False)]
    for name in alone["splits"]:
        first, second = (rank["splits"][name] for rank in trainers)
        assert first["order_hash"] == second["order_hash"] and first["pixel_hash"] == second["pixel_hash"]
        assert first["images"] == second["images"] == alone["splits"][name]["images"]


@left_to_full("test_two_ranks_of_one_replica_get_the_same_batches_and_count_once: by several")
def test_in_one_process_too():
    result = run(0, 2, "roles.ranks_per_replica=2")
    assert result.hashes() == run(0, 1).hashes()


def test_trainers_that_are_no_multiple_are_refused():
    for ranks in (0, 4) if FULL else (0,):
        result = run(ranks, 3, "roles.ranks_per_replica=2")
        assert result.code == 3 and "does not divide the 3 trainers" in result.stderr, result.log


def test_orders_from_files_are_one_stream():
    write("order.txt", [random.Random(7).randrange(COUNT) for _ in range(COUNT - 10)])
    write("weights.txt", [random.Random(8).random() for _ in range(COUNT)])
    samplers = ["{indices: order.txt, shuffle: true}"]  # package.samplers_test has the others, in one process
    if FULL:
        samplers += ["{indices: order.txt}", "{weights: weights.txt, num_samples: 100}"]
    for sampler in samplers:
        path = os.path.join(work.name, "file_job.yaml")
        with open(job) as source, open(path, "w") as file:
            file.write(source.read().replace("{shuffle: true}", sampler))
        seen = []
        for ranks, trainers, batch in ((0, 1, GLOBAL_BATCH), (3, 2, GLOBAL_BATCH // 2)):
            with no_leftovers() as env:
                result = run_job(path, ranks=ranks, options=["--epochs=2"], env=env, overrides=[
                    f"roles.trainers={trainers}", f"splits.train.batch_size={batch}"])
            seen.append(result.hashes()["train"])
            samples = 100 if "weights" in sampler else COUNT - 10
            assert result.report["splits"]["train"]["images"] == 2 * -(-samples // GLOBAL_BATCH) * GLOBAL_BATCH
        assert seen[0] == seen[1], sampler
        inspected = subprocess.run([PENSTOCK, "inspect", path, "--steps=99", f"--out={work.name}/inspected"], check=True,
                                   capture_output=True, text=True, timeout=60)
        with no_leftovers() as env:
            once = run_job(path, options=["--epochs=1"], env=env).hashes()["train"]
        assert inspected.stdout.split()[1::2] == list(once), sampler


def test_a_file_that_does_not_fit_ends_the_job_by_name():
    write("out.txt", [1, 2, COUNT])
    result = run(3 if FULL else 0, 2, f"splits.train.sampler={{indices: {work.name}/out.txt}}")
    assert result.code == 4 and f"index {COUNT} at position 2" in result.stderr and "out.txt" in result.stderr, result.log


run_tests(globals())
