"""Datasets and transforms written in Python: the same stream alone and under mpirun, for any number of loaders, threads
and workers; a worker that crashes, hangs or is killed costs nothing but time; what the code raises is told apart from
what happens to it; nothing is left, however the job ends."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from importlib.machinery import SourceFileLoader

import numpy

from jobs import FULL, PENSTOCK, Result, hold_file, left_to_full, mpirun_words, run_job, run_tests, skip_without_mpirun
from leftovers import MARK, no_leftovers, parent_of, python_workers, run
from stream_hash import read_dump, total

SOURCE = os.environ["PENSTOCK_SOURCE"]
os.environ["PENSTOCK_PYTHON"] = sys.executable
# By its file: the package around it needs the compiled part.
PICKLED = os.path.join(SOURCE, "bindings", "python", "penstock", "_pickled.py")
work = tempfile.TemporaryDirectory(prefix="python_dataset_test-")
COUNT = 41

MODULE = '''
import io, os, random, signal, sys, time
import numpy as np
from PIL import Image

class Pictures:
    """Encoded, PIL, gray and RGB pictures by turns, and five fields more, two of them of varying length."""
    classes = ["even", "odd"]

    def __init__(self, count=41, flags="", faults={}, form=None):
        self.count, self.flags, self.faults, self.form = count, flags, {int(k): v for k, v in faults.items()}, form

    def __len__(self):
        return self.count

    def once(self, what):
        """True the first time only, over all processes."""
        try:
            os.close(os.open(os.path.join(self.flags, what), os.O_CREAT | os.O_EXCL))
            return True
        except FileExistsError:
            return False

    def __getitem__(self, i):
        fault = self.faults.get(i)
        if fault == "crash once" and self.once("crashed"):
            print("about to crash", file=sys.stderr)
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "crash":
            os._exit(9)
        if fault == "hang once" and self.once("hung"):
            time.sleep(1000)
        if fault == "raise":
            raise ValueError(f"page {i} is torn")
        if fault == "machine":
            open("/nowhere/at/all")
        if fault == "other field":
            return {"image": np.zeros((30, 30), np.uint8), "extra": 1}
        picture = np.random.RandomState(i).randint(0, 256, (40 + i, 50, 3), np.uint8)
        image = picture
        form = i % 4 if self.form is None else self.form
        if form == 1:
            image = Image.fromarray(picture)
        elif form == 2:
            file = io.BytesIO()
            Image.fromarray(picture).save(file, "png")
            image = file.getvalue()
        elif form == 3:
            image = picture[:, :, 0]
        more = {"note": note(i), "blob": bytes(range(i)) * 100, "weight": np.float32(i / 3)}
        if fault == "long note":
            more["note"] = "x" * 65537
        return {"image": image, "label": i % 2, "box": np.arange(4) + i, "noise": (random.random(), np.random.random()), **more}

def note(i):
    return "" if i % 7 == 0 else "picture %d \u2014 \U0001F600" % i

def pairs(count):
    return [(Image.fromarray(np.full((20, 30, 3), i, np.uint8)), i) for i in range(count)]

def negative(image, rng):
    image = 255 - image
    return image ^ rng.integers(0, 256, image.shape, dtype=np.uint8)

def shrink(image, rng):
    return image[::2]
'''
with open(os.path.join(work.name, "test_pictures.py"), "w") as file:
    file.write(MODULE)


def write_job(name="job.yaml", dataset='{python: "test_pictures:Pictures"}', function="negative", more=""):
    path = os.path.join(work.name, name)
    with open(path, "w") as file:
        file.write(f"""
seed: 7
loader: {{threads: 2}}
python: {{timeout_s: 10}}
{more}
splits:
  train:
    dataset: {dataset}
    pipeline:
      - RandomResizedCrop: {{size: 24}}
      - Python: {{function: "test_pictures:{function}"}}
      - RandomHorizontalFlip: {{}}
      - ToDtype: {{dtype: float32, scale: true}}
    sampler: {{shuffle: true}}
    batch_size: 6
""")
    return path


job = write_job()
expected = None
RAW = os.path.join(work.name, "raw")


def with_faults(faults, **more):
    flags = tempfile.mkdtemp(dir=work.name)
    args = json.dumps(dict({"flags": flags, "faults": {str(k): v for k, v in faults.items()}}, **more))
    return [f"splits.train.dataset.args={args}"]


def test_alone():
    global expected
    with no_leftovers() as env:
        result = run_job(job, options=["--epochs=2", f"--dump={RAW}", "--raw"], env=env)
        report = result.report
    expected = result.hashes()
    assert report["splits"]["train"]["images"] == 2 * COUNT, report
    loader = report["ranks"][-1]  # its threads read nothing but this data set
    assert loader["role"] == "loader" and loader["python_s"] == loader["read_s"] > 0 and loader["cpus"] > 0, loader
    batches = [batch for epoch in range(2) for batch in read_dump(os.path.join(RAW, f"train_e{epoch}")).values()]
    assert total(batches) == expected["train"]
    epochs = []
    for epoch in range(2):
        seen = {}
        for batch in read_dump(os.path.join(RAW, f"train_e{epoch}")).values():
            assert list(batch.fields) == ["blob", "box", "noise", "note", "weight"]
            assert batch.fields["box"].dtype == "int64" and batch.fields["weight"].dtype == "float32"
            for row_index, index in enumerate(batch.indices):
                assert batch.labels[row_index] == index % 2
                assert (batch.fields["box"][row_index] == index + numpy.arange(4)).all()
                assert batch.fields["blob"][row_index] == bytes(range(index)) * 100
                text = "" if index % 7 == 0 else f"picture {index} \u2014 \U0001F600"
                assert batch.fields["note"][row_index].decode() == text == batch.lines[row_index]["text"]["note"]
                seen[int(index)] = tuple(batch.fields["noise"][row_index])
        assert len(seen) == COUNT and len(set(seen.values())) == COUNT
        epochs.append(seen)
    assert epochs[0] != epochs[1], "a dataset's own draws must differ from epoch to epoch"


def test_the_function_gets_the_image_and_the_documented_generator():
    plain = os.path.join(work.name, "plain")
    path = write_job("plain.yaml")
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write("".join(line for line in text.splitlines(True) if "Python:" not in line and "Flip" not in line))
    flipless = os.path.join(work.name, "flipless.yaml")
    with open(flipless, "w") as file:
        file.write("".join(line for line in text.splitlines(True) if "Flip" not in line))
    with no_leftovers() as env:
        assert run_job(path, options=[f"--dump={plain}", "--raw"], env=env).code == 0
        changed = os.path.join(work.name, "changed")
        assert run_job(flipless, options=[f"--dump={changed}", "--raw"], env=env).code == 0
    before, after = (read_dump(os.path.join(folder, "train_e0")) for folder in (plain, changed))
    for key, batch in before.items():
        for row_index, index in enumerate(map(int, batch.indices)):
            line = batch.lines[row_index]
            philox = numpy.random.Philox(counter=numpy.array([0, index | line["occurrence"] << 48, line["epoch"], 1], numpy.uint64),
                                         key=numpy.array([7, 0x70656E73746F636B], numpy.uint64))
            image = 255 - batch.images[row_index].transpose(1, 2, 0)
            image ^= numpy.random.Generator(philox).integers(0, 256, image.shape, dtype=numpy.uint8)
            assert (image.transpose(2, 0, 1) == after[key].images[row_index]).all(), (key, row_index)


def test_decoded_and_encoded_pictures_take_the_same_way():
    seen = set()
    for form in range(3) if FULL else (2,):
        encoded = os.path.join(work.name, f"form{form}")
        with no_leftovers() as env:
            options = [f"--dump={encoded}", "--raw"]
            seen.add(run_job(job, options=options, overrides=with_faults({}, form=form), env=env).hashes()["train"])
    assert len(seen) == 1
    # In test_alone pictures had these forms by turns, and every fourth was gray.
    by_turns, encoded = (read_dump(os.path.join(folder, "train_e0")) for folder in (RAW, encoded))
    compared = 0
    for key, batch in by_turns.items():
        assert list(batch.indices) == list(encoded[key].indices)
        for row_index, index in enumerate(batch.indices):
            if index % 4 != 3:
                assert (batch.images[row_index] == encoded[key].images[row_index]).all(), index
                compared += 1
    assert compared > COUNT / 2, compared


@left_to_full("test_fork_servers_killed_from_outside: the stream by two loaders")
def test_the_same_for_any_loaders_threads_and_workers():
    for ranks, overrides in ((3, []), (2, ["loader.threads=3", "python.workers=1", "transport=mpi", "loader.chunk_samples=2"]),
                             (0, ["loader.threads=1"])):
        with no_leftovers() as env:
            result = run_job(job, ranks=ranks, options=["--epochs=2"], overrides=overrides, env=env)
        assert result.hashes() == expected, (ranks, overrides, result.log)


@left_to_full("dump_hash_test's test_inspect_writes_the_same_files: of files")
def test_inspect_agrees():
    out = os.path.join(work.name, "inspected")
    with no_leftovers() as env:
        result = run([PENSTOCK, "inspect", job, "--raw", "--steps=7", f"--out={out}"], 60, env)
        assert run([PENSTOCK, "check", job, "--decode"], 60, env).returncode == 0
    assert result.returncode == 0, result.stderr
    order, pixel = total(read_dump(out).values())
    assert f"order_hash {order}" in result.stdout and f"pixel_hash {pixel}" in result.stdout
    assert (order, pixel) == total(read_dump(os.path.join(RAW, "train_e0")).values())


def test_one_byte_of_a_field_of_varying_length_is_in_the_hash():
    batches = read_dump(os.path.join(RAW, "train_e0"))
    before = total(batches.values())
    for name in ("blob", "note"):
        values = batches[0, 0].fields[name]
        row_index = max(range(len(values)), key=lambda at: len(values[at]))
        values[row_index] = values[row_index][:-1]
        after = total(batches.values())
        assert after[0] == before[0] and after[1] != before[1], name
        before = after


def test_a_worker_that_crashes_or_hangs_once():
    # The arguments are part of the dataset's fingerprint, not of the hashes.
    says = {"crash once": r"was killed by SIGSEGV", "hang once": r"did not answer within 3 s and was killed by SIGKILL \(by us\)"}
    for ranks, faults in ((3, {17: "crash once"}), (0, {17: "hang once"})) if FULL else ((0, {17: "crash once", 23: "hang once"}),):
        with no_leftovers() as env:
            result = run_job(job, ranks=ranks, options=["--epochs=2"],
                             overrides=[*with_faults(faults), "python.timeout_s=3"], env=env)
        assert result.hashes() == expected, result.log
        for sample, fault in faults.items():
            assert fault != "crash once" or "about to crash" in result.stderr, result.log
            assert re.search(rf"sample {sample}: worker \d+ " + says[fault], result.stderr, re.S), result.log


def test_a_sample_that_always_crashes():
    with no_leftovers() as env:
        result = run_job(job, ranks=2 if FULL else 0, env=env,
                         overrides=[*with_faults({17: "crash"}), "python.attempts=2", "balancer.retry_s=0"])
    assert result.code == 1, result.log
    assert "sample 17 was given up after 2 workers" in result.stderr and "exited with status 9" in result.stderr, result.log


def test_an_exception_makes_the_sample_bad():
    with no_leftovers() as env:
        result = run_job(job, ranks=2 if FULL else 0, overrides=with_faults({17: "raise"}), env=env)
    assert result.code == 4, result.log
    assert "test_pictures:Pictures[17]" in result.stderr and "ValueError: page 17 is torn" in result.stderr, result.log
    assert re.search(r"test_pictures.py:\d+", result.stderr), result.log
    seen = []
    for ranks in (0, 3) if FULL else (0,):
        with no_leftovers() as env:
            faults = with_faults({17: "raise", 3: "other field", 8: "long note"})
            result = run_job(job, ranks=ranks, overrides=[*faults, "on_error=substitute", "bad_samples.max_count=9"], env=env)
        seen.append(result.hashes())
        bad = result.report["splits"]["train"]["bad_samples"]
        assert len(bad) == 3 and "page 17 is torn" in json.dumps(bad) and "extra int64[]" in json.dumps(bad), bad
        assert "field 'note' has 65537 bytes, above limits.max_field_bytes (65536)" in json.dumps(bad), bad
    assert all(one == seen[0] for one in seen)


def test_an_error_of_the_machine_ends_the_job_whatever_on_error_says():
    with no_leftovers() as env:
        result = run_job(job, ranks=2, overrides=[*with_faults({17: "machine"}), "on_error=substitute", "balancer.retry_s=0"], env=env)
    assert result.code == 1 and "sample 17" in result.stderr and "FileNotFoundError" in result.stderr, result.log


@left_to_full("test_an_exception_makes_the_sample_bad: code that returns what does not fit")
def test_a_function_that_changes_the_size():
    path = write_job("shrink.yaml", function="shrink")
    with no_leftovers() as env:
        result = run_job(path, env=env)
    assert result.code == 4 and "returned uint8 [12, 24, 3] for uint8 [24, 24, 3]" in result.stderr, result.log


def test_what_cannot_be_opened():
    cases = [("no_such_module:f", 2, "No module named 'no_such_module'"),
             ("test_pictures:nothing", 0, "module 'test_pictures' has no 'nothing'")]
    for name, ranks, said in cases if FULL else cases[1:]:
        path = write_job("wrong.yaml", dataset='{python: "%s"}' % name)
        with no_leftovers() as env:
            result = run_job(path, ranks=ranks, env=env)
        assert result.code == 4 and said in result.stderr, result.log
    with no_leftovers() as env:
        result = run_job(job, overrides=["python.start_timeout_s=0.01", "python.attempts=1"], env=env)
        assert result.code == 1 and "did not answer within 0.01 s" in result.stderr, result.log


@left_to_full("test_a_pickled_object_of_a_program: tuples")
def test_tuples_and_an_epoch_of_evaluation():
    path = write_job("pairs.yaml", dataset='{python: "test_pictures:pairs", args: {count: 9}}')
    with no_leftovers() as env:
        result = run_job(path, ranks=3, overrides=["splits.train.mode=eval", "splits.train.sampler.shuffle=false"], env=env)
    assert result.report["splits"]["train"]["images"] >= 9


def start_endless(env, ranks):
    words = (mpirun_words(ranks) if ranks else []) + [PENSTOCK, "run", job, "--epochs=100000", "--quiet"]
    process = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, start_new_session=True, text=True)
    deadline = time.monotonic() + 20
    while not python_workers(env[MARK])[0]:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    return process


def kill_while_it_runs(choose, kills):
    """Kills what `choose` gives of (workers, fork servers), as often as that; how often it did, and what the job said. The second
    epoch waits for the first of them (patterns.cpp)."""
    folder = tempfile.mkdtemp(dir=work.name)
    hold = hold_file(folder)
    with no_leftovers() as env:
        words = [*mpirun_words(3), PENSTOCK, "run", job, "--json", "--quiet", "--", os.path.join(os.environ["PENSTOCK_BUILD"], "patterns"),
                 "counted", job, os.path.join(folder, "%r.json")]
        process = subprocess.Popen(words, env=dict(env, PATTERNS_EPOCHS="2"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        killed = 0
        while process.poll() is None and killed < kills:
            for pid in choose(*python_workers(env[MARK]))[:1]:
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
                    if killed == 1:
                        os.remove(hold)
                except ProcessLookupError:
                    pass
            time.sleep(0.05)
        out, err = process.communicate(timeout=60)
        result = Result(subprocess.CompletedProcess(words, process.returncode, out, err))
        assert result.hashes() == expected, result.log
        return killed, result


@left_to_full("test_fork_servers_killed_from_outside, and workers that die of themselves")
def test_workers_killed_from_outside():
    killed, result = kill_while_it_runs(lambda workers, _: workers, 3)
    assert killed and "was killed by SIGKILL" in result.stderr, (killed, result.log)


def test_fork_servers_killed_from_outside():
    killed, result = kill_while_it_runs(lambda _, servers: servers, 2 if FULL else 1)
    assert killed, result.log
    if not FULL:
        return
    killed, result = kill_while_it_runs(lambda workers, servers: servers + workers, 4)
    assert killed, result.log


def test_nothing_is_left_when_loaders_are_killed():
    for ranks in (0, 3) if FULL else (3,):
        with no_leftovers() as env:
            process = start_endless(env, ranks)
            time.sleep(0.2)
            if ranks == 0:
                process.kill()
            else:  # a loader: the parent of a fork server
                os.kill(parent_of(python_workers(env[MARK])[1][0]), signal.SIGKILL)
            process.communicate(timeout=30)
            assert process.returncode != 0
    if not FULL:
        return
    with no_leftovers() as env:
        process = start_endless(env, 0)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def test_a_worker_that_hangs_does_not_outlive_its_loader():
    for number in (signal.SIGKILL, signal.SIGTERM) if FULL else (signal.SIGKILL,):
        flags = tempfile.mkdtemp(dir=work.name)
        args = json.dumps({"flags": flags, "faults": {str(i): "hang once" for i in range(COUNT)}})
        with no_leftovers() as env:
            words = [PENSTOCK, "run", job, "--quiet", f"splits.train.dataset.args={args}", "python.timeout_s=100"]
            process = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            deadline = time.monotonic() + 20
            while not os.listdir(flags):
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.02)
            process.send_signal(number)
            process.wait(30)  # of which grace_s is 5


PROGRAM = '''
import json
from importlib.machinery import SourceFileLoader
dataset_spec = SourceFileLoader("penstock_pickled", {place!r}).load_module().dataset_spec

class Mine:
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, i):
        import numpy
        return numpy.full((20, 20, 3), i, numpy.uint8), i

if __name__ == "__main__":
    print(json.dumps(dataset_spec(Mine(12))))
'''


def test_a_pickled_object_of_a_program():
    program = os.path.join(work.name, "train.py")
    with open(program, "w") as file:
        file.write(PROGRAM.format(place=PICKLED))
    result = run([sys.executable, program], 20)
    assert result.returncode == 0, result.stderr
    path = write_job("pickled.yaml", dataset=result.stdout.strip())
    seen = []
    for ranks in (0, 2) if FULL else (0,):
        with no_leftovers() as env:
            result = run_job(path, ranks=ranks, env=env)
        assert result.report["splits"]["train"]["images"] == 12, result.log
        seen.append(result.hashes())
    assert all(one == seen[0] for one in seen)


def test_what_cannot_be_pickled():
    pickled = SourceFileLoader("penstock_pickled", PICKLED).load_module()

    class Open:
        def __init__(self):
            self.file = open(os.devnull)

        def __len__(self):
            return 1

        def __getitem__(self, i):
            return None

    for wrong, kind, said in ((Open(), pickled.UnpicklableDataset, "Open cannot be pickled"), (3, TypeError, "int has no __len__"),
                              ([random.Random(1).randbytes(800_000)], pickled.UnpicklableDataset, "at most 700,000")):
        try:
            pickled.dataset_spec(wrong)
        except kind as error:
            assert said in str(error), error
        else:
            raise AssertionError(f"{wrong} was accepted")


if __name__ == "__main__":
    skip_without_mpirun()
    run_tests(globals())
