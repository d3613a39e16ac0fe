"""Anybody can recompute both hashes from dumped batches. `run --dump` under mpirun writes what was delivered; the sums
over it, computed here from the layout in runtime/base/hash.h, are the report's; `inspect` writes the same files; and the
finished tensor is the normalisation of the raw one."""

import filecmp
import os
import tempfile

import numpy

from jobs import FULL, PENSTOCK, demo_photos, run_job, run_tests, skip_without_mpirun, write_job
from leftovers import no_leftovers, run
from stream_hash import read_dump, total

skip_without_mpirun()
work = tempfile.TemporaryDirectory(prefix="dump_hash_test-")
# Three steps and one of 32 of 80 and 26 photos, or by default of 8 of 24 and 6.
VAL_PHOTOS, BATCH = (26, 16) if FULL else (6, 4)
photos = demo_photos() if FULL else demo_photos(24, VAL_PHOTOS, 3)
job = write_job(work.name, photos, batch=BATCH)
RAW = os.path.join(work.name, "raw")
FINISHED = os.path.join(work.name, "finished")
report = None


def test_the_hashes_of_a_raw_dump_are_the_reports():
    global report
    with no_leftovers() as env:
        result = run_job(job, ranks=4, options=["--epochs=2", f"--dump={RAW}", "--raw"], env=env)
        report = result.report
    assert sorted(os.listdir(RAW)) == ["train_e0", "train_e1", "val_e0"]
    train = [*read_dump(os.path.join(RAW, "train_e0")).values(), *read_dump(os.path.join(RAW, "train_e1")).values()]
    val = read_dump(os.path.join(RAW, "val_e0")).values()
    for name, batches in (("train", train), ("val", val)):
        split = report["splits"][name]
        assert total(batches) == (split["order_hash"], split["pixel_hash"]), name
        assert sum(len(batch.lines) for batch in batches) == split["images"]


def test_ranges_are_sums_of_batches():
    dump = read_dump(os.path.join(RAW, "train_e1"))
    for rank in report["ranks"]:
        if rank["role"] != "trainer":
            continue
        ranges = [r for r in rank["splits"]["train"]["ranges"] if r["epoch"] == 1]
        assert [(r["first_step"], r["end_step"]) for r in ranges] == [(0, 3)]
        mine = [batch for (trainer, _), batch in dump.items() if trainer == rank["trainer"]]
        assert len(mine) == 3 and total(mine) == (ranges[0]["order_hash"], ranges[0]["pixel_hash"])


def test_one_flipped_byte_changes_the_pixel_hash():
    batches = read_dump(os.path.join(RAW, "val_e0"))
    before = total(batches.values())
    batches[0, 0].images[1, 1, 20, 20] ^= 1
    after = total(batches.values())
    assert after[0] == before[0] and after[1] != before[1]
    batches[0, 0].labels[1] += 1
    assert total(batches.values())[0] != before[0]


def test_inspect_writes_the_same_files():
    for split, epoch, first, steps in (("train", 0, 0, 3), ("train", 1, 1, 1), ("val", 0, 0, 9)):
        out = os.path.join(work.name, f"inspected_{split}_{epoch}")
        result = run([PENSTOCK, "inspect", job, "--raw", f"--split={split}", f"--epoch={epoch}", f"--first-step={first}",
                      f"--steps={steps}", "--trainers=2", f"--out={out}"], 60)
        assert result.returncode == 0, result.stderr
        delivered = os.path.join(RAW, f"{split}_e{epoch}")
        names = sorted(name for name in os.listdir(out) if name.endswith(".npy"))
        assert names and (steps == 1 or names == sorted(n for n in os.listdir(delivered) if n.endswith(".npy")))
        same, other, missing = filecmp.cmpfiles(out, delivered, names, shallow=False)
        assert same == names and not other and not missing, (other, missing)
        with open(os.path.join(out, "manifest.jsonl")) as file:
            inspected = set(file)
        with open(os.path.join(delivered, "manifest.jsonl")) as file:
            assert inspected <= set(file)
        order, pixel = total(read_dump(out).values())
        assert f"order_hash {order}" in result.stdout and f"pixel_hash {pixel}" in result.stdout
        with open(os.path.join(out, "contact_sheet.png"), "rb") as file:
            assert file.read(8) == b"\x89PNG\r\n\x1a\n"


def test_the_manifest_names_what_was_delivered():
    for batch in read_dump(os.path.join(RAW, "train_e0")).values():
        for row_index, line in enumerate(batch.lines):
            assert line["label"] == batch.labels[row_index] and line["index"] == batch.indices[row_index]
            assert line["path"].split("/")[0] == sorted(os.listdir(photos + "/train"))[line["label"]]
            x, y, w, h = line["crop"]
            assert 0 <= x and x + w <= line["width"] and 0 <= y and y + h <= line["height"] and w > 0 and h > 0
            assert line["flip"] in ([0, 0], [1, 0])
            assert line["valid"] is True


def test_an_exact_evaluation():
    valid = [line for batch in read_dump(os.path.join(RAW, "val_e0")).values() for line in batch.lines if line["valid"]]
    padding = [line for batch in read_dump(os.path.join(RAW, "val_e0")).values() for line in batch.lines if not line["valid"]]
    assert sorted(line["index"] for line in valid) == list(range(VAL_PHOTOS))
    assert len(padding) == 2 * BATCH - VAL_PHOTOS > 0 and all(line["label"] == -100 for line in padding)


def test_finished_is_the_normalised_raw():
    with no_leftovers() as env:
        result = run_job(job, ranks=3 if FULL else 0, options=["--epochs=1", f"--dump={FINISHED}"], env=env)
        assert result.report["splits"]["val"]["pixel_hash"] == report["splits"]["val"]["pixel_hash"]
    mean = numpy.array([0.485, 0.456, 0.406], numpy.float32).reshape(3, 1, 1)
    std = numpy.array([0.229, 0.224, 0.225], numpy.float32).reshape(3, 1, 1)
    for name in ("train_e0", "val_e0"):
        raw, finished = read_dump(os.path.join(RAW, name)), read_dump(os.path.join(FINISHED, name))
        assert raw.keys() == finished.keys() and raw
        for key, batch in raw.items():
            wanted = (batch.images.astype(numpy.float32) / numpy.float32(255) - mean) / std
            got = finished[key].images
            assert got.dtype == numpy.float32 and got.shape == wanted.shape
            worst = numpy.abs(got - wanted).max()
            assert worst <= 1e-6, f"{name} {key}: {worst}"
            assert (finished[key].labels == batch.labels).all() and (finished[key].indices == batch.indices).all()


def test_a_dump_is_not_added_to_another():
    for ranks in (0, 3) if FULL else (0,):
        with no_leftovers() as env:
            result = run_job(job, ranks=ranks, options=[f"--dump={RAW}"], env=env)
        assert result.code == 2 and f"'{RAW}' has a dump in it already: 'train_e0'" in result.stderr, result.log
        assert result.stderr.count("has a dump") == 1, result.log  # not once a rank
    os.makedirs(os.path.join(work.name, "beside", "train_e0"))  # a folder that is no dump is in nobody's way
    assert run_job(job, options=[f"--dump={work.name}/beside"]).code == 0


def test_two_jobs_side_by_side_do_not_share_a_dump():
    import fcntl
    shared = os.path.join(work.name, "shared")
    os.makedirs(shared)
    held = os.open(shared, os.O_RDONLY)  # as a job does while it runs
    fcntl.flock(held, fcntl.LOCK_EX)
    for ranks in (0, 3) if FULL else (0,):
        with no_leftovers() as env:
            result = run_job(job, ranks=ranks, options=[f"--dump={shared}"], env=env)
        assert result.code == 2 and f"another job dumps to the folder '{shared}'" in result.stderr, result.log
    os.close(held)
    assert os.listdir(shared) == [] and run_job(job, options=[f"--dump={shared}"]).code == 0


def test_a_batch_that_comes_twice_is_dumped_once():
    out = os.path.join(work.name, "twice")
    consume = [os.path.join(os.environ["PENSTOCK_BUILD"], "consume"), job, "--epochs=1"]
    for ranks in (0, 3) if FULL else (0,):
        with no_leftovers() as env:
            result = run_job(job, ranks=ranks, options=[f"--dump={out}{ranks}", "--raw"], env=env,
                             program=["sh", "-c", f"{' '.join(consume)} >/dev/null && exec {' '.join(consume)} >/dev/null"])
        assert result.code == 0, result.log
        assert result.report["splits"]["val"]["images"] == 2 * report["splits"]["val"]["images"], result.log
        once = total(read_dump(os.path.join(f"{out}{ranks}", "val_e0")).values())
        assert once == (report["splits"]["val"]["order_hash"], report["splits"]["val"]["pixel_hash"])


def test_a_dump_that_cannot_be_written():
    blocked = os.path.join(work.name, "a_file")
    open(blocked, "w").close()
    for ranks in (0, 3) if FULL else ():  # bad_input_test has the same
        with no_leftovers() as env:
            result = run_job(job, ranks=ranks, options=[f"--dump={blocked}"], env=env)
        assert result.code == 1 and "a_file" in result.stderr, result.log
    # Only trainer 1 meets this one, in its own process: the job says so all the same.
    for ranks in (0, 3) if FULL else (3,):
        taken = os.path.join(work.name, f"taken{ranks}")
        os.makedirs(os.path.join(taken, "train_e0", "t1_s0_images.npy"))
        with no_leftovers() as env:
            result = run_job(job, ranks=ranks, options=[f"--dump={taken}"], env=env)
        assert result.code == 1 and "t1_s0_images.npy" in result.stderr, result.log
        assert "penstock: trainer 1" in result.stderr and "lost" not in result.stderr, result.log


if __name__ == "__main__":
    run_tests(globals())
