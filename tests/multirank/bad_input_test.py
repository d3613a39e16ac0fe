"""Bad input never crashes or hangs a job. Under on_error: fail the job ends within seconds by an error that names the
file; under substitute another sample stands in, the same one whoever makes it, and the report lists it once; in an exact
evaluation it is masked. Each in one process and under mpirun. And 0, 0.1, 10 and 100 % of bad samples; the table of
tests/README.md is printed by

    PENSTOCK_BUILD=build/release PYTHONPATH=tests/support /usr/bin/python3 tests/multirank/bad_input_test.py --table"""

import functools
import json
import os
import resource
import shutil
import sys
import tempfile
import time

from jobs import FULL, PENSTOCK, demo_photos, hold_file, left_to_full, run_job, run_tests, skip_without_mpirun, write_job
from leftovers import BUSY_S, no_leftovers, run

skip_without_mpirun()
PATTERNS = os.path.join(os.environ["PENSTOCK_BUILD"], "patterns")
WAYS = (0, 3, 5) if FULL else (0, 3)  # ranks; 0: one process
LARGE = FULL or "--table" in sys.argv
work = tempfile.TemporaryDirectory(prefix="bad_input_test-")


def jpeg_header(width, height):
    """A JPEG that claims this size: SOI, SOF0 of three components, SOS, and nothing of the pixels."""
    sof = bytes([0xFF, 0xC0, 0, 17, 8]) + height.to_bytes(2, "big") + width.to_bytes(2, "big") + bytes(
        [3, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0])
    sos = bytes([0xFF, 0xDA, 0, 12, 3, 1, 0, 2, 0, 3, 0, 0, 63, 0])
    return b"\xff\xd8" + sof + sos + bytes(64)


def png_header(width, height):
    import struct
    import zlib
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))


def truncated(path):
    with open(path, "rb") as file:
        data = file.read()
    return data[: len(data) // 3]


# name -> contents, given a good photo to spoil
SPOILT = {
    "empty.jpg": lambda photo: b"",
    "text.jpg": lambda photo: b"This is not a picture.\n" * 40,
    "truncated.jpg": truncated,
    "huge.jpg": lambda photo: jpeg_header(65535, 65535),
    "huge.png": lambda photo: png_header(2**31 - 1, 2**31 - 1),
    "only_a_header.jpg": lambda photo: jpeg_header(300, 200),
}


def spoil(split_folder, names):
    """Puts spoilt files into a class of a Case; gives their keys."""
    cls = sorted(os.listdir(split_folder))[1]
    photos = os.path.join(demo_photos(), os.path.basename(split_folder), cls)
    photo = os.path.join(photos, sorted(os.listdir(photos))[0])
    for name in names:
        with open(os.path.join(split_folder, cls, name), "wb") as file:
            file.write(SPOILT[name](photo))
    return [f"{cls}/{name}" for name in names]


@functools.cache
def made_once(way, number):
    """The path of a file to be linked to, which takes a fiftieth of the time that writing it again would: a tiny picture, or photo
    `number` spoilt in that way."""
    path = os.path.join(work.name, f"made_once_{way}_{number}")
    with open(path, "wb") as file:
        file.write(SPOILT[way](photos()[number]) if way in SPOILT else
                   b"P6 40 30 255\n" + bytes((number * 7 + i * i) % 251 for i in range(3600)))
    return path


@functools.cache
def photos():
    return [os.path.join(folder, name) for folder, _, names in os.walk(os.path.join(demo_photos(), "train")) for name in sorted(names)]


@functools.cache
def pictures():
    """Photos, or by default as many pictures of a few pixels in classes of the same names: it is bad files that are looked at here,
    and most of a job's time would be decoding good ones."""
    if FULL:
        return demo_photos()
    top = os.path.join(work.name, "pictures")
    for split, count in (("train", 80), ("val", 26)):
        for number in range(count):
            folder = os.path.join(top, split, f"class{number % 4:02}")
            os.makedirs(folder, exist_ok=True)
            os.link(made_once("tiny", number % 50), os.path.join(folder, f"{number:06}.ppm"))
    return top


class Case:
    """A copy of the pictures that a test may spoil, and its job."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(dir=work.name)
        self.photos = os.path.join(self.folder, "photos")
        shutil.copytree(pictures(), self.photos, copy_function=shutil.copy2 if FULL else os.link)
        self.train = os.path.join(self.photos, "train")
        self.val = os.path.join(self.photos, "val")
        self.job = write_job(self.folder, self.photos)

    def run(self, ranks, overrides=(), **kwargs):
        with no_leftovers() as env:
            return run_job(self.job, ranks=ranks, overrides=["balancer.retry_s=0.5", *overrides], env=env, timeout=25 + BUSY_S, **kwargs)


def check_error(result, code, *words):
    assert result.code == code, result.log
    for word in words:
        assert word in result.stderr, f"'{word}' is missing: {result.log}"
    assert result.stdout == "", result.log
    assert "terminate called" not in result.stderr and "Segmentation" not in result.stderr, result.log


def test_no_folder_no_class_no_picture():
    for ranks in WAYS:
        case = Case()
        shutil.rmtree(case.val)
        check_error(case.run(ranks), 4, case.val, "does not exist")
        os.mkdir(case.val)
        if ranks != 0 and not FULL:
            continue  # a failing mpirun takes two seconds to go, and what follows goes the same way
        check_error(case.run(ranks), 4, case.val, "is empty")
        os.mkdir(os.path.join(case.val, "a_class"))
        check_error(case.run(ranks), 4, case.val, "a_class", "no image")
        shutil.rmtree(case.train)
        open(case.train, "w").close()
        check_error(case.run(ranks), 4, case.train, "is a file")


def test_each_spoilt_file_ends_the_job_by_name():
    for name in SPOILT:
        case = Case()
        key, = spoil(case.train, [name])
        # Under mpirun for one of them by default: the status is the same function, and starting costs a second.
        for ranks in WAYS if FULL or name == "truncated.jpg" else (0,):
            check_error(case.run(ranks), 4, f"'{key}'", case.train, "on_error: substitute")
        # `inspect` and `check` say the same without a job.
        result = run([PENSTOCK, "check", case.job, "--decode"], 30)
        assert result.returncode == 4 and f"'{key}'" in result.stdout, result.stdout + result.stderr
        if FULL or name in ("truncated.jpg", "huge.png"):
            result = run([PENSTOCK, "inspect", case.job, "--steps=9", f"--out={case.folder}/out"], 30)
            assert result.returncode == 4 and f"'{key}'" in result.stderr, result.stdout + result.stderr


def test_a_program_meets_the_error_at_its_batch():
    case = Case()
    key, = spoil(case.train, ["truncated.jpg"])
    result = case.run(3, program=[PATTERNS, "all", case.job, os.path.join(case.folder, "%r.json")])
    check_error(result, 1, f"unusable sample '{key}'", "exited with status 4")  # the program's own exit code


def test_substitutes_are_the_same_whoever_makes_them():
    case = Case()
    keys = spoil(case.train, SPOILT)
    seen = []
    ways = [(0, ["loader.threads=1"]), (5, ["transport=mpi", "balancer.policy=random"])]
    for ranks, overrides in [*ways, (3, [])] if FULL else ways:
        result = case.run(ranks, ["on_error=substitute", *overrides], options=["--epochs=2"])
        report = result.report
        bad = report["splits"]["train"]["bad_samples"]
        for epoch in (0, 1):
            mine = [b for b in bad if b["epoch"] == epoch]
            # Once each, but for those that padding repeats, which are samples of their own position.
            assert {b["path"] for b in mine} == set(keys), mine
            assert len({b["position"] for b in mine}) == len(mine)
            assert all(b["reason"] and b["substitute"] is not None for b in mine), mine
        seen.append((result.hashes(), bad))
    assert all(one == seen[0] for one in seen) and len(seen) > 1, seen
    # The other split's stream does not move.
    assert seen[0][0]["val"] == run_job(write_job(case.folder, pictures(), name="clean.yaml")).hashes()["val"]


def test_the_substitute_is_marked_and_usable():
    case = Case()
    keys = spoil(case.train, SPOILT)
    out = os.path.join(case.folder, "dump")
    case.run(3, ["on_error=substitute"], options=[f"--dump={out}", "--raw"]).report
    with open(os.path.join(out, "train_e0", "manifest.jsonl")) as file:
        lines = [json.loads(text) for text in file]
    replaced = [line for line in lines if line["reason"]]
    assert {line["planned_path"] for line in replaced} == set(keys)
    for line in replaced:
        assert line["index"] != line["planned_index"] and line["valid"] and line["label"] >= 0 and line["crop"]


def test_evaluation_masks_and_counts_exactly():
    case = Case()
    keys = spoil(case.val, SPOILT)
    good = sum(len(files) for _, _, files in os.walk(case.val)) - len(keys)
    hashes = []
    for ranks in (0, 3, 5) if FULL else (0, 3):
        out = os.path.join(case.folder, f"dump{ranks}")
        result = case.run(ranks, ["on_error=substitute"], options=[f"--dump={out}", "--raw"])
        bad = result.report["splits"]["val"]["bad_samples"]
        assert sorted(b["path"] for b in bad) == sorted(keys), bad
        assert all(b["substitute"] is None for b in bad)
        with open(os.path.join(out, "val_e0", "manifest.jsonl")) as file:
            lines = [json.loads(text) for text in file]
        valid = [line for line in lines if line["valid"]]
        assert len(valid) == good and len({line["index"] for line in valid}) == good
        assert all(line["label"] == -100 for line in lines if not line["valid"])
        hashes.append(result.hashes())
    assert all(one == hashes[0] for one in hashes) and len(hashes) > 1, hashes


@left_to_full("test_shares_of_bad_samples: a budget that ends at its last sample")
def test_a_budget_of_substitutes():
    case = Case()
    spoil(case.train, SPOILT)
    for ranks in WAYS:
        result = case.run(ranks, ["on_error=substitute", "bad_samples.max_count=1", "bad_samples.max_fraction=0"])
        check_error(result, 4, "more than 1 samples", "train")


@left_to_full("test_all_samples_bad: spoilt in every way, empty among them")
def test_nothing_is_usable():
    case = Case()
    for folder, _, files in os.walk(case.train):
        for name in files:
            os.remove(os.path.join(folder, name))  # others have links to it
            open(os.path.join(folder, name), "w").close()
    for ranks in WAYS:
        result = case.run(ranks, ["on_error=substitute"])
        check_error(result, 4, "substitutes")


class Share:
    """1,000 samples (400 by default) in two classes, evenly spread bad ones among them in every way of SPOILT. The good ones are links to
    the demo photos, or with `tiny` pictures of a few pixels, so that a run takes a moment."""

    SAMPLES = 1000 if LARGE else 400  # more than a budget of 100 a trainer, which no share makes larger
    TENTH = SAMPLES // 10
    JOB = """\
seed: 3
roles: {trainers: 2}
loader: {threads: 2, memory_gb: 0.25}
trainer: {timeout_s: 30, grace_s: 2}
splits:
"""
    SPLIT = """\
  {mode}:
    mode: {mode}
    dataset: {{folder: {folder}}}
    pipeline:
{pipeline}
    sampler: {{shuffle: {shuffle}}}
    batch_size: 25
    tail: pad
"""
    PIPELINES = {"train": "      - RandomResizedCrop: {{size: {size}}}\n      - RandomHorizontalFlip: {{}}",
                 "eval": "      - Resize: {{size: {size}}}\n      - CenterCrop: {{size: {size}}}"}

    def __init__(self, bad, tiny=True):
        self.folder = tempfile.mkdtemp(dir=work.name)
        data = os.path.join(self.folder, "data")
        ways = sorted(SPOILT)
        self.bad = []
        for label in "ab":
            os.makedirs(os.path.join(data, label))
        for number in range(self.SAMPLES):
            key = f"{'ab'[number % 2]}/{number:04}"
            if (number + 1) * bad // self.SAMPLES > number * bad // self.SAMPLES:
                way = ways[len(self.bad) % len(ways)]
                key += os.path.splitext(way)[1]
                self.bad.append(key)
                os.link(made_once(way, number % len(photos()) if LARGE else 0), os.path.join(data, key))
            elif tiny:
                os.link(made_once("tiny", number % (251 if LARGE else 50)), os.path.join(data, key + ".ppm"))
            else:
                shutil.copy(photos()[number % len(photos())], os.path.join(data, key + ".jpg"))
        assert len(self.bad) == bad
        splits = {mode: self.SPLIT.format(mode=mode, folder=json.dumps(data), shuffle=shuffle,
                                          pipeline=self.PIPELINES[mode].format(size=24 if tiny else 224))
                  for mode, shuffle in (("train", "true"), ("eval", "false"))}
        self.jobs = {}
        for name, text in (*splits.items(), ("both", "".join(splits.values()))):
            self.jobs[name] = os.path.join(self.folder, name + ".yaml")
            with open(self.jobs[name], "w") as file:
                file.write(self.JOB + text)

    def run(self, mode, ranks, *overrides, options=()):
        """The result of the job of one mode, or of both; its `seconds` are those of the whole run."""
        with no_leftovers() as env:
            began = time.monotonic()
            result = run_job(self.jobs[mode], ranks=ranks, overrides=overrides, options=options, env=env, timeout=60)
            result.seconds = time.monotonic() - began
            return result

    def listed(self, result, mode):
        """What the report lists: every bad sample once, with a reason, and nothing else."""
        split = result.report["splits"][mode]
        bad = split["bad_samples"]
        assert split["images"] == self.SAMPLES and split["batches"] == self.SAMPLES // 25, split
        assert sorted(b["path"] for b in bad) == sorted(self.bad), bad[:3]
        assert len({b["position"] for b in bad}) == len(bad) and all(b["reason"] for b in bad)
        assert all((b["substitute"] is None) == (mode == "eval") for b in bad)
        return result


ANY_NUMBER = "bad_samples.max_fraction=1"


def print_table():
    """1,000 photos, RandomResizedCrop or CenterCrop of 224 pixels, two trainers; in one process, with one loader, with
    two."""
    print("| bad | mode | on_error | exit | images | listed | 1 and 2 loaders | CPU seconds | the job ends with |")
    print("|---|---|---|---|---|---|---|---|---|")
    for bad in (0, 1, 100, 570, 1000):
        share = Share(bad, tiny=False)
        for mode in ("train", "eval"):
            for on_error in ("fail", "substitute"):
                results, cpu = [], []
                for ranks in (0, 0, 0, 3, 4):
                    before = resource.getrusage(resource.RUSAGE_CHILDREN)
                    budget = [ANY_NUMBER] if mode == "eval" or bad == 570 else []
                    results.append(share.run(mode, ranks, f"on_error={on_error}", *budget))
                    after = resource.getrusage(resource.RUSAGE_CHILDREN)
                    cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
                assert len({one.code for one in results}) == 1, [one.code for one in results]
                images = listed = same = "-"
                if results[0].code == 0:
                    split = share.listed(results[0], mode).report["splits"][mode]
                    images, listed = split["images"], len(split["bad_samples"])
                    same = "same hashes" if len({str(one.hashes()) for one in results}) == 1 else "OTHER HASHES"
                words = [line for line in results[0].stderr.splitlines() if line.startswith("penstock: ")][:1]
                says = words[0][10:].replace(share.folder, "…") if words else "its report"
                print(f"| {bad / 10:g} % | {mode} | {on_error} | {results[0].code} | {images} | {listed} | {same} | "
                      f"{sorted(cpu[:3])[1]:.2f} | {says} |", flush=True)


def test_shares_of_bad_samples():
    """The table of tests/README.md, small: each share, `fail` and `substitute`, training and evaluation, in one process
    and by one to three loaders. Same hashes, same list, exact counts, and a budget that ends at its last sample."""
    seen = []
    for bad in (0, 1, Share.TENTH, Share.SAMPLES) if FULL else (0, Share.TENTH, Share.SAMPLES):
        share = Share(bad)
        for mode in ("train", "eval"):
            for ranks in (0, 3, 4, 5) if FULL else (0,):  # a failing mpirun takes two seconds to go
                result = share.run(mode, ranks, "on_error=fail")
                if bad == 0:
                    share.listed(result, mode)
                    continue
                check_error(result, 4, "unusable sample '", os.path.dirname(share.jobs[mode]), "on_error: substitute")
                assert any(f"'{key}'" in result.stderr for key in share.bad), result.log
        # Training has nothing to substitute when all are bad: test_all_samples_bad.
        modes = ["eval"] if bad == Share.SAMPLES else ["train", "eval"]
        job = modes[0] if len(modes) == 1 else "both"
        alone = share.run(job, 0, "on_error=substitute", "loader.threads=1", ANY_NUMBER)
        lists, most = {}, 0
        for mode in modes:
            share.listed(alone, mode)
            lists[mode] = alone.report["splits"][mode]["bad_samples"]
            counts = [sum(one["position"] % 2 == trainer for one in lists[mode]) for trainer in (0, 1)]
            assert sum(counts) == bad
            most = max(most, *counts)
        for loaders in (1, 2, 3) if FULL else (3,) if bad == Share.TENTH else ():
            result = share.run(job, 2 + loaders, "on_error=substitute", *budget(most))
            assert result.hashes() == alone.hashes(), f"{bad} bad, {loaders} loaders: {result.log}"
            for mode in modes:
                assert share.listed(result, mode).report["splits"][mode]["bad_samples"] == lists[mode]
            assert result.seconds < 20, result.seconds
        for ranks in ((0, 3, 4, 5) if FULL else (0,)) if bad else ():
            check_error(share.run(job, ranks, "on_error=substitute", *budget(most - 1)), 4, f"more than {most - 1} samples")
        seen += [(mode, alone.hashes()[mode]) for mode in modes]
    assert len(set(seen)) == len(seen) == (7 if FULL else 5), seen  # every share has a stream of its own


def budget(count):
    """So many of each trainer's samples of a split and epoch, and no share of them."""
    return "bad_samples.max_fraction=0", f"bad_samples.max_count={count}"


def test_more_bad_samples_than_good_ones():
    share = Share(Share.SAMPLES * 57 // 100)
    hashes = set()
    for ranks in (0, 3, 4, 5) if FULL else (0, 4):
        result = share.listed(share.run("train", ranks, "on_error=substitute", ANY_NUMBER), "train")
        hashes.add(str(result.hashes()))
        assert result.seconds < 20, result.seconds
    assert len(hashes) == 1, hashes


def test_all_samples_bad():
    share = Share(Share.SAMPLES)
    for ranks in (0, 3, 4) if FULL else (0, 4):
        result = share.run("train", ranks, "on_error=substitute", ANY_NUMBER)
        check_error(result, 4, "unusable sample '", f"none of {Share.SAMPLES - 1} substitutes is usable", "repair or remove the files")
        assert "on_error: substitute" not in result.stderr, result.log  # it is set
        assert result.seconds < 15, result.seconds
    # The budget of 1 %, at least 100: the stream ends at the first batch beyond it, in both modes.
    check_error(share.run("eval", 0, "on_error=substitute"), 4, "more than 100 samples", "split 'eval'", "max_fraction")


def test_check_and_inspect_foresee_it():
    for bad, complaints in ((1, (None, None)), (Share.SAMPLES, ("more than bad_samples allows: 100 for", "none of the samples is"))):
        share = Share(bad)
        for mode, complaint in zip(("eval", "train"), complaints):
            result = run([PENSTOCK, "check", share.jobs[mode], "--decode", "--most=0", "on_error=substitute"], 30)
            assert f" {bad} unusable" in result.stdout, result.stdout
            assert result.returncode == (4 if complaint else 0), result.stdout + result.stderr
            assert not complaint or complaint in result.stdout, result.stdout
            end = f"check: not fine: split {mode} has unusable samples\n" if complaint else "check: fine\n"
            assert result.stdout.endswith(end), result.stdout
    out = os.path.join(share.folder, "out")
    result = run([PENSTOCK, "inspect", share.jobs["train"], "--steps=1", f"--out={out}", "on_error=substitute"], 30)
    assert result.returncode == 4 and f"none of {Share.SAMPLES - 1} substitutes is usable" in result.stderr, result.stderr
    assert "on_error: substitute" not in result.stderr, result.stderr
    result = run([PENSTOCK, "inspect", share.jobs["eval"], "--split=eval", "--steps=1", f"--out={out}",
                  "on_error=substitute"], 30)
    assert result.returncode == 0 and "50 unusable samples" in result.stdout + result.stderr, result.stdout
    result = run([PENSTOCK, "bench", share.jobs["train"], "--seconds=0.2"], 30)
    assert result.returncode == 0 and "samples are unusable" in result.stdout, result.stdout + result.stderr


def test_a_budget_by_share_is_exact():
    share = Share(Share.TENTH)
    report = share.listed(share.run("train", 0, "on_error=substitute"), "train").report
    positions = [bad["position"] % 2 for bad in report["splits"]["train"]["bad_samples"]]
    fraction = max(positions.count(0), positions.count(1)) / (Share.SAMPLES / 2)
    for more, code in ((0, 0), (-1 / (Share.SAMPLES / 2), 4)):
        result = share.run("train", 0, "on_error=substitute", f"bad_samples.max_fraction={fraction + more}",
                           "bad_samples.max_count=0")
        assert result.code == code, result.log


def test_good_places_stay_as_they_are():
    # What stands in for a bad sample does not move the others: of a clean and a tenth-bad data set of the same names
    # the dumps differ where a substitute stands, and nowhere else.
    lines = {}
    for bad in (0, Share.TENTH):
        share = Share(bad)
        out = os.path.join(share.folder, "dump")
        share.run("train", 0, "on_error=substitute", options=[f"--dump={out}", "--raw"]).report
        with open(os.path.join(out, "train_e0", "manifest.jsonl")) as file:
            lines[bad] = {line["position"]: line for line in map(json.loads, file)}
    assert len(lines[0]) == len(lines[Share.TENTH]) == Share.SAMPLES
    for position, line in lines[Share.TENTH].items():
        clean = lines[0][position]
        assert line["planned_index"] == clean["planned_index"]
        if line["reason"]:
            assert line["index"] != clean["index"] and line["valid"]
        else:
            assert all(line[key] == clean[key] for key in ("index", "hash_draws", "path"))


def test_a_folder_named_like_a_picture():
    # As for torchvision's ImageFolder it is a folder, and what lies in it belongs to the class.
    case = Case()
    cls = os.path.join(case.train, sorted(os.listdir(case.train))[0])
    os.mkdir(os.path.join(cls, "x.jpg"))
    assert case.run(3 if FULL else 0).hashes() == run_job(write_job(case.folder, pictures(), name="clean.yaml")).hashes()


def test_a_file_that_vanishes_in_the_middle():
    # An error of the environment says nothing about the sample: tried again elsewhere, then the job fails by name,
    # under either on_error. Another trainer's program removes the file when the first batch has come.
    for ranks, on_error in ((0, "fail"), (3, "fail"), (4, "substitute")) if FULL else ((4, "substitute"),):
        case = Case()
        remove = ("import os, subprocess, sys\n"
                  "program = subprocess.Popen(sys.argv[3:], stdout=subprocess.PIPE, text=True)\n"
                  "program.stdout.readline()\n"
                  "for path in [*(os.path.join(sys.argv[1], name) for name in os.listdir(sys.argv[1])), sys.argv[2]]:\n"
                  "    try: os.remove(path)\n"
                  "    except FileNotFoundError: pass\n"
                  "sys.exit(program.wait())\n")
        cls = os.path.join(case.train, sorted(os.listdir(case.train))[2])
        result = case.run(ranks, [f"on_error={on_error}"],
                          program=[sys.executable, "-c", remove, cls, hold_file(case.folder), PATTERNS, "long", case.job,
                                   os.path.join(case.folder, "%r.json"), f"on_error={on_error}"])
        check_error(result, 1, cls, "No such file")


def test_a_folder_that_comes_back():
    # What a network disk does when its server starts again: files are not there for a while. The stream is the same.
    away = ("import os, subprocess, sys, time\n"
            "program = subprocess.Popen(sys.argv[3:], stdout=subprocess.PIPE, text=True)\n"
            "program.stdout.readline()\n"
            "if os.environ.get('RANK', '0') == '0':\n"
            "    os.rename(sys.argv[1], sys.argv[1] + '.away')\n"
            "    os.remove(sys.argv[2])\n"
            "    time.sleep(1.5)\n"
            "    os.rename(sys.argv[1] + '.away', sys.argv[1])\n"
            "sys.exit(program.wait())\n")
    for ranks in (0, 4) if FULL else (4,):
        case = Case()
        program = [PATTERNS, "long", case.job, os.path.join(case.folder, "%r.json")]
        cls = os.path.join(case.train, sorted(os.listdir(case.train))[2])
        # Without the program where that need not be shown: its ten epochs, read at once.
        expected = (case.run(ranks, program=program) if FULL else case.run(0, options=["--epochs=10"])).hashes()["train"]
        result = case.run(ranks, ["balancer.retry_s=15"], program=[sys.executable, "-c", away, cls, hold_file(case.folder), *program])
        assert result.hashes()["train"] == expected, result.log
        assert "is tried again" in result.stderr and "No such file" in result.stderr, result.log


def failing_file():
    """A file of some size that opens, and whose read(2) fails: what a broken disk looks like from here. The kernel has such
    files: the speed of the loopback interface is not known, and reading it is an error."""
    for path in ("/sys/class/net/lo/speed", "/sys/class/net/lo/phys_switch_id"):
        if not os.path.exists(path) or os.stat(path).st_size == 0:
            continue
        with open(path, "rb", buffering=0) as file:
            try:
                file.read()
            except OSError as error:
                return path, error.strerror
    raise AssertionError("this kernel has no file whose read fails")


def test_a_file_whose_read_fails():
    # It says nothing about the sample, so nothing stands in for it; tried again, then the job fails and names the file.
    # With two loaders and two trainers: in the middle of everybody's work.
    target, problem = failing_file()
    for ranks, on_error in ((0, "fail"), (3, "substitute"), (4, "fail"), (4, "substitute")) if FULL else (
            (4, "substitute"),):
        case = Case()
        cls = sorted(os.listdir(case.train))[1]
        path = os.path.join(case.train, cls, "x.jpg")
        os.symlink(target, path)
        result = case.run(ranks, [f"on_error={on_error}"])
        check_error(result, 1, f"cannot read '{path}'", problem, "rank 2 (loader)" if ranks == 3 else "(loader)")
        result = run([PENSTOCK, "check", case.job], 30)
        assert result.returncode == 1 and path in result.stdout and problem in result.stdout, result.stdout + result.stderr


def test_a_dump_that_cannot_be_written():
    # The cause comes first, and is what the job ends with; the programs are only told that it is over. (Lines of
    # several ranks reach mpirun in no order.)
    for ranks in WAYS:
        case = Case()
        blocked = os.path.join(case.folder, "a_file")
        open(blocked, "w").close()
        result = case.run(ranks, options=[f"--dump={blocked}/dump"])
        check_error(result, 1, f"cannot make the folder '{blocked}/dump/train_e0'", "Not a directory")
        said = [line for line in result.stderr.splitlines() if line.startswith("penstock: ")]
        assert any("cannot make the folder" in line for line in said[: 1 if ranks == 0 else None]), result.log


def test_a_file_that_may_not_be_read():
    if os.geteuid() == 0:
        return  # root reads everything
    case = Case()
    key, = spoil(case.train, ["text.jpg"])
    os.chmod(os.path.join(case.train, key), 0)
    for ranks in WAYS:
        check_error(case.run(ranks), 1, key, "Permission denied")


if __name__ == "__main__":
    if "--table" in sys.argv:
        sys.exit(print_table())
    run_tests(globals())
