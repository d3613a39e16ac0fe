"""arithmetic: fast and opencv as jobs: one order and, on CPUs, one stream of pixels for any number of loaders, by restart points
from a pack and without; the order of an exact job; and everybody who shows pixels or their hash says what it is."""

import json
import os
import re
import tempfile

import numpy

from jobs import FULL, PENSTOCK, run_job, run_tests, run_words, skip_without_mpirun, write_job
from leftovers import no_leftovers, run

skip_without_mpirun()
work = tempfile.TemporaryDirectory(prefix="arithmetics_test-")
photos = os.path.join(work.name, "photos")
made = run([PENSTOCK, "demo-data", photos, f"--count={16 if FULL else 8}", "--val-count=8", "--classes=2", "--seed=4"], 120)
assert made.returncode == 0, made.stderr
job = write_job(work.name, photos, batch=4)
OPENCV = os.path.exists(os.path.join(os.path.dirname(PENSTOCK), "libpenstock_opencv.so"))
JOBS = {"fast": ["arithmetic=fast"], **({"opencv": ["arithmetic=opencv"], "bgr": ["arithmetic=opencv", "color=bgr"]} if OPENCV else {})}
hashes = {}  # of the first run of each


def test_the_order_is_kept_and_the_report_says_what_it_is():
    with no_leftovers() as env:
        exact = run_job(job, env=env)
        for kind, words in JOBS.items():
            other = run_job(job, overrides=words, env=env)
            for name in ("train", "val"):
                then, now = exact.report["splits"][name], other.report["splits"][name]
                assert (then["arithmetic"], now["arithmetic"]) == ("exact", "fast" if kind == "fast" else "opencv")
                assert then["order_hash"] == now["order_hash"] and then["pixel_hash"] != now["pixel_hash"], (kind, name)
            hashes[kind] = other.hashes()
    assert len({str(one) for one in hashes.values()}) == len(JOBS), hashes


def packed_job():
    """The same with the pictures in packs, which hold restart points."""
    packed = os.path.join(work.name, "packed")
    for name in ("train", "val"):
        result = run([PENSTOCK, "pack", os.path.join(photos, name), os.path.join(packed, name)], 60)
        assert result.returncode == 0, result.stderr
    with open(job) as file:
        text = file.read()
    for name in ("train", "val"):
        text = text.replace("{folder: %s}" % json.dumps(os.path.join(photos, name)),
                            "{pack: %s}" % json.dumps(os.path.join(packed, name)))
    path = os.path.join(work.name, "from_pack.yaml")
    with open(path, "w") as file:
        file.write(text)
    assert text.count("{pack: ") == 2
    return path


def test_the_same_pixels_for_any_loaders_by_either_decoder_and_by_restart_points():
    from_pack = packed_job()
    with no_leftovers() as env:
        for kind, words in JOBS.items():
            if kind == "bgr" and not FULL:
                continue
            if kind == "fast" or FULL:
                assert run_job(job, ranks=4, overrides=words, env=env).hashes() == hashes[kind]
            assert run_job(from_pack, overrides=words, env=env).hashes() == hashes[kind]
            if kind == "fast" or FULL:
                by_library = run_job(job, overrides=words, env=dict(env, PENSTOCK_DECODE="library"))
                assert by_library.hashes() == hashes[kind]
            if FULL:
                for threads in (1, 3):
                    more = words + [f"loader.threads={threads}", "transport=mpi"]
                    assert run_job(job, ranks=5, overrides=more, env=env).hashes() == hashes[kind]


def test_gpus_leave_opencv_and_bgr_to_the_cpu():
    words = ["loader.executor=gpu", "loader.threads=1"]
    for kind, more in JOBS.items():
        if kind == "opencv" or FULL and kind == "bgr":
            with no_leftovers() as env:
                result = run_job(job, overrides=[*more, *words], env={**env, "PENSTOCK_GPUS": "host"})
                assert result.hashes() == hashes[kind], result.log
                without = run(run_words(job, overrides=[*more, *words]), 60, env={**env, "PENSTOCK_GPUS": "none"})
                assert without.returncode == 0, without.stderr  # nobody asks for a GPU then
                said = without.stderr
            assert "which GPUs leave to the CPU: loader.executor" in said, said


def test_log_report_and_inspect_say_so():
    with no_leftovers() as env:
        for overrides in ([], JOBS["fast"]) if FULL else (JOBS["fast"],):
            result = run(run_words(job, overrides=overrides), 60, env=env)
            assert result.returncode == 0, result.stderr
            shown = result.stdout + result.stderr
            assert ("arithmetic fast: order_hash is promised, pixel_hash is not" in shown) == bool(overrides), shown
    sheets = {}
    for kind, words in JOBS.items():
        out = os.path.join(work.name, "inspected_" + kind)
        result = run([PENSTOCK, "inspect", job, *words, "--raw", "--steps=99", "--trainers=2", f"--out={out}"], 60)
        assert result.returncode == 0, result.stderr
        assert re.findall(r"_hash ([0-9a-f]{32})", result.stdout) == list(hashes[kind]["train"]), (result.stdout, hashes)
        assert ("arithmetic fast" in result.stdout) == (kind == "fast")
        with open(os.path.join(out, "contact_sheet.png"), "rb") as file:
            sheets[kind] = file.read()
        sheets[kind + " images"] = [numpy.load(os.path.join(top, name)) for top, _, names in sorted(os.walk(out))
                                    for name in sorted(names) if name.endswith("_images.npy")]
    if OPENCV:
        assert sheets["opencv"] == sheets["bgr"]  # people see the colours as they are
        for one, other in zip(sheets["opencv images"], sheets["bgr images"]):
            assert (one == other[:, ::-1]).all()
        assert sheets["opencv images"]


if __name__ == "__main__":
    run_tests(globals())
