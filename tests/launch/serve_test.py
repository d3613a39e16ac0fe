"""`penstock serve` as its user meets it, in one process: what it says, how it ends, who finds it by which name."""

import contextlib
import os
import re
import shutil
import signal
import socket
import tempfile
import time

from jobs import PENSTOCK, demo_photos, hashes_of, run_job, run_tests, write_job
from leftovers import MARK, marked_processes, no_leftovers, run
from trainers import Serving, outside, place, run_trainers

CONSUME = os.path.join(os.environ["PENSTOCK_BUILD"], "consume")
work = tempfile.TemporaryDirectory(prefix="serve_test-")
job = write_job(work.name, demo_photos())
one = write_job(work.name, demo_photos(), trainers=1, name="one.yaml")
HOST = socket.gethostname()


def environment_of(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return file.read()
    return b""


def attached(result, job_file=one, env=None, words=(), **more):
    """One program that attaches: exit code and stderr."""
    (code, out, err), = run_trainers([CONSUME, job_file, *words], 1, env, [dict({"PENSTOCK_ATTACH": "1"}, **more)])
    assert code == result, f"{code}\n{out}\n{err}"
    return out + err


def test_it_says_what_to_do_and_the_line_works():
    with no_leftovers() as env, Serving(job, env) as serving:
        said = serving.wait_for("--stop").text()
        assert "PENSTOCK_ATTACH=1 torchrun --nproc_per_node=2" in said, said
        assert "penstock serve --stop " + job in said, said
        for code, out, err in run_trainers([CONSUME, job, "--epochs=1"], 2, env):
            assert code == 0 and err == "", err
            assert "of 2: validation" in out, out
        report = serving.end()
        assert hashes_of(report) == run_job(job).hashes()
        said = serving.text()
        for what in ("attached", "is gone"):
            assert len(re.findall(rf"process \d+ {what}", said)) == 2, said
        assert "asked for it" in said, said


def test_signals_end_it_well():
    for number, name in ((signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "SIGINT")):
        with no_leftovers() as env, Serving(one, env) as serving:
            serving.wait_for("--stop")
            serving.process.send_signal(number)
            assert serving.report()["splits"] == {} and f"serving ends: {name}" in serving.text()


def test_it_ends_when_nobody_comes_any_more():
    with no_leftovers() as env, Serving(one, env, options=["--idle-s=2"]) as serving:
        serving.wait_for("--stop")
        attached(0, env=env, words=["--epochs=1"])
        assert serving.report()["splits"]["train"]["images"] == 80
        assert "no program for" in serving.text(), serving.text()


def test_nobody_serves():
    with no_leftovers() as env:
        said = attached(5, env=env, words=["trainer.timeout_s=0.5"])
        for word in ("nobody serves job 'one-", f"user {os.geteuid()}", "local rank 0", HOST, f"penstock serve {one}"):
            assert word in said, (word, said)
        result = run([PENSTOCK, "serve", "--stop", one], 20, env=outside(env))
        assert result.returncode == 5 and "nobody serves job 'one-" in result.stderr, result.stderr
        assert "PENSTOCK_ATTACH is 'yes'" in attached(2, env=env, PENSTOCK_ATTACH="yes")


def test_names():
    with no_leftovers() as env:
        for key, what in (("name=a/b", "letters, digits"), ("roles.ranks_per_replica=2", "ranks_per_replica is 2")):
            result = run([PENSTOCK, "serve", one, key], 20, env=outside(env))
            assert result.returncode == 3 and what in result.stderr, result.stderr
        result = run([PENSTOCK, "serve", one, "--", "true"], 20, env=outside(env))
        assert result.returncode == 2 and "starts no program" in result.stderr, result.stderr
        # The same file by another way is the same job; a copy is not; a name is what it says.
        with Serving(one, env) as serving:
            serving.wait_for("--stop")
            result = run([PENSTOCK, "serve", os.path.join(work.name, ".", "one.yaml")], 20, env=outside(env))
            assert result.returncode == 2 and f"on host {HOST} already" in result.stderr, result.stderr
            copy = shutil.copy(one, os.path.join(work.name, "copy.yaml"))
            assert "nobody serves job 'copy-" in attached(5, copy, env, ["trainer.timeout_s=0.1"])
            with Serving(copy, env, overrides=["name=mine"]) as other:
                other.wait_for("serving job 'mine'")
                attached(0, copy, env, ["name=mine", "--epochs=1"])
                attached(0, one, env, PENSTOCK_CFG__NAME="mine", words=["--epochs=1"])
                assert other.end()["splits"]["train"]["images"] == 2 * 80
            assert serving.end()["splits"] == {}


def test_a_program_that_did_not_ask_is_told():
    with no_leftovers() as env, Serving(one, env) as serving:
        serving.wait_for("--stop")
        plain = outside(env)
        for more, told in (({}, True), ({"PENSTOCK_ATTACH": "0"}, False)):
            result = run([CONSUME, one, "--epochs=1"], 30, env=dict(plain, **more))
            assert result.returncode == 0 and ("PENSTOCK_ATTACH=1" in result.stderr) == told, result.stderr
        assert serving.end()["splits"] == {}


def test_overrides_of_the_serve_line_reach_the_program():
    photos = os.path.dirname(demo_photos())
    relative = os.path.relpath(os.path.join(demo_photos(), "val"), photos)
    with no_leftovers() as env, Serving(one, env, cwd=photos, overrides=[
            "splits.train.batch_size=40", f"splits.train.dataset.folder={relative}"]) as serving:
        assert "40 images in 1 batches" in attached(0, env=env, words=["--epochs=1"])
        assert "26 images in 13 batches" in attached(0, env=env, words=["--epochs=1", "splits.train.batch_size=2"])
        serving.end()
    with open(os.path.join(work.name, "order.txt"), "w") as file:
        file.write("5\n3\n5\n")
    with no_leftovers() as env, Serving(one, env, cwd=work.name, overrides=[
            "splits.train.sampler.indices=order.txt", "splits.train.tail=torch"]) as serving:
        attached(0, env=env, words=["--epochs=1"])
        train = serving.end()["splits"]["train"]
        assert train["images"] == 3, train


def test_what_was_wrong_with_the_data_may_be_put_right():
    with no_leftovers() as env, tempfile.TemporaryDirectory(dir=work.name) as folder:
        late = write_job(folder, folder, trainers=1, name="late.yaml")
        with Serving(late, env) as serving:
            assert "does not exist" in attached(4, late, env)
            for split in ("train", "val"):
                shutil.copytree(os.path.join(demo_photos(), split), os.path.join(folder, split))
            attached(0, late, env, ["--epochs=1"])
            assert serving.end()["splits"]["train"]["images"] == 80


def test_launch_serve():
    if shutil.which("mpirun") is None:
        return
    with no_leftovers() as env:
        import subprocess
        out = tempfile.TemporaryFile("w+")
        process = subprocess.Popen([PENSTOCK, "launch", "--run", "--serve", "--json", "-n", "2", one], env=outside(env),
                                   stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
        attached(0, env=env, words=["--epochs=1"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        out.seek(0)
        assert '"train"' in out.read()


def test_it_ends_without_loaders():
    # Nobody reads for the next program: no stream is open by which that would be noticed.
    if shutil.which("mpirun") is None:
        return
    # A dead loader cannot come back, so that on_all_lost: wait ends it as soon.
    for end, overrides in (("joined within", []), ("can come back", ["balancer.on_all_lost=wait", "balancer.wait_s=60"])):
        with no_leftovers(wait_s=8) as env, Serving(one, env, ranks=2, launch=True, overrides=overrides) as serving:
            serving.wait_for("--stop")
            attached(0, env=env, words=["--epochs=1"])
            loader = [pid for pid in marked_processes(env[MARK]) if b"OMPI_COMM_WORLD_RANK=1\0" in environment_of(pid)]
            begun = time.monotonic()
            for pid in loader:  # with its helper
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            assert serving.process.wait(30) == 5, serving.text()
            assert time.monotonic() - begun > 2, serving.text()
            assert f"no loader is left, and none {end}" in serving.text().splitlines()[-1], serving.text()


if __name__ == "__main__":
    assert place(0, 1)["LOCAL_RANK"] == "0"
    run_tests(globals())
