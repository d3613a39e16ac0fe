"""`penstock report` adds what the runs of an interrupted job delivered: the hashes are those of one whole run, and a step that
is missing or there twice is named. `penstock replay` decides as the run did."""

import json
import os
import re
import tempfile

from jobs import PENSTOCK, demo_photos, run_job, run_tests, skip_without_mpirun, write_job
from leftovers import no_leftovers, run

skip_without_mpirun()
PATTERNS = os.path.join(os.environ["PENSTOCK_BUILD"], "patterns")
work = tempfile.TemporaryDirectory(prefix="report_test-")
job = write_job(work.name, demo_photos())  # two trainers, epochs of three steps
LOG = os.path.join(work.name, "balancer.log")


def part(name, which, ranks=0, overrides=()):
    """A run of `which` = "EPOCH STEP LAST_EPOCH END_STEP"; gives its report's file."""
    with no_leftovers() as env:
        result = run_job(job, ranks=ranks, overrides=overrides, program=[PATTERNS, "part", job, os.path.join(work.name, "%r.json")],
                         env=dict(env, TEST_PART=which))
    assert result.code == 0, result.log
    path = os.path.join(work.name, name + ".json")
    with open(path, "w") as file:
        file.write("what the program printed\n" + result.stdout)
    return path


def joined(*words):
    return run([PENSTOCK, "report", *words], 30)


def sums(path, name="train"):
    with open(path) as file:
        split = json.loads(file.read().strip().splitlines()[-1])["splits"][name]
    return split["order_hash"], split["pixel_hash"], split["batches"]


whole = part("whole", "0 0 2 3")
first = part("first", "0 0 1 2", overrides=[f"balancer.log={LOG}"])
rest = part("rest", "1 2 2 3", ranks=4)


def test_runs_add_up_to_one():
    for files in ([first, rest], [rest, first], [whole]):
        result = joined("--json", *files)
        assert result.returncode == 0, result.stderr
        split = json.loads(result.stdout)["splits"]["train"]
        assert (split["order_hash"], split["pixel_hash"], split["batches"]) == sums(whole), (files, split)
        assert (split["first_epoch"], split["first_step"], split["last_epoch"], split["end_step"]) == (0, 0, 2, 3), split
    text = joined("--split", "train", first, rest).stdout
    assert "train: epoch 0, step 0 to epoch 2, step 2, each once: 18 batches" in text and sums(whole)[1] in text, text


def test_a_split_that_is_evaluated_after_each_epoch():
    for files in ([first, rest], [whole]):
        result = joined("--json", *files)
        assert result.returncode == 0, result.stderr
        report = json.loads(result.stdout)
        assert list(report["splits"]) == ["train"] and report["left_out"] == ["val"], report
        result = joined("--json", "--split", "val", *files)
        assert result.returncode == 0, result.stderr
        report = json.loads(result.stdout)
        split = report["splits"]["val"]
        # The first run has evaluated once.
        assert (split["order_hash"], split["pixel_hash"], split["batches"]) == sums(first, "val"), (files, split)
        assert (split["evaluations"], split["broken_off"], report["left_out"]) == (3, 0, []), report
    text = joined(first, rest).stdout
    assert "left out: val (mode: eval)" in text and "--split val" in text and "val: " not in text, text
    text = joined("--split", "val", "--split", "train", first, rest).stdout
    assert "3 evaluations, and those of one epoch are equal" in text and "each once: 18 batches" in text and "left out" not in text, text


def test_gaps_and_overlaps_are_named():
    for files, what in (([first, whole], "steps 0 to 2 of epoch 0 stand both in"),
                        ([first, part("late", "2 0 2 3")], "step 2 of epoch 1 is in no report"),
                        ([part("short", "0 0 0 1"), rest], "steps 1 to 2 of epoch 0 are in no report"),
                        ([part("far", "9 0 9 3"), whole], "epochs 3 to 8 are in no report")):
        result = joined(*files)
        assert result.returncode == 1 and what in result.stderr and "split 'train'" in result.stderr, result
    result = joined("--split", "no_such", first)
    assert result.returncode == 1 and "no report has anything of it" in result.stderr, result


def test_what_is_no_report_is_refused():
    path = os.path.join(work.name, "nonsense.json")
    for text in ("", "{}", "[1, 2]", '{"splits": {"train": 1}, "ranks": [{"role": "trainer", "splits": {"train": {"ranges": 7}}}]}'):
        with open(path, "w") as file:
            file.write(text)
        result = joined(path)
        assert result.returncode == 1 and "report" in result.stderr and "terminate" not in result.stderr, (text, result)
    with open(whole) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(re.sub(r'"order_hash":"[0-9a-f]{32}"', '"order_hash":"zz"', text))
    result = joined(path)
    assert result.returncode == 1 and f"'{path}'" in result.stderr and "order_hash" in result.stderr, result
    assert "help: " in result.stderr, result
    result = joined(os.path.join(work.name, "not_there.json"))
    assert result.returncode == 1 and "not_there.json" in result.stderr, result


def test_replay():
    result = run([PENSTOCK, "replay", LOG], 30)
    assert result.returncode == 0 and "every decision as it was" in result.stdout, result
    with open(LOG) as file:
        text = file.read()
    with open(LOG + ".changed", "w") as file:
        file.write(text.replace('"deadline":0', '"deadline":7', 1))
    result = run([PENSTOCK, "replay", LOG + ".changed"], 30)
    assert result.returncode == 1 and "other decisions: line " in result.stderr, result
    # Nothing was decided by a tick: its absence shows by the number alone.
    lines = text.splitlines(keepends=True)
    tick = next(i for i, line in enumerate(lines) if '"tick"' in line and not lines[i + 1].startswith("\t"))
    with open(LOG + ".shorter", "w") as file:
        file.writelines(lines[:tick] + lines[tick + 1:])
    for path, what in ((LOG + ".shorter", "what was between them is missing"), (job, "line 1")):
        result = run([PENSTOCK, "replay", path], 30)
        assert result.returncode == 2 and what in result.stderr, result
        assert f"'{path}'" in result.stderr and "help: " in result.stderr, result


if __name__ == "__main__":
    run_tests(globals())
