"""`penstock.DataLoader(attach=True)`: fed by a `penstock serve`; killed and started again, the loaders stay."""

import os
import shutil
import signal
import subprocess
import sys

from jobs import FULL, left_to_full, run_job, run_tests, write_job
from leftovers import no_leftovers, run
from photos import PHOTOS, WORK, raises
from trainers import Serving

import penstock

job = write_job(WORK, PHOTOS, trainers=1, name="attached.yaml")

# What programs ask for: importing torch takes most of their time. By default one of them does.
OUTPUT = "torch" if FULL else "numpy"

PROGRAM = """
import os, signal, sys
import penstock
train = penstock.DataLoader(sys.argv[1], split="train", attach=True, output=sys.argv[2])
assert not train.embedded
for batch in train:
    if len(sys.argv) > 3:
        os.kill(os.getpid(), signal.SIGKILL)
print(train.stats()["ranks"][0]["splits"]["train"]["ranges"][-1]["pixel_hash"])
"""


def attached(env, *words, output=OUTPUT):
    return run([sys.executable, "-c", PROGRAM, job, output, *words], 60, env=env)


def test_fed_by_a_serving_job_again_and_again():
    expected = run_job(job).report["splits"]["train"]
    with no_leftovers() as env, Serving(job, env) as serving:
        serving.wait_for("--stop")
        first = attached(env, output="torch")
        assert first.returncode == 0, first.stderr
        assert expected["pixel_hash"] in first.stdout, (expected, first.stdout)
        assert attached(env, "kill").returncode == -signal.SIGKILL
        again = attached(env)
        assert again.returncode == 0 and expected["pixel_hash"] in again.stdout, again.stderr
        serving.end()


GROWING = """
import os, shutil, sys
import penstock
old = penstock.DataLoader(sys.argv[1], split="train", attach=True, output=sys.argv[5])
passing = iter(old)
seen = [int(index) for index in next(passing).indices]
for number in range(int(sys.argv[4])):
    shutil.copy(sys.argv[2], os.path.join(sys.argv[3], f"0000-new-{os.getpid()}-{number}.jpg"))
new = penstock.DataLoader(sys.argv[1], split="train", attach=True, output=sys.argv[5])
fresh = sum(len(batch[1]) for batch in new)
for batch in passing:
    seen += [int(index) for index in batch.indices]
print(old.dataset_size, len(set(seen)), new.dataset_size, len(new), fresh)
"""


TORCHRUN = """
import sys
import torch.distributed
import penstock
torch.distributed.init_process_group("gloo")
train = penstock.DataLoader(sys.argv[1], split="train")
assert not train.embedded and train.rank == torch.distributed.get_rank() and train.num_replicas == 2
for images, labels in train:
    torch.distributed.all_reduce(labels)  # a collective in every step, as DDP does it
hashes = [None, None]
torch.distributed.all_gather_object(hashes, [train.stats()["order_hash"], train.stats()["pixel_hash"]])
if train.rank == 0:
    print("hashes", *(f"{sum(int(one[i], 16) for one in hashes) % 2 ** 128:032x}" for i in range(2)))
torch.distributed.destroy_process_group()
"""


@left_to_full("test_programs_with_torchruns_variables_get_the_stream_of_the_job; of torch.distributed, sharding_test")
def test_torchruns_programs_get_the_stream_of_the_job():
    try:
        import torch.distributed.run  # noqa: F401
    except ImportError as problem:
        print(f"no torchrun: {problem}")
        return
    two = write_job(WORK, PHOTOS, trainers=2, name="torchrun.yaml")
    program = os.path.join(WORK, "torchrun_program.py")
    with open(program, "w") as file:
        file.write(TORCHRUN)
    expected = run_job(two).hashes()["train"]
    with no_leftovers(wait_s=8) as env, Serving(two, env) as serving:
        serving.wait_for("--stop")
        # With a Python later than itself, torch 1.13 can start programs only where something is redirected: here stderr.
        done = run([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv_backend=c10d",
                    "--rdzv_endpoint=localhost:0", f"--log_dir={WORK}", "--redirects=2", "--tee=2", program, two], 60,
                   env={**env, "PENSTOCK_ATTACH": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
        assert done.returncode == 0, done.stderr[-4000:]
        assert done.stdout.split() == ["hashes", *expected], (done.stdout, expected)
        serving.end()


WITH_VARIABLES = """
import sys
import penstock
train = penstock.DataLoader(sys.argv[1], split="train", output="numpy")
assert not train.embedded and train.num_replicas == 2
print(train.rank, sum(batch.num_valid for batch in train), train.stats()["order_hash"], train.stats()["pixel_hash"])
"""


def test_programs_with_torchruns_variables_get_the_stream_of_the_job():
    two = write_job(WORK, PHOTOS, trainers=2, name="variables.yaml")
    expected = run_job(two).hashes()["train"]
    with no_leftovers() as env, Serving(two, env) as serving:
        serving.wait_for("--stop")
        programs = [subprocess.Popen([sys.executable, "-c", WITH_VARIABLES, two], stdout=subprocess.PIPE, text=True,
                                     env={**env, "PENSTOCK_ATTACH": "1", "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2",
                                          "LOCAL_WORLD_SIZE": "2"}) for rank in "01"]
        said = [program.communicate(timeout=60)[0].split() for program in programs]
        assert [words[:2] for words in said] == [["0", "48"], ["1", "48"]], said  # padded
        assert tuple(f"{sum(int(words[i], 16) for words in said) % 2 ** 128:032x}" for i in (2, 3)) == expected, (said, expected)
        serving.end()


def test_files_that_come_while_it_serves():
    """A loader made later sees them, and an iteration that runs keeps its list; so does the next program."""
    photos = os.path.join(WORK, "growing")
    shutil.copytree(PHOTOS, photos)
    folder = os.path.join(photos, "train", sorted(os.listdir(os.path.join(photos, "train")))[0])
    picture = os.path.join(folder, sorted(os.listdir(folder))[0])
    growing = write_job(WORK, photos, trainers=1, name="growing.yaml")
    with no_leftovers() as env, Serving(growing, env) as serving:
        serving.wait_for("--stop")
        for more, wanted in ((1, "80 80 81 6 96"), (0, "81 81 81 6 96"), (15, "81 81 96 6 96")):
            program = run([sys.executable, "-c", GROWING, growing, picture, folder, str(more), OUTPUT], 60, env=env)
            assert program.returncode == 0 and program.stdout.strip() == wanted, (program.stdout, program.stderr)
        serving.end()


HOLDING = """
import sys
import penstock
train = penstock.DataLoader(sys.argv[1], split="train", attach=True, output=sys.argv[2])
print("open", flush=True)
sys.stdin.read()
print(sum(len(labels) for _, labels in train))
"""


def test_two_programs_at_one_receiver():
    """The second is refused by name, and the first goes on."""
    with no_leftovers() as env, Serving(job, env) as serving:
        serving.wait_for("--stop")
        first = subprocess.Popen([sys.executable, "-c", HOLDING, job, OUTPUT], env=env, stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, text=True)
        try:
            assert first.stdout.readline() == "open\n"
            second = attached(env)
            assert second.returncode == 1 and "UsageError" in second.stderr, second.stderr
            for word in ("split 'train'", f"process {first.pid}", "opens it too", "help: "):
                assert word in second.stderr, (word, second.stderr)
            assert first.communicate("", 30)[0] == "80\n" and first.returncode == 0
        finally:
            first.kill()
            first.wait()
        serving.end()


def test_nobody_serves():
    raises(penstock.PeerLostError, lambda: penstock.DataLoader(job, split="train", attach=True, trainer__timeout_s=1, output=OUTPUT),
           "penstock serve")


def test_not_attached_by_mistake():
    os.environ["PENSTOCK_ATTACH"] = "1"
    try:
        with penstock.DataLoader(job, split="train", attach=False, output=OUTPUT) as loader:
            assert loader.embedded
    finally:
        del os.environ["PENSTOCK_ATTACH"]


if __name__ == "__main__":
    run_tests(globals())
