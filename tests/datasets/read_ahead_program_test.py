"""Whole jobs with and without reading ahead: the same hashes by either method, the same complaint about a file that is
gone, and a report that says which method read, and why not the other."""

import ctypes
import json
import os
import shutil
import struct
import sys
import tempfile

import leftovers
from conversions_test import all_forms, write_job
from jobs import PENSTOCK, demo_photos, run_tests

ALWAYS = {**os.environ, "PENSTOCK_READ_AHEAD": "always"}
WAYS = {
    "off": (["loader.read_ahead=0"], None),
    "by itself": ([], None),
    "io_uring": (["loader.read_method=io_uring"], ALWAYS),
    "threads": (["loader.read_method=threads", "loader.read_ahead=3"], ALWAYS),
    "little memory": (["loader.read_ahead_mb=0.05"], ALWAYS),
}


def run(job, *words, env=None, wrap=(), text=False):
    form = [] if text else ["--json", "--quiet"]
    return leftovers.run([*wrap, PENSTOCK, "run", job, *form, "roles.trainers=1", *words], 60, env=env)


def loader_of(report):
    (loader,) = [rank for rank in report["ranks"] if rank["role"] == "loader"]
    return loader["read_ahead"]


def test_same_stream():
    folder = os.path.join(demo_photos(count=24, val_count=8, classes=3), "train")
    compared = 0
    with tempfile.TemporaryDirectory(prefix="read-ahead-") as top:
        forms = all_forms(top, folder)
        for name in ("folder", "tar", "tar.gz", "mds", "tfrecord", "csv"):
            job = write_job(top, forms[name])
            hashes = {}
            for way, (words, env) in WAYS.items():
                result = run(job, "--epochs=2", *words, env=env)
                assert result.returncode == 0, (name, way, result.stderr)
                report = json.loads(result.stdout.splitlines()[-1])
                split = report["splits"]["train"]
                assert split["images"] == 48, (name, way, split)
                hashes[way] = (split["order_hash"], split["pixel_hash"])
                ahead = loader_of(report)
                if way == "off":
                    assert ahead["reads"] == 0, (name, ahead)
                elif way in ("io_uring", "threads") and name != "tar.gz":
                    # Whatever a thread came to before its read had begun it read for itself.
                    assert ahead["taken"] > 0 and ahead["taken"] + ahead["early"] >= 24, (name, way, ahead)
                    assert ahead["method"] == way or "why_threads" in ahead, (name, way, ahead)
                compared += 1
            assert len(set(hashes.values())) == 1, (name, hashes)
    assert compared == 6 * len(WAYS)


def test_a_missing_file_is_named_alike():
    photos = os.path.join(demo_photos(count=24, val_count=8, classes=3), "train")
    with tempfile.TemporaryDirectory(prefix="read-ahead-") as top:
        folder = os.path.join(top, "train")
        shutil.copytree(photos, folder)
        index = os.path.join(top, "x.index")
        made = leftovers.run([PENSTOCK, "index", folder, "--out", index, "--no-headers"], 60)
        assert made.returncode == 0, made.stderr
        job = write_job(top, {"folder": folder, "index": index})
        victim = sorted(os.listdir(os.path.join(folder, "class01")))[2]
        path = os.path.join(folder, "class01", victim)
        said = {}
        # A folder in the file's place: the class folder's time is part of the index, so put it back.
        times = os.stat(os.path.dirname(path))
        os.remove(path)
        os.symlink("nowhere", path)
        os.utime(os.path.dirname(path), ns=(times.st_atime_ns, times.st_mtime_ns))
        for way, (words, env) in WAYS.items():
            result = run(job, "loader.chunk_samples=10", "balancer.retry_s=0", *words, env=env)
            assert result.returncode != 0 and f"cannot open '{path}': No such file or directory" in result.stderr, (way, result.stderr)
            said[way] = result.returncode
        assert len(set(said.values())) == 1, said


def forbid_io_uring():
    """In a child, before it becomes penstock: what seccomp profiles of containers do."""
    number = {"x86_64": 425, "aarch64": 425}[os.uname().machine]
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | 1), (0x06, 0, 0, 0x7FFF0000)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    filter_of = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, filter_of) == 0, ctypes.get_errno()  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    os.execvp(sys.argv[2], sys.argv[2:])


def test_where_a_container_forbids_it():
    folder = os.path.join(demo_photos(count=24, val_count=8, classes=3), "train")
    with tempfile.TemporaryDirectory(prefix="read-ahead-") as top:
        job = write_job(top, {"folder": folder})
        result = run(job, env=ALWAYS, wrap=[sys.executable, os.path.abspath(__file__), "forbid"], text=True)
        assert result.returncode == 0, result.stderr
        lines = [line for line in result.stdout.splitlines() if line.startswith("read ahead: ")]
        assert len(lines) == 1 and lines[0].endswith(" reads by threads (io_uring_setup: Operation not permitted)"), result.stdout
        plain = run(job, "loader.read_ahead=0", text=True)
        assert "read ahead" not in plain.stdout, plain.stdout
        learned = [line for line in plain.stdout.splitlines() if line.startswith("learned: restart points of ")]
        assert len(learned) == 1 and learned[0].endswith(" pictures were decoded from them"), plain.stdout


if __name__ == "__main__":
    if sys.argv[1:2] == ["forbid"]:
        forbid_io_uring()
    sys.exit(run_tests(globals()))
