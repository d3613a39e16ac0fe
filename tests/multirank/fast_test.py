"""arithmetic: fast as a job: one order and, on CPUs, one stream of pixels for any number of loaders, by restart points from
a pack and without; the order of an exact job; and everybody who shows pixels or their hash says that it is fast."""

import json
import os
import re
import tempfile

from jobs import FULL, PENSTOCK, run_job, run_tests, run_words, skip_without_mpirun, write_job
from leftovers import no_leftovers, run

skip_without_mpirun()
work = tempfile.TemporaryDirectory(prefix="fast_test-")
photos = os.path.join(work.name, "photos")
made = run([PENSTOCK, "demo-data", photos, "--count=16", "--val-count=8", "--classes=2", "--seed=4"], 120)
assert made.returncode == 0, made.stderr
job = write_job(work.name, photos, batch=4)
FAST = ["arithmetic=fast"]
hashes = {}  # of the first run


def test_a_fast_job_keeps_the_order_and_says_what_it_is():
    with no_leftovers() as env:
        exact = run_job(job, env=env)
        fast = run_job(job, overrides=FAST, env=env)
    for name in ("train", "val"):
        then, now = exact.report["splits"][name], fast.report["splits"][name]
        assert (then["arithmetic"], now["arithmetic"]) == ("exact", "fast")
        assert then["order_hash"] == now["order_hash"] and then["pixel_hash"] != now["pixel_hash"], name
    hashes.update(fast.hashes())


def test_the_same_pixels_for_any_loaders_by_either_decoder_and_by_restart_points():
    packed = os.path.join(work.name, "packed")  # with restart points in it
    for name in ("train", "val"):
        result = run([PENSTOCK, "pack", os.path.join(photos, name), os.path.join(packed, name)], 60)
        assert result.returncode == 0, result.stderr
    with open(job) as file:
        text = file.read()
    for name in ("train", "val"):
        text = text.replace("{folder: %s}" % json.dumps(os.path.join(photos, name)),
                            "{pack: %s}" % json.dumps(os.path.join(packed, name)))
    from_pack = os.path.join(work.name, "from_pack.yaml")
    with open(from_pack, "w") as file:
        file.write(text)
    assert text.count("{pack: ") == 2
    with no_leftovers() as env:
        assert run_job(job, ranks=4, overrides=FAST, env=env).hashes() == hashes
        assert run_job(from_pack, overrides=FAST, env=env).hashes() == hashes
        by_library = run_job(job, overrides=FAST, env=dict(env, PENSTOCK_DECODE="library"))
        assert by_library.hashes() == hashes
        if FULL:
            for threads in (1, 3):
                more = FAST + [f"loader.threads={threads}", "transport=mpi"]
                assert run_job(job, ranks=5, overrides=more, env=env).hashes() == hashes


def test_log_report_and_inspect_say_so():
    with no_leftovers() as env:
        for overrides in ([], FAST):
            result = run(run_words(job, overrides=overrides), 60, env=env)
            assert result.returncode == 0, result.stderr
            shown = result.stdout + result.stderr
            assert ("arithmetic fast: order_hash is promised, pixel_hash is not" in shown) == bool(overrides), shown
    out = os.path.join(work.name, "inspected")
    result = run([PENSTOCK, "inspect", job, *FAST, "--raw", "--steps=99", "--trainers=2", f"--out={out}"], 60)
    assert result.returncode == 0, result.stderr
    assert re.findall(r"_hash ([0-9a-f]{32})", result.stdout) == list(hashes["train"]), (result.stdout, hashes)
    assert "arithmetic fast" in result.stdout


if __name__ == "__main__":
    run_tests(globals())
