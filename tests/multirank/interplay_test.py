"""Ways of using the client, each checked batch by batch against `penstock inspect`, which knows neither trainers nor
loaders: validation inside a live training epoch, trainers that break off at different steps, two iterators alive, an iteration
begun in the middle, batches held. The programs are in patterns.cpp."""

import json
import os
import tempfile

from jobs import FULL, PENSTOCK, demo_photos, run_job, run_tests, skip_without_mpirun, write_job
from leftovers import no_leftovers, run
from stream_hash import read_dump, total

skip_without_mpirun()
PATTERNS = os.path.join(os.environ["PENSTOCK_BUILD"], "patterns")
TRAINERS, STEPS = 2, 3
work = tempfile.TemporaryDirectory(prefix="interplay_test-")
# Steps of 32 of 80 photos, or by default of 8 of 24.
VAL_PHOTOS = 26 if FULL else 8
job = write_job(work.name, demo_photos()) if FULL else write_job(work.name, demo_photos(24, 8, 3), batch=4)
# Small chunk buffers and one batch ahead make the loaders' chunk buffers and the receivers' batch buffers scarce; tests
# run so and with defaults.
SCARCE = ["loader.chunk_buffers=2", "loader.prefetch=1", "loader.chunk_samples=4"]


def expected_batches():
    """{(split, epoch, trainer, step): (order, pixel)}."""
    found = {}
    for split, epochs in (("train", (0, 1, 2)), ("val", (0,))):
        for epoch in epochs:
            out = os.path.join(work.name, f"inspect_{split}_{epoch}")
            result = run([PENSTOCK, "inspect", job, "--raw", f"--split={split}", f"--epoch={epoch}", "--steps=99",
                          f"--trainers={TRAINERS}", f"--out={out}"], 60)
            assert result.returncode == 0, result.stderr
            for (trainer, step), batch in read_dump(out).items():
                found[split, epoch, trainer, step] = tuple(f"{part:032x}" for part in batch.hashes())
    return found


expected = expected_batches()


def run_pattern(mode, ranks, overrides=(), timeout=60, program_overrides=(), want=0):
    """Runs patterns MODE as every trainer's program; gives the report and what each trainer saw."""
    out = os.path.join(work.name, f"{mode}_%r.json")
    with no_leftovers() as env:
        result = run_job(job, ranks=ranks, overrides=list(overrides), env=env, timeout=timeout,
                         program=[PATTERNS, mode, job, out, *program_overrides])
    if want != 0:
        assert result.code == want, result.log
        return result, None
    report = result.report
    saw = []
    for trainer in range(TRAINERS):
        with open(out.replace("%r", str(trainer))) as file:
            saw.append(json.load(file)["saw"])
        os.remove(out.replace("%r", str(trainer)))
    return report, saw


def check_ranges(report, split, trainer, ranges):
    """The trainer consumed exactly these (epoch, first step, end step) of the split, with the right contents."""
    rank = next(r for r in report["ranks"] if r["role"] == "trainer" and r["trainer"] == trainer)
    got = rank["splits"][split]["ranges"]
    assert sorted((r["epoch"], r["first_step"], r["end_step"]) for r in got) == sorted(ranges), (got, ranges)
    for r in got:
        steps = [expected[split, r["epoch"], trainer, step] for step in range(r["first_step"], r["end_step"])]
        wanted = total((int(order, 16), int(pixel, 16)) for order, pixel in steps)
        assert (r["order_hash"], r["pixel_hash"]) == wanted, (split, trainer, r)
    everything = total((int(r["order_hash"], 16), int(r["pixel_hash"], 16)) for r in got)
    assert everything == (rank["splits"][split]["order_hash"], rank["splits"][split]["pixel_hash"])


def ways():
    """(ranks, overrides): in one process and under mpirun, with plenty and with little memory; by default where both are scarce."""
    if FULL:
        return [(ranks, [*scarce, f"transport={transport}"]) for ranks in (0, 3, 4, 5) for scarce in ([], SCARCE)
                for transport in (("auto",) if ranks == 0 else ("shm", "mpi"))]
    return [(3, SCARCE)]


def test_validation_inside_a_live_training_epoch():
    for ranks, overrides in ways() if FULL else [(4, ["transport=mpi"])]:
        report, saw = run_pattern("validate", ranks, overrides, program_overrides=overrides)
        for trainer in range(TRAINERS):
            check_ranges(report, "train", trainer, [(0, 0, STEPS)])
            check_ranges(report, "val", trainer, [(0, 0, 1), (0, 0, 1)])
        assert sum(s["val"] for s in saw) == 2 * VAL_PHOTOS and all(s["steps"] == STEPS for s in saw)


def test_trainers_that_break_off_at_different_steps():
    for ranks, overrides in ways():
        report, _ = run_pattern("break", ranks, overrides)
        check_ranges(report, "train", 0, [(0, 0, 1), (1, 0, STEPS)])
        check_ranges(report, "train", 1, [(0, 0, 2), (1, 0, STEPS)])


def test_two_iterators_alive():
    for ranks, overrides in ways() if FULL else [(0, SCARCE)]:
        report, saw = run_pattern("two", ranks, overrides)
        for trainer in range(TRAINERS):
            check_ranges(report, "train", trainer, [(0, 0, STEPS), (1, 0, STEPS)])
            assert saw[trainer]["steps"] == STEPS


def test_a_pass_begun_in_the_middle():
    report, saw = run_pattern("resume", 3 if FULL else 0)
    for trainer in range(TRAINERS):
        check_ranges(report, "train", trainer, [(0, 2, STEPS)])
        assert saw[trainer] == {"first": 2, "steps": 1}


def test_held_batches_stay_as_they_are():
    for ranks, overrides in ways():
        report, saw = run_pattern("hold", ranks, overrides)
        for trainer in range(TRAINERS):
            check_ranges(report, "train", trainer, [(0, 0, STEPS), (1, 0, STEPS)])


def test_holding_every_batch_warns_and_waits():
    # trainer.hold 2, prefetch 2: five batch buffers; the iteration over three epochs of 3 steps drops them late, in
    # another thread.
    for ranks in (0, 3) if FULL else (3,):
        report, saw = run_pattern("hold_all", ranks)
        for trainer in range(TRAINERS):
            check_ranges(report, "train", trainer, [(0, 0, STEPS), (1, 0, STEPS), (2, 0, STEPS)])
            assert saw[trainer]["steps"] == 3 * STEPS and saw[trainer]["warned"] == 1, saw


def test_holding_every_batch_for_ever_is_an_error_in_time():
    for ranks in (0, 3) if FULL else (0,):
        result, _ = run_pattern("hold_for_ever", ranks, ["splits.train.batch_size=2"], want=1,
                                program_overrides=["trainer.timeout_s=3", "splits.train.batch_size=2"])
        assert "trainer.hold" in result.stderr, result.log
        assert "exited with status 2" in result.stderr, result.log  # of usage: nobody else can change it


def test_trainers_of_different_pace():
    for ranks, overrides in ways() if FULL else [(0, SCARCE)]:
        report, saw = run_pattern("uneven", ranks, overrides)
        for trainer in range(TRAINERS):
            check_ranges(report, "train", trainer, [(0, 0, STEPS), (1, 0, STEPS)])
            check_ranges(report, "val", trainer, [(0, 0, 1)])
        assert sum(s["val"] for s in saw) == VAL_PHOTOS


def test_trainers_that_ask_for_different_things():
    for ranks in (0, 3) if FULL else (3,):
        result, _ = run_pattern("disagree", ranks, want=1)
        assert "batch_size" in result.stderr and "differently from trainer" in result.stderr, result.log


if __name__ == "__main__":
    run_tests(globals())
