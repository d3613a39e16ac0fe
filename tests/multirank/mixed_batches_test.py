"""MixUp and CutMix in a job: what is delivered is the finished pass over the raw samples, mixed by the batch's own draws;
the hashes cover those draws, and neither depends on who loads."""

import os
import struct
import tempfile

import numpy

from jobs import PENSTOCK, demo_photos, run_job, run_tests, skip_without_mpirun, write_job
from leftovers import no_leftovers, run
from stream_hash import read_dump, total

skip_without_mpirun()
work = tempfile.TemporaryDirectory(prefix="mixed_batches_test-")
job = write_job(work.name, demo_photos())
START = "{RandomResizedCrop: {size: 48}}, {ToDtype: {dtype: float32, scale: true}}"
PIPELINE = (f"splits.train.pipeline=[{START}, {{RandomChoice: {{transforms: [{{MixUp: {{alpha: 0.8, num_classes: 5}}}}, "
            "{CutMix: {num_classes: 5}}]}}]")
DUMP = os.path.join(work.name, "dump")
RAW = os.path.join(work.name, "raw")
report = None


def mixed(array, share):
    return numpy.roll(array, 1, 0) * numpy.float32(1 - share) + array * numpy.float32(share)


def test_delivered_is_raw_finished_and_mixed():
    global report
    with no_leftovers() as env:
        report = run_job(job, ranks=4, options=["--epochs=1", f"--dump={DUMP}"], overrides=[PIPELINE], env=env).report
    result = run([PENSTOCK, "inspect", job, "--raw", "--trainers=2", "--steps=3", f"--out={RAW}", PIPELINE], 60)
    assert result.returncode == 0, result.stderr
    raw, delivered = read_dump(RAW), read_dump(os.path.join(DUMP, "train_e0"))
    assert raw.keys() == delivered.keys() and len(raw) == 6
    chosen, shares = set(), set()
    for key, batch in raw.items():
        which, bits, *box = delivered[key].lines[0]["batch_draws"][0][1]
        share = struct.unpack("<d", struct.pack("<q", bits if which == 0 else box[0]))[0]
        images = batch.images.astype(numpy.float32) * numpy.float32(1 / 255)
        labels = numpy.eye(5, dtype=numpy.float32)[batch.labels]
        if which == 0:
            images = mixed(images, share)
        else:
            half = int(0.5 * numpy.sqrt(1 - share) * 48)
            (x1, x2), (y1, y2) = ((max(middle - half, 0), min(middle + half, 48)) for middle in box[1:])
            cut = numpy.roll(images, 1, 0)
            images[:, :, y1:y2, x1:x2] = cut[:, :, y1:y2, x1:x2]
            share = 1 - (x2 - x1) * (y2 - y1) / (48 * 48)
        assert numpy.array_equal(delivered[key].images, images), key
        assert numpy.array_equal(delivered[key].fields["label"], mixed(labels, share)), key
        assert (delivered[key].labels == batch.labels).all()
        chosen.add(which)
        shares.add(share)
    assert chosen == {0, 1} and len(shares) == 6
    assert total(raw.values()) == (report["splits"]["train"]["order_hash"], report["splits"]["train"]["pixel_hash"])
    assert f"order_hash {total(raw.values())[0]}" in result.stdout


def test_whoever_loads_and_whatever_is_drawn():
    hashes = {name: report["splits"]["train"][name] for name in ("order_hash", "pixel_hash")}
    other = os.path.join(work.name, "other")
    with no_leftovers() as env:
        again = run_job(job, ranks=3, options=["--epochs=1", f"--dump={other}"], overrides=[PIPELINE], env=env).report
    assert {name: again["splits"]["train"][name] for name in hashes} == hashes
    for key, batch in read_dump(os.path.join(other, "train_e0")).items():
        assert (batch.images == read_dump(os.path.join(DUMP, "train_e0"))[key].images).all()
    with no_leftovers() as env:  # another alpha: other draws of the batches, and of nothing else
        changed = run_job(job, ranks=3, options=["--epochs=1"], overrides=[PIPELINE.replace("0.8", "0.4")], env=env).report
    assert changed["splits"]["train"]["order_hash"] != hashes["order_hash"]
    assert changed["splits"]["val"]["pixel_hash"] == again["splits"]["val"]["pixel_hash"]


def test_what_cannot_be_mixed_is_refused():
    for overrides, words in (
            ([PIPELINE.replace("num_classes: 5", "num_classes: 2")], ["of sample 'class", "is none of the num_classes: 2", "give num_classes as many"]),
            ([PIPELINE, "splits.train.mode=eval"], ["split 'train'", "MixUp and CutMix are for training"]),
            (["splits.train.pipeline=[{CenterCrop: {size: 8}}, {MixUp: {num_classes: 5}}]"], ["MixUp needs a float tensor"]),
            ([PIPELINE[:-1] + ", {RandomHorizontalFlip: {}}]"], ["'RandomHorizontalFlip' stands after RandomChoice"]),
            ([f"splits.train.pipeline=[{START}, {{RandomChoice: {{transforms: [{{MixUp: {{num_classes: 5}}}}, "
              "{RandomInvert: {}}]}}]"], ["cannot stand beside transforms of samples"])):
        with no_leftovers() as env:
            result = run_job(job, options=["--epochs=1"], overrides=overrides, env=env)
        assert result.code != 0 and all(word in result.stderr for word in words), (words, result.log)


if __name__ == "__main__":
    run_tests(globals())
