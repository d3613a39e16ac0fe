"""The command line: commands, their manners (data on stdout, messages on stderr), complaints that help."""

import json
import os
import pty
import re
import resource
import select
import subprocess
import tempfile
import time

from jobs import BUILD, FULL, PENSTOCK, demo_photos, left_to_full, run_job, run_tests, write_job
from leftovers import run

work = tempfile.TemporaryDirectory(prefix="cli_test-")
job = write_job(work.name, demo_photos())
COMMANDS = ["init", "run", "serve", "launch", "check", "doctor", "index", "pack", "unpack", "inspect", "demo-data", "config", "schema", "bench", "report", "replay",
            "profile", "simulate", "plan", "sweep", "explain", "validate"]


def penstock(*words, env=None, timeout=30, **kwargs):
    return run([PENSTOCK, *words], timeout, env=env, **kwargs)


def test_help_and_version():
    result = penstock("--help")
    assert result.returncode == 0 and result.stderr == "", result.stderr
    for command in COMMANDS:
        assert re.search(rf"^ +{command}\b", result.stdout, re.M), f"{command} is not in --help"
        one = penstock(command, "--help")
        assert one.returncode == 0 and len(one.stdout.splitlines()) > 3 and one.stderr == "", command
        assert "{false}" not in one.stdout, one.stdout
    assert "drain" not in result.stdout  # what `run` starts by itself is no command for people
    version = penstock("--version")
    assert version.returncode == 0 and re.fullmatch(r"(penstock )?\d+\.\d+\.\d+\n", version.stdout), version.stdout


def test_help_of_a_command():
    assert penstock("help", "run").stdout == penstock("run", "--help").stdout != ""
    assert penstock("help").stdout == penstock("--help").stdout != ""


def test_a_mistyped_option_is_named():
    said = penstock("run", job, "--epoch=2")
    assert said.returncode == 2 and "did you mean '--epochs'?" in said.stderr, said
    said = penstock("check", job, "--xyzzy")
    assert said.returncode == 2 and "did you mean" not in said.stderr, said


def test_a_job_file_that_may_not_be_read():
    with tempfile.TemporaryDirectory(prefix="cli_test-hidden-") as folder:
        os.chmod(folder, 0o755)
        hidden = os.path.join(folder, "hidden.yaml")
        open(hidden, "w").close()
        os.chmod(hidden, 0)
        # Root reads everything, so that it is somebody else who tries.
        other = dict(user=65534, group=65534, extra_groups=[]) if os.geteuid() == 0 else {}
        try:
            said = subprocess.run([PENSTOCK, "check", hidden], cwd="/", capture_output=True, text=True, timeout=60, **other)
        except PermissionError:
            print("  left out: other users may not run", PENSTOCK)
            return
    assert said.returncode == 3 and "Permission denied" in said.stderr and "chmod" in said.stderr, said


def test_a_mistyped_command_or_option():
    for words, wanted in ((["chekc", job], "did you mean 'check'"), (["demodata", "x"], "did you mean 'demo-data'"),
                          (["launhc", job], "did you mean 'launch'"), (["xyzzy"], "no command 'xyzzy'"),
                          (["run"], "job"), ([], "subcommand"), (["run", job, "--epohcs=2"], "--epohcs"),
                          (["inspect", job], "--out"), (["inspect", job, "--out=x", "--steps=0"], "--steps"),
                          (["run", job, "--epochs=none"], "--epochs"), (["config"], "subcommand"),
                          (["run", job, "--raw"], "--raw requires --dump"),
                          (["launch", job, "-n3", "--raw"], "--raw requires --dump")):
        result = penstock(*words)
        assert result.returncode == 2, (words, result.returncode, result.stderr)
        assert wanted in result.stderr and "help" in result.stderr and result.stdout == "", (words, result.stderr)
    for words, command in (([], ""), (["--nonsense"], ""), (["run"], "run "), (["run", job, "--nonsense"], "run "),
                           (["config"], "config "), (["config", "shwo"], "config "), (["config", "show"], "config show "),
                           (["config", "show", job, "--nonsense"], "config show "), (["bench", "decode"], "bench decode ")):
        assert penstock(*words).stderr.endswith(f"\n  help: penstock {command}--help\n"), (words, penstock(*words).stderr)


def test_a_mistyped_switch():
    said = penstock("schema", env={**os.environ, "PENSTOCK_VECTORS": "avx512"})
    assert said.returncode == 2 and "PENSTOCK_VECTORS='avx512'" in said.stderr and "avx2, sse4" in said.stderr, said


def test_check_looks_for_gpus():
    for executor, code in (("cpu", 0), ("auto", 0), ("gpu", 1)):
        said = penstock("check", job, f"loader.executor={executor}", env={**os.environ, "PENSTOCK_GPUS": "none"})
        assert said.returncode == code, said
        assert ("PENSTOCK_GPUS=none" in said.stdout) == (executor != "cpu"), said


def test_doctor():
    """Every topic once, as text and as JSON; a PATH without mpirun is a note with what to do, and no failure."""
    said = penstock("doctor", "--json")
    assert said.returncode == 0 and said.stderr == "", said
    found = {item["topic"]: item for item in json.loads(said.stdout)}
    for topic in ("penstock", "system", "cpu", "memory", "shared memory", "locked memory", "open files", "io_uring",
                  "host names", "single copy", "mpirun", "MPI component", "CUDA", "nvJPEG", "NCCL"):
        assert found[topic]["text"], topic
    assert f" of {os.cpu_count()} CPUs" in found["cpu"]["text"], found["cpu"]
    assert found["shared memory"]["level"] == "fine", found["shared memory"]
    assert all(item["remedy"] for item in found.values() if item["level"] != "fine"), said.stdout
    one_cpu = {min(os.sched_getaffinity(0))}
    said = penstock("doctor", env={**os.environ, "PATH": "/nonexistent"},
                    preexec_fn=lambda: os.sched_setaffinity(0, one_cpu))
    assert said.returncode == 0 and re.search(r"^mpirun +note: ", said.stdout, re.M), said
    if os.cpu_count() > 1:
        assert re.search(r"^cpu +note: .*, 1 of ", said.stdout, re.M), said.stdout


def test_a_machine_that_does_not_know_localhost():
    """A bare root has no /etc/hosts: mpirun then asks a name server for localhost, twenty times."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL).returncode != 0:
        return  # findings_test has the rule itself
    hosts = os.path.join(work.name, "hosts")
    for text, known in (("127.0.0.1 vm\n", False), ("127.0.0.1 vm localhost\n", True)):
        with open(hosts, "w") as file:
            file.write(text)
        under = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', hosts, PENSTOCK]
        found = {item["topic"]: item for item in json.loads(run([*under, "doctor", "--json"], 60).stdout)}["host names"]
        line = run([*under, "launch", job, "-n", "3"], 60)
        assert line.returncode == 0 and line.stdout.startswith("mpirun "), line
        if known:
            assert found["level"] == "fine" and line.stderr == "", (found, line.stderr)
        else:
            assert found["level"] == "note" and "127.0.0.1 localhost" in found["remedy"], found
            assert "HWLOC_COMPONENTS=-gl" in line.stderr and "127.0.0.1 localhost" in line.stderr, line.stderr


def test_check_of_a_folder():
    said = penstock("check", work.name)
    assert said.returncode == 2 and "is a folder, and no pack" in said.stderr and "penstock init --data" in said.stderr, said


def test_check_of_a_data_set_that_is_not_there():
    said = penstock("check", job, "splits.train.dataset.folder=/not/there")
    assert said.returncode == 4 and "splits.train.dataset.folder: the dataset folder '/not/there' does not exist\n  help: " in said.stdout, said
    assert "\nsplit val: " in said.stdout and said.stdout.endswith("check: not fine: split train cannot be opened\n"), said
    assert said.stderr == "", said


def test_a_folder_of_splits_is_no_data_set():
    photos = demo_photos()
    for words in (["init", "--data", photos], ["pack", photos, f"{work.name}/p"], ["index", photos, f"--out={work.name}/i"]):
        said = penstock(*words)
        assert said.returncode == 2 and "train and val, which are splits" in said.stderr and photos + "/train" in said.stderr, said
    said = penstock("check", job, f"splits.train.dataset.folder={photos}")
    assert "are these classes? train and val" in said.stdout, said.stdout
    vehicles = os.path.join(work.name, "vehicles")  # COCO has a class "train"
    for name in ("bus", "train"):
        os.makedirs(os.path.join(vehicles, name))
        os.symlink(os.path.join(photos, "val"), os.path.join(vehicles, name, "photos"))
    assert penstock("init", "--data", vehicles).returncode == 0
    os.symlink("/not/mounted", os.path.join(vehicles, "car"))
    said = penstock("check", job, f"splits.train.dataset.folder={vehicles}").stdout
    assert "is a class missing? Links that lead nowhere are left out: car" in said and "are these classes" not in said, said


def test_check_looks_at_memory():
    fits = penstock("check", job)
    assert fits.returncode == 0 and "at once" not in fits.stdout, fits.stdout
    for words, code, wanted in ((["loader.memory_gb=0.001"], 3, "alone take 3 MB, and loader.memory_gb allows 1 MB: raise it"),
                                (["loader.memory_gb=0.004"], 0, "not all splits can be open at once"),
                                (["splits.train.batch_size=1048576", "trainer.hold=64"], 1,
                                 "lower splits.train.batch_size")):
        said = penstock("check", job, *words)
        assert said.returncode == code and wanted in said.stdout, (words, said.stdout, said.stderr)
    failed = penstock("run", job, "--quiet", "loader.memory_gb=0.001")
    assert failed.returncode == 3 and failed.stderr.count("MB of chunk buffers at each loader") == 1, failed  # of two trainers
    failed = penstock("run", job, "--quiet", "splits.train.batch_size=1048576", "trainer.hold=64")
    assert failed.returncode == 1 and "batches of 1048576 samples of split 'train'" in failed.stderr, failed
    assert "help: lower splits.train.batch_size" in failed.stderr, failed


def test_keys_of_gpus_without_gpus():
    for command in ("check", "run") if FULL else ("check",):
        said = penstock(command, job, "loader.gpus=2", "loader.cpu_fraction=0.5")
        said = said.stdout + said.stderr
        assert "without effect, because loader.executor is cpu: loader.gpus and loader.cpu_fraction" in said, said
        assert "without effect" not in penstock(command, job).stdout, command
    for words, wanted in (([], True), (["arithmetic=fast"], False)):
        said = penstock("check", job, "loader.executor=auto", "loader.nvjpeg=interpolated", *words).stdout
        assert ("without effect, because arithmetic is exact: loader.nvjpeg" in said) == wanted, said
        assert said.count("without effect") == wanted, said


def test_inspect_again_in_the_same_folder():
    out = os.path.join(work.name, "again")
    own = os.path.join(out, "notes_t0_s0_images.npy")
    for words in (["--steps=3"], ["seed=4"]):
        result = penstock("inspect", job, f"--out={out}", "--trainers=2", *words)
        assert result.returncode == 0, result.stderr
        open(own, "a").close()  # the user's: nothing to do with a dump
    with open(os.path.join(out, "manifest.jsonl")) as file:
        lines = [json.loads(line) for line in file]
    assert len(lines) == 32 and {line["step"] for line in lines} == {0}, len(lines)
    assert sorted(name[:5] for name in os.listdir(out) if name.endswith("_images.npy")) == ["notes", "t0_s0", "t1_s0"]
    beyond = penstock("inspect", job, f"--out={out}", "--first-step=3")
    assert beyond.returncode == 2 and "has 3 steps, counted from 0" in beyond.stderr, beyond


def test_a_job_file_that_can_be_read_once():
    for words in (["run"], ["launch", "-n", "3"], ["serve"]):
        read, write = os.pipe()
        os.write(write, b"splits: {}")
        os.close(write)
        said = penstock(words[0], f"/dev/fd/{read}", *words[1:], pass_fds=[read])
        os.close(read)
        assert said.returncode == 2 and "save the job to a file" in said.stderr, said


def test_a_limit_on_file_sizes_is_a_full_disk():
    for words in (["inspect", job, f"--out={work.name}/limited"], ["run", job, "--quiet", f"--dump={work.name}/limited_run"]):
        said = penstock(*words, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)))
        assert said.returncode == 1 and "File too large" in said.stderr, said
    # Programs have the signal as they know it.
    said = penstock("run", job, "--quiet", "--", "sh", "-c", "grep SigBlk /proc/self/status")
    assert said.returncode == 0 and said.stdout.split() == ["SigBlk:", "0000000000000000"] * 2, said


def test_a_low_limit_on_descriptors_is_an_error_at_once():
    for limit in (16, 20):  # with 16 a program waited for ever, with 20 a folder could not be opened
        for words in (["run", job, "--quiet"], ["check", job], ["serve", job, "--quiet"], ["launch", "--run", job, "-n", "4"]):
            said = penstock(*words, timeout=20, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
            assert said.returncode == 1 and re.search(rf"needs \d+ open files .* may have {limit}\n  help: raise ulimit -n", said.stderr), said
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    said = penstock("run", job, "--quiet", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (16, hard)))
    assert said.returncode == 0, said  # a soft limit is raised


def test_a_balancers_log_that_cannot_be_written():
    # Not at all: said at once. No longer: a full disk under a record of the job does not end the job.
    said = penstock("run", job, "--quiet", "balancer.log=/no/such/folder/log")
    assert said.returncode == 1 and "cannot write the balancer's log '/no/such/folder/log'" in said.stderr, said
    said = penstock("run", job, "--quiet", "balancer.log=/dev/full")
    assert said.returncode == 0 and said.stderr.count("cannot write the balancer's log '/dev/full' any more") == 1, said


def test_containers_that_share_a_network():
    # Equal process numbers, users and job names, and one namespace of sockets: two jobs do not meet.
    apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid() != 0 or subprocess.run([*apart, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        return  # namespaces need root, and a container may forbid them
    for words in (["run", job, "--quiet", "--", "sleep", "1.5"], ["serve", job, "--quiet"]):
        both = [subprocess.Popen([*apart, PENSTOCK, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                for _ in range(2)]
        if words[0] == "serve":
            time.sleep(1.5)
            alive = [process.poll() is None for process in both]
            for process in both:
                process.kill()  # unshare, and with it its namespace
            ended = [process.communicate(timeout=20)[1] for process in both]
            assert alive == [True, True], ended
            continue
        ended = [(process.communicate(timeout=20)[1], process.returncode) for process in both]
        assert [code for _, code in ended] == [0, 0], ended


def test_closed_standard_streams():
    for closed in ((0,), (1,), (2,), (0, 1, 2)) if FULL else ((1,), (0, 1, 2)):
        pack = os.path.join(work.name, f"closed{len(closed)}{closed[0]}")
        said = penstock("pack", demo_photos() + "/val", pack, preexec_fn=lambda: [os.close(fd) for fd in closed])
        assert said.returncode == (1 in closed), (closed, said)  # the pack is whole, and its report is lost
        assert penstock("check", pack).returncode == 0, closed


def test_what_cannot_be_printed_is_an_error():
    words_of = (["schema"], ["--help"], ["init", "--data", demo_photos() + "/train"], ["config", "show", job], ["doctor"],
                ["--version"], ["run", "--help"], ["run", job, "--json", "--quiet"])
    for words in words_of if FULL else words_of[:3]:
        with open("/dev/full", "w") as full:
            on_full = subprocess.run([PENSTOCK, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)
        for said in (on_full, penstock(*words, preexec_fn=lambda: os.close(1))):
            assert said.returncode == 1 and said.stderr.startswith("penstock: cannot write to stdout\n  help: "), (words, said)
    # Without a word on stdout nothing is lost; programs of the job have a stdout that takes everything.
    said = penstock("run", job, "--quiet", "--", "sh", "-c", "echo something", preexec_fn=lambda: os.close(1))
    assert said.returncode == 0 and said.stderr == "", said


def test_a_session_folder_that_cannot_be_made():
    said = penstock("launch", "--run", job, "-n", "3", env={**os.environ, "TMPDIR": "/nowhere"})
    assert said.returncode == 1 and "cannot make the session folder '/nowhere/" in said.stderr, said
    assert "No such file" in said.stderr and "set TMPDIR" in said.stderr, said


def test_consume_says_at_once_that_a_split_is_missing():
    with open(job) as file:
        text = file.read()
    alone = os.path.join(work.name, "alone.yaml")
    with open(alone, "w") as file:
        file.write(text[:text.index("  val:")])
    said = run([os.path.join(BUILD, "consume"), alone], 30)
    assert said.returncode == 2 and "has no split 'val'" in said.stderr and said.stdout == "", said


def test_a_mistyped_split():
    result = penstock("inspect", job, "--split=trian", f"--out={work.name}/x")
    assert result.returncode == 2 and "did you mean 'train'" in result.stderr, result.stderr


def test_all_mistakes_of_a_job_file_at_once():
    path = os.path.join(work.name, "wrong.yaml")
    with open(job) as file:
        text = file.read()
    text = text.replace("threads: 2", "threds: 2").replace("seed: 3", "seed: many").replace("tail: pad", "tail: pda")
    with open(path, "w") as file:
        file.write(text)
    for command in ("run", "check", "launch"):
        result = penstock(command, path)
        assert result.returncode == 3 and result.stdout == "", result.stderr
        assert len(re.findall(r"wrong\.yaml:\d+:\d+: error: ", result.stderr)) == 4, result.stderr
        for wanted in ("did you mean 'threads'?", "did you mean 'pad'?", "'threds'", "seed: many", "^~"):
            assert wanted in result.stderr, result.stderr
    for words, wanted in ((["loader.threads=none"], "loader.threads"), (["loader.thread=1"], "did you mean"),
                          (["nonsense"], "nonsense")):
        result = penstock("check", job, *words)
        assert result.returncode in (2, 3) and wanted in result.stderr, (words, result.stderr)
    missing = penstock("run", os.path.join(work.name, "no_such.yaml"))
    assert missing.returncode == 3 and "no_such.yaml" in missing.stderr, missing.stderr


def test_where_each_value_comes_from():
    env = dict(os.environ, PENSTOCK_CFG__LOADER__PREFETCH="3")
    result = penstock("config", "show", job, "--origin", "loader.threads=4", env=env)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    for wanted in (r"threads: 4 +# command line", r"prefetch: 3 +# environment", r"seed: 3 +# .*job\.yaml:1",
                   r"hold: 2 +# default"):
        assert re.search(wanted, result.stdout), (wanted, result.stdout)
    # What it prints is a job file that means the same.
    plain = penstock("config", "show", job, "loader.threads=4", env=env).stdout
    again = os.path.join(work.name, "again.yaml")
    with open(again, "w") as file:
        file.write(plain)
    assert penstock("config", "show", again).stdout == plain


def test_the_schema():
    schema = json.loads(penstock("schema").stdout)
    assert schema["type"] == "object" and "draft-07" in schema["$schema"]
    assert {"seed", "roles", "loader", "transport", "splits", "on_error"} <= set(schema["properties"])
    assert schema["properties"]["on_error"]["enum"] == ["fail", "substitute"]


def test_init_writes_a_job_that_passes_check():
    photos = demo_photos()
    for words in (["--data", photos + "/train", "--val", photos + "/val"], ["--data", photos + "/train"])[:2 if FULL else 1]:
        result = penstock("init", *words)
        assert result.returncode == 0 and result.stderr == "", result.stderr
        path = os.path.join(work.name, "init.yaml")
        with open(path, "w") as file:
            file.write(result.stdout)
        checked = penstock("check", path, "--decode")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "80 samples in 4 classes" in checked.stdout and "0 unusable" in checked.stdout
    missing = penstock("init")
    assert missing.returncode == 2 and "--data" in missing.stderr
    nowhere = penstock("init", "--data", photos + "/nowhere")
    assert nowhere.returncode == 4 and "nowhere" in nowhere.stderr and nowhere.stdout == "", nowhere.stdout


def test_check_compares_the_classes_of_the_splits():
    folder = os.path.join(work.name, "other_classes")
    source = demo_photos() + "/val"
    classes = sorted(os.listdir(source))
    os.makedirs(folder)
    for name in classes[1:]:  # without the first, every label of this split means another class
        os.symlink(os.path.join(source, name), os.path.join(folder, name))
    result = penstock("check", job, f"splits.val.dataset.folder={folder}")
    assert result.returncode == 4, result.stdout + result.stderr
    assert f"label 0 is '{classes[0]}' in split train and '{classes[1]}' in split val" in result.stdout, result.stdout


def test_check_looks_at_all_fields_as_a_loader_does():
    train = demo_photos() + "/train"
    pairs, table = os.path.join(work.name, "pairs.yaml"), os.path.join(work.name, "table.csv")
    with open(pairs, "w") as file:
        file.write("splits: {train: {dataset: {images: %s, masks: %s}, batch_size: 4, pipeline: "
                   "[{RandomResizedCrop: {size: 32}}]}}\n" % (train, train))
    for words in ([], ["--decode"]):
        result = penstock("check", pairs, *words)  # JPEG files as masks
        assert result.returncode == 4 and "80 unusable" in result.stdout, result.stdout + result.stderr
        assert "its mask: a mask is a PNG file" in result.stdout, result.stdout
    picture = os.path.join(train, sorted(os.listdir(train))[0])
    picture = os.path.join(picture, sorted(os.listdir(picture))[0])
    with open(table, "wb") as file:
        file.write(b"image,caption\n")
        for caption in (b"fine", b"not \xff text", b"x" * 40):
            file.write(picture.encode() + b"," + caption + b"\n")
    texts = os.path.join(work.name, "texts.yaml")
    with open(texts, "w") as file:
        file.write("limits: {max_field_bytes: 30}\nsplits: {train: {dataset: {csv: %s, fields: \"caption:text\"}, "
                   "batch_size: 1, pipeline: [{CenterCrop: {size: 32}}]}}\n" % table)
    few = os.path.join(work.name, "few.yaml")
    with open(few, "w") as file:
        file.write("splits: {train: {dataset: {folder: %s}, batch_size: 4, pipeline: "
                   "[{CenterCrop: {size: 32}}, {CutMix: {num_classes: 3}}]}}\n" % train)
    result = penstock("check", few)  # four classes
    assert result.returncode == 4 and "has label 3, and num_classes" in result.stdout, result.stdout + result.stderr
    result = penstock("check", texts)
    assert result.returncode == 4 and "2 unusable" in result.stdout, result.stdout + result.stderr
    assert "not UTF-8" in result.stdout and "limits.max_field_bytes" in result.stdout, result.stdout


def test_numbers_out_of_range_are_refused_in_short():
    for words, wanted in ((["run", job, "--epochs=-3"], "'-3' is not a number above 0"),
                          (["check", job, "--most=-1"], "'-1' is not 0 or more"),
                          (["launch", job, "-n", "0"], "'0' is not a number above 0"),
                          (["inspect", job, "--out=x", "--trainers=-1"], "'-1' is not 0 or more"),
                          (["demo-data", "x", "--megapixels", "0", "0"], "not in range"),
                          (["bench", job, "--seconds=inf"], "'inf' is no number of seconds"),
                          (["serve", job, "--idle-s=1e300"], "'1e300' is no number of seconds")):
        result = penstock(*words)
        assert result.returncode == 2 and wanted in result.stderr and len(result.stderr) < 200, result.stderr


def test_a_program_without_the_dashes():
    result = penstock("run", job, "./train")
    assert result.returncode == 3 and "a program to start stands after --" in result.stderr, result.stderr


def test_a_bad_file_whose_name_is_no_utf8():
    folder = os.path.join(work.name, "names", "a")
    os.makedirs(folder)
    photo = next(os.scandir(os.path.join(demo_photos(), "val", sorted(os.listdir(demo_photos() + "/val"))[0]))).path
    for name in ("1.jpg", "2.jpg"):
        os.symlink(photo, os.path.join(folder, name))
    with open(os.fsencode(folder) + b"/\xff.jpg", "w") as file:
        file.write("no picture")
    result = penstock("run", job, "--json", "--quiet", "on_error=substitute", "roles.trainers=1", "bad_samples.max_count=9",
                      f"splits.train.dataset.folder={os.path.dirname(folder)}", "splits.train.batch_size=3")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["splits"]["train"]["images"] > 0
    failed = penstock("run", job, "--quiet", "roles.trainers=1",
                      f"splits.train.dataset.folder={os.path.dirname(folder)}", "splits.train.batch_size=3", errors="replace")
    assert failed.returncode == 4 and ".jpg" in failed.stderr, failed.stderr


def test_too_many_trainers_for_one_process():
    result = penstock("run", job, "roles.trainers=500")
    assert result.returncode == 3 and "roles.trainers is 500" in result.stderr, result.stderr


def test_launch_prints_a_line_that_runs():
    quiet = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # where this is instrumented: Open MPI's (tests/CMakeLists.txt)
    result = penstock("launch", job, "-n", "3", "--print", "--epochs=1", "--json", "--quiet", "loader.threads=1")
    assert result.returncode == 0 and result.stdout.count("\n") == 1, result.stdout + result.stderr
    line = result.stdout
    assert "mpirun -n 3 " in line and f"{PENSTOCK} run {job}" in line.replace("'", ""), line
    if os.geteuid() == 0:
        assert "--allow-run-as-root" in line
    if FULL:
        done = run(["sh", "-c", line], 60, env=quiet)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["splits"]["train"]["images"] == 96
    # A program with awkward words stays what it was.
    line = penstock("launch", job, "-n", "3", "--", "sh", "-c", "echo \"it's $RANK\"; exit 0").stdout
    done = run(["sh", "-c", line], 60, env=quiet)
    assert done.returncode == 0 and "it's 0\n" in done.stdout and "it's 1\n" in done.stdout, done.stdout + done.stderr
    for words, wanted in ((["-n", "2"], "leaves no loader"), (["-n", "4", "--loaders", "2"], "give one of them")):
        result = penstock("launch", job, *words)
        assert result.returncode == 2 and wanted in result.stderr, result.stderr


def test_hosts_end_where_overrides_begin():
    alike = write_job(work.name, demo_photos(), trainers=None, name="no_roles.yaml")
    said = penstock("launch", "--trainer-host", "a:1", "--loader-host", "b:1,c:1", "--loader-host", "d:1", alike, "seed=9")
    assert said.returncode == 0 and "--host b:1,c:1,d:1" in said.stdout and said.stdout.count("seed=9") == 2, said
    said = penstock("launch", "-n", "6", "--host", "a", "--host", "b", job, "seed=9")
    assert said.returncode == 0 and "--host a:3,b:3" in said.stdout and said.stdout.strip().endswith("seed=9"), said
    with open(os.path.join(work.name, "no_hosts"), "w") as file:
        file.write("# nobody\n")
    for words, what in ((["--loader-host=seed=9", "--trainer-host=a:1"], "'seed=9' is no name of a host"),
                        (["--host=seed=9", "-n", "3"], "'seed=9' is no name of a host"),
                        (["--hostfile", work.name, "-n", "3"], f"'{work.name}' is a folder"),
                        (["--hostfile", file.name, "-n", "3"], f"'{file.name}' names no host")):
        said = penstock("launch", job, *words)
        assert said.returncode == 2 and what in said.stderr and "help: " in said.stderr, said


def test_an_mpirun_that_starts_nothing():
    # As it does where it runs out of descriptors, or waits for a host: it neither starts a rank nor ends.
    silent = os.path.join(work.name, "mpirun")
    with open(silent, "w") as file:
        file.write("#!/bin/sh\n[ \"$1\" = --version ] && echo 'mpirun (Open MPI) 4.1.4' && exit 0\nexec sleep 100\n")
    os.chmod(silent, 0o755)
    begun = time.monotonic()
    said = penstock("launch", "--run", job, "-n", "3", "--quiet", "--mpirun", silent, "mpi.start_timeout_s=1")
    assert said.returncode == 5 and time.monotonic() - begun < 20, said
    assert "no rank was heard of within 1 s; mpirun is ended\n  help: see what mpirun said; limits of this shell" in said.stderr, said
    assert said.stderr.splitlines()[-1].startswith("penstock: the job failed with exit code 5: mpirun started no rank"), said


def test_the_report_and_json():
    text = penstock("run", job)
    assert text.returncode == 0, text.stderr
    for wanted in ("split train: 96 images in 6 batches", "order_hash ", "pixel_hash ", "trainer 0", "loader", "images/s"):
        assert wanted in text.stdout, text.stdout
    last = text.stdout.strip().splitlines()[-1]
    assert last.endswith(".") and len(last.split()) > 3, last  # the sentence that names the bottleneck
    result = penstock("run", job, "--json")
    report = json.loads(result.stdout)  # one object and nothing else; the text goes to stderr
    assert "split train: 96 images" in result.stderr
    split = report["splits"]["train"]
    for key in ("order_hash", "pixel_hash", "images", "images_per_s", "wait_fraction"):
        assert key in split, key
    assert split["mode"] == "train"
    assert re.fullmatch("[0-9a-f]{32}", split["order_hash"]) and 0 <= split["wait_fraction"] <= 1
    assert {rank["role"] for rank in report["ranks"]} == {"trainer", "loader"} and len(report["ranks"]) == 3
    assert report["bottleneck"] == last or report["bottleneck"].endswith(".")
    if not FULL:
        return  # exit_codes_test has --quiet
    quiet = penstock("run", job, "--json", "--quiet")
    assert quiet.stderr == "" and json.loads(quiet.stdout)["splits"]["train"]["order_hash"] == split["order_hash"]


@left_to_full("test_the_report_and_json: shares of an ordinary job")
def test_shares_of_time_in_a_tiny_job():
    """One batch, whose making began before anybody asked for it."""
    text = penstock("run", job, "splits.train.batch_size=96").stdout
    shares = [int(share.replace(",", "")) for share in re.findall(r"([\d,]+) %", text)]
    assert len(shares) > 4 and max(shares) <= 100, text


def test_bench_measures_every_stage():
    # Small batches: on a busy machine a thread may make no more than a few samples in that time.
    figures = json.loads(penstock("bench", job, "--seconds=0.5", "--json", "splits.train.batch_size=2",
                                  "splits.train.pipeline=[{CenterCrop: {size: 24}}, {ToDtype: {dtype: float32, scale: true}}, "
                                  "{MixUp: {num_classes: 99}}]").stdout)
    assert all(figures[stage] > 0 for stage in ("read_ms", "decode_ms", "finish_ms", "mix_ms")), figures
    assert "mix_ms" not in json.loads(penstock("bench", job, "--seconds=0.1", "--json").stdout)


def test_bench_decode_checks_and_measures_cpu_and_gpus_alike():
    folder = os.path.join(demo_photos(), "train")
    few = [] if FULL else ["--check=8"]
    devices = [("gpu", "host"), ("auto", "none"), ("cpu", "host"), ("auto", "host")]
    for source, more in ((folder, []), (job, ["--split=val"])) if FULL else ((folder, []),):
        keys = []
        for device, gpus in devices if FULL else devices[:2]:
            said = penstock("bench", "decode", source, f"--device={device}", "--seconds=0.2", "--json", *more, *few,
                            env=dict(os.environ, PENSTOCK_GPUS=gpus))
            figures = json.loads(said.stdout)
            used = "gpu" if device != "cpu" and gpus == "host" else "cpu"
            assert figures["device"] == used and figures["images_per_s"] > 0 and 0 < figures["checked"] <= 64, figures
            assert figures["read_ms"] > 0 and figures["decode_ms"] >= 0, figures
            assert (figures["entropy_ms"] is None) == (used == "cpu"), figures
            assert [gpu["name"] for gpu in figures["gpus"]] == ["this CPU"] * (used == "gpu"), figures
            for gpu in figures["gpus"]:
                assert gpu["images"] > 0 and gpu["decode_ms"] > 0 and 0 < gpu["busy_fraction"] <= 1.01, gpu
            assert ("no_gpu" in figures) == (gpus == "none"), figures
            keys.append([key for key in figures if key != "no_gpu"])
        assert all(one == keys[0] for one in keys), keys
    if not FULL:
        return
    text = penstock("bench", "decode", folder, "--device=gpu", "--seconds=0.2", "loader.cpu_fraction=auto",
                    env=dict(os.environ, PENSTOCK_GPUS="host")).stdout
    assert "compared with libjpeg-turbo's before: equal" in text and "GPU 0 (this CPU): " in text, text


def test_bench_decode_says_what_it_cannot():
    folder = os.path.join(demo_photos(), "train")
    none = "PENSTOCK_GPUS=none is in the environment\n  help: `penstock doctor`"
    for words, code, wanted in ((["--device=gpu"], 1, none),
                                (["--device=tpu"], 2, "tpu not in {cpu,gpu,auto}"), (["--split=test"], 0, ""),
                                (["--check=0"], 2, "--check"), (["loader.thread=1"], 3, "did you mean 'threads'?")):
        if code == 0 and not FULL:
            continue  # it measures
        result = penstock("bench", "decode", folder, "--seconds=0.1", *words, env=dict(os.environ, PENSTOCK_GPUS="none"))
        assert result.returncode == code and wanted in result.stderr, (words, result.stderr)
    assert penstock("bench", "decode").returncode == 2
    missing = penstock("bench", "decode", folder + "-not")
    assert missing.returncode == 3 and "cannot read the job file" in missing.stderr, missing.stderr


def test_check_says_so_where_memory_runs_out():
    with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as file:
        if re.search(r"^PENSTOCK_SANITIZE:\w+=.", file.read(), re.M):
            print("sanitizers need more address space than this test leaves")
            return
    with tempfile.TemporaryDirectory() as top:
        os.makedirs(os.path.join(top, "data", "a"))
        with open(os.path.join(top, "data", "a", "large.jpg"), "wb") as file:
            file.truncate(8 << 30)  # of no blocks
        with open(os.path.join(top, "job.yaml"), "w", encoding="utf-8") as file:
            file.write("limits: {max_encoded_bytes: 10000000000}\nsplits:\n  train: {dataset: {folder: data}, "
                       "batch_size: 1, pipeline: [{CenterCrop: {size: 8}}]}\n")
        words = ["prlimit", f"--as={4 << 30}", PENSTOCK, "check", "--decode", os.path.join(top, "job.yaml")]
        result = run(words, 60, env=dict(os.environ))
        assert result.returncode == 1 and "penstock: " in result.stderr, (result.returncode, result.stderr)


def progress_of(terminal, pattern, batch, extra_env):
    """stderr of a run of some seconds, in a terminal or not."""
    slow = [f"splits.train.batch_size={batch}"]
    words = [PENSTOCK, "run", job, *slow, "--", os.path.join(BUILD, "patterns"), pattern, job,
             os.path.join(work.name, "%r.json"), *slow]
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    env.update(extra_env, TERM="xterm")
    if not terminal:
        result = run(words, 60, env=env)
        assert result.returncode == 0, result.stderr
        return result.stderr
    ours, theirs = pty.openpty()
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs, env=env)
    os.close(theirs)
    text = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                text += os.read(ours, 4096)
            except OSError:  # nobody has the other end open any more
                break
    assert process.wait(10) == 0, text
    os.close(ours)
    return text.decode()


LINE = r"train epoch \d+: step \d+ of \d+, \d+ images/s, waiting \d+ %, ETA of the epoch \d+:\d\d"


def test_progress_on_a_terminal():
    for extra_env, colours in (({}, True), ({"NO_COLOR": "1"}, False))[:2 if FULL else 1]:
        text = progress_of(True, "uneven", 2, extra_env)
        assert text.count("\r\033[K") >= 3 and re.search(LINE, text), text
        assert ("\033[36m" in text) == colours, text
        assert text.endswith("\r\033[K"), text  # nothing of it stays in the terminal


@left_to_full("test_progress_on_a_terminal; runs whose stderr is compared (exit_codes_test) are in no terminal")
def test_progress_elsewhere():
    # Plain lines, one every ten seconds.
    begun = time.monotonic()
    text = progress_of(False, "long", 1, {})
    most = (time.monotonic() - begun) // 10
    assert "\r" not in text and "\033" not in text, text
    lines = text.splitlines()
    assert all(re.fullmatch(LINE, line) for line in lines) and 1 <= len(lines) <= most, text


def test_a_job_file_for_several_processes_here():
    result = run_job(job, overrides=["transport=mpi"])
    assert result.code == 3 and "penstock launch --run" in result.stderr, result.log


if __name__ == "__main__":
    run_tests(globals())
