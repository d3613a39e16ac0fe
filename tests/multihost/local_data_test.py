"""Data on node-local disks (dataset.local): no node has all files, and the stream is that of a job where one has; still when
a loader is killed and others have copies of what it read; and named errors where nobody has them. The nodes are
support/hosts.py's, each with a disk of its own under the same path."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile

import containers
from hosts import Hosts, RunningJob, skip_without_hosts
from jobs import FULL, PENSTOCK, Result, demo_photos, hashes_of, left_to_full, run_job, run_tests
from leftovers import BUSY_S, no_leftovers, run

skip_without_hosts()
PATTERNS = os.path.join(os.environ["PENSTOCK_BUILD"], "patterns")
SHARDS, CLASSES = 8, 4
EXIT_DATASET, EXIT_PEER_LOST = 4, 5
JOB = """\
seed: 3
loader: {{threads: 2, memory_gb: 0.25, chunk_samples: 4}}
trainer: {{timeout_s: 30, grace_s: 2}}
splits:
  train:
    mode: train
    dataset: {{tar: "{data}/train/shard-{{000..007}}.tar", index: {top}/train.index, local: true}}
    pipeline: [{{RandomResizedCrop: {{size: 64}}}}, {{RandomHorizontalFlip: {{}}}}]
    sampler: {{shuffle: true}}
    batch_size: 16
    tail: pad
  val:
    mode: eval
    dataset: {{folder: {data}/val, index: {top}/val.index, local: true}}
    pipeline: [{{Resize: {{size: 72}}}}, {{CenterCrop: {{size: 64}}}}]
    batch_size: 16
    tail: pad
"""
work = tempfile.TemporaryDirectory(prefix="local_data_test-")
data = os.path.join(work.name, "data")  # here everything; on a host that host's disk
job = os.path.join(work.name, "job.yaml")
WHOLE = ["splits.train.dataset.local=false", "splits.val.dataset.local=false"]


def prepare():
    photos = demo_photos()
    containers.write_tars(os.path.join(data, "train"), containers.samples_of(os.path.join(photos, "train")), SHARDS)
    shutil.copytree(os.path.join(photos, "val"), os.path.join(data, "val"))
    with open(job, "w") as file:
        file.write(JOB.format(data=data, top=work.name))
    made = run([PENSTOCK, "index", job, "--no-headers"], 60)
    assert made.returncode == 0, made.stderr


def disk(name, shards, classes):
    """A folder with some of the shards, and of the classes of val; times of change are lost, as copying does."""
    folder = os.path.join(work.name, name)
    os.makedirs(os.path.join(folder, "train"), exist_ok=True)
    for shard in shards:
        shutil.copyfile(os.path.join(data, "train", f"shard-{shard:03}.tar"), os.path.join(folder, "train", f"shard-{shard:03}.tar"))
    names = sorted(os.listdir(os.path.join(data, "val")))
    assert len(names) == CLASSES
    for one in classes:
        shutil.copytree(os.path.join(data, "val", names[one]), os.path.join(folder, "val", names[one]), dirs_exist_ok=True)
    return folder


def mount(hosts, disks):
    for pid, folder in zip(hosts.pids, disks):
        subprocess.run(["nsenter", "--target", str(pid), "--mount", "mount", "--bind", folder, data], check=True, timeout=20)


def words_of(trainers, loaders, options, program=()):
    words = [PENSTOCK, "launch", "--run", job, f"--trainer-host={trainers}", f"--loader-host={loaders}", *options]
    return words + (["--", *program] if program else [])


def launch(hosts, env, *words):
    return Result(run(hosts.enter(0, words_of(*words)), 60, env=hosts.environment(env)))


def trainer0(report):
    return next(rank for rank in report["ranks"] if rank["rank"] == 0)


def test_the_same_stream_as_with_all_data_everywhere():
    with no_leftovers() as env:
        whole = run_job(job, options=["--epochs=2"], overrides=["roles.trainers=2", *WHOLE], env=env)
        # One that has it all is a loader like any other.
        assert not FULL or run_job(job, options=["--epochs=2"], overrides=["roles.trainers=2"], env=env).hashes() == whole.hashes()
    disks = [disk("none", [], []), disk("a", range(5), [0, 1]), disk("b", range(3, 8), [1, 2, 3])]
    ways = (["balancer.remake_every=2"], ["transport=mpi", "loader.chunk_samples=1", "loader.chunk_buffers=2"])
    for more in ways if FULL else ways[:1]:
        with no_leftovers() as env, Hosts(3, env) as hosts:
            mount(hosts, disks)
            result = launch(hosts, env, "host0:2", "host1:2,host2:1", ["--json", "--quiet", "--epochs=2", *more])
        assert result.hashes() == whole.hashes(), more
        images = [rank["images"] for rank in result.report["ranks"] if rank["role"] == "loader"]
        # Three shards of ten are at host1 alone, and three at host2, whose loader is rank 4.
        assert len(images) == 3 and images[0] + images[1] >= 2 * 30 and images[2] >= 2 * 30, images
        assert not trainer0(result.report)["lost_loaders"], result.log
        if more[0].startswith("balancer"):
            assert any(rank.get("compared_chunks", 0) > 0 for rank in result.report["ranks"]), result.log


class Running(RunningJob):
    def __init__(self, hosts, env, trainers, loaders, overrides):
        folder = tempfile.mkdtemp(dir=work.name)
        self.program = [PATTERNS, "long", job, os.path.join(folder, "%r.json")]
        words = words_of(trainers, loaders, ["--json", "--quiet", *overrides], self.program)
        super().__init__(hosts, env, words, folder)


def only_rank(hosts, host):
    ranks = list(hosts.ranks(host).values())
    assert len(ranks) == 1, ranks
    return ranks[0]


@left_to_full("test_losing_the_last_that_has_a_shard, and several_hosts_test's kill -9 of a loader whose files all have")
def test_a_killed_loader_of_which_others_have_copies():
    every = range(CLASSES)
    disks = [disk("none", [], []), disk("c", [0, 1, 2, 3, 4], every), disk("d", [3, 4, 5, 6, 7], every),
             disk("e", [0, 1, 2, 5, 6, 7], every)]
    with no_leftovers(wait_s=8) as env, Hosts(4, env) as hosts:
        mount(hosts, disks)
        running = Running(hosts, env, "host0:1", "host1:1,host2:1,host3:1", ["balancer.lost_after_s=2"])
        os.kill(only_rank(hosts, 2), signal.SIGKILL)
        assert running.end(40) == 0, running.log()
        report = running.report()
        assert len(trainer0(report)["lost_loaders"]) == 1, running.log()
        plain = run_job(job, overrides=["roles.trainers=1", *WHOLE], program=running.program)
        assert hashes_of(report) == plain.hashes(), running.log()


def test_losing_the_last_that_has_a_shard():
    disks = [disk("none", [], []), disk("f", range(4), range(CLASSES)), disk("g", range(4, 8), range(CLASSES))]
    with no_leftovers(wait_s=8) as env, Hosts(3, env) as hosts:
        mount(hosts, disks)
        running = Running(hosts, env, "host0:1", "host1:1,host2:1", ["balancer.lost_after_s=4"])
        os.kill(only_rank(hosts, 2), signal.SIGKILL)
        code = running.end(30 + BUSY_S)
        said = running.text("stderr")
        assert code == EXIT_PEER_LOST and running.took_s < 15 + BUSY_S, (running.took_s, running.log())
        found = re.search(r"sample (\d+) of split 'train'.*: no loader is left that has it on its disks; the last one was "
                          r"rank 2 \(loader\), lost", said)
        assert found and int(found[1]) >= 40, said


@left_to_full("index_test's test_some_of_the_files_are_here, in one process")
def test_what_nobody_has_is_refused_at_the_start():
    disks = [disk("none", [], []), disk("h", range(4), range(CLASSES)), disk("i", range(3, 7), range(CLASSES))]
    with no_leftovers() as env, Hosts(3, env) as hosts:
        mount(hosts, disks)
        result = launch(hosts, env, "host0:2", "host1:1,host2:1", ["--quiet"])
    assert result.code == EXIT_DATASET, result.log
    said = ("no loader can read 10 of the 80 samples of split 'train', the first being number 70; "
            f"rank 2 (loader, host host1) lacks '{data}/train/shard-004.tar' and 3 other files; "
            f"rank 3 (loader, host host2) lacks '{data}/train/shard-000.tar' and 3 other files")
    assert result.stderr.count("\npenstock: " + said) + result.stderr.startswith("penstock: " + said) == 1, result.log


def test_a_copy_that_is_cut_off_is_no_copy():
    folder = disk("j", range(8), range(CLASSES))
    with open(os.path.join(folder, "train", "shard-002.tar"), "r+") as file:
        file.truncate(1024)
    with no_leftovers() as env, Hosts(2, env) as hosts:
        mount(hosts, [disk("none", [], []), folder])
        result = launch(hosts, env, "host0:1", "host1:1", ["--quiet"])
    assert result.code == EXIT_DATASET and "'shard-002.tar' has 1024 bytes, and had" in result.stderr, result.log


prepare()
run_tests(globals())
