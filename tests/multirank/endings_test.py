"""How a running job ends or goes on when something hits it: Ctrl-C and SIGTERM, kill -9 of mpirun, of a loader, of a
trainer's rank, of the training program, and a loader that is stopped for a while. Each time: a named end in seconds or
the same stream, and no process, socket, segment or file left."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from jobs import FULL, PENSTOCK, demo_photos, mpirun_words, run_job, run_tests, skip_without_mpirun, write_job
from leftovers import MARK, marked_processes, no_leftovers

skip_without_mpirun()
PATTERNS = os.path.join(os.environ["PENSTOCK_BUILD"], "patterns")
work = tempfile.TemporaryDirectory(prefix="endings_test-")
job = write_job(work.name, demo_photos())
GRACE_S = 2  # of the job
LIMIT_S = GRACE_S + 10


class Running:
    """A job whose trainers have had their first batch."""

    def __init__(self, env, ranks=4, mode="endless", launch=True, overrides=(), program=None):
        self.env = env
        self.folder = tempfile.mkdtemp(dir=work.name)
        self.out = open(os.path.join(self.folder, "stdout"), "w+")
        self.err = open(os.path.join(self.folder, "stderr"), "w+")
        program = program or [PATTERNS, mode, job, os.path.join(self.folder, "%r.json")]
        words = ["run", job, "--json", "--quiet", *overrides, "--", *program]
        if launch:
            words = [PENSTOCK, "launch", "--run", "-n", str(ranks), *words[1:]]
        elif ranks:
            words = [*mpirun_words(ranks), PENSTOCK, *[word for word in words if word != "--quiet"]]
        else:
            words = [PENSTOCK, *words]
        self.process = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err,
                                        start_new_session=True)
        self.wait_for("first batch 0")
        self.wait_for("first batch 1")

    def text(self, name="stdout"):
        with open(os.path.join(self.folder, name), errors="replace") as file:
            return file.read()

    def wait_for(self, what, limit_s=20):
        deadline = time.monotonic() + limit_s
        while what not in self.text():
            assert time.monotonic() < deadline and self.process.poll() is None, f"no '{what}'\n{self.log()}"
            time.sleep(0.02)

    def log(self):
        return f"exit code {self.process.poll()}\n--- stdout\n{self.text()}\n--- stderr\n{self.text('stderr')[-5000:]}"

    def pids(self, pattern):
        return sorted(pid for pid, what in marked_processes(self.env[MARK]).items() if re.search(pattern, what))

    def mpirun(self):
        return self.pids(r"^(mpirun|prterun)\b")[0]

    def ranks(self):
        """pids by rank: mpirun's children, in the order they were started."""
        mpirun = self.mpirun()
        found = {}
        with open(f"/proc/{mpirun}/task/{mpirun}/children") as file:
            for pid in map(int, file.read().split()):
                with open(f"/proc/{pid}/environ", "rb") as environ:
                    number = re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", environ.read())
                found[int(number.group(1))] = pid
        return found

    def program(self, trainer):
        for pid in self.pids(r"^\S*patterns "):
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"RANK={trainer}".encode() in file.read().split(b"\0"):
                    return pid
        raise AssertionError(f"no program of trainer {trainer}")

    def end(self, limit_s=LIMIT_S):
        """The exit code, which must come in time."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {limit_s} s\n{self.log()}") from None
        finally:
            self.out.close()
            self.err.close()


def leaving_nothing():
    return no_leftovers(wait_s=GRACE_S + 6)


def test_ctrl_c_and_sigterm():
    for number in (signal.SIGINT, signal.SIGTERM):
        with leaving_nothing() as env:
            running = Running(env)
            os.killpg(running.process.pid, number)  # as a terminal does it
            assert running.end() == 128 + number, running.log()
            assert "mpirun -n" not in running.text("stderr"), running.log()  # --quiet: not the line either
    with leaving_nothing() as env:  # mpirun itself, without the launcher
        running = Running(env, ranks=3, launch=False)
        running.process.send_signal(signal.SIGTERM)
        assert running.end() != 0
    for number in (signal.SIGINT, signal.SIGTERM):  # the whole job in one process
        with leaving_nothing() as env:
            running = Running(env, ranks=0, launch=False)
            running.process.send_signal(number)
            assert running.end() == 128 + number, running.log()


def test_a_signal_to_everybody_costs_no_checkpoint():
    # `timeout` signals what it started, a terminal's hang-up or killpg the group, systemd and scancel every process.
    def to_launch(running, number):
        running.process.send_signal(number)

    def to_group(running, number):
        os.killpg(running.process.pid, number)

    def to_group_twice(running, number):
        os.killpg(running.process.pid, number)
        time.sleep(0.3)
        os.killpg(running.process.pid, number)

    def to_all(running, number):
        for pid in marked_processes(running.env[MARK]):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    cases = [(to_launch, signal.SIGINT), (to_group, signal.SIGINT), (to_group, signal.SIGTERM),
             (to_group_twice, signal.SIGINT), (to_all, signal.SIGTERM)]
    for reach, number in cases * (4 if FULL else 1):
        with leaving_nothing() as env:
            running = Running(env, mode="checkpoint")
            time.sleep(0.2)
            reach(running, number)
            assert running.end() == 128 + number, (reach.__name__, running.log())
            saved = sorted(name for name in os.listdir(running.folder) if name.endswith(".json"))
            assert saved == ["0.json", "1.json"], (reach.__name__, number, saved, running.log())


def test_a_second_signal_after_a_while_ends_at_once():
    with leaving_nothing() as env:
        running = Running(env, overrides=["trainer.grace_s=60"], program=[
            "sh", "-c", "trap '' TERM; echo first batch $RANK; while :; do sleep 0.05; done"])
        os.killpg(running.process.pid, signal.SIGINT)
        time.sleep(2.5)
        assert running.process.poll() is None
        os.killpg(running.process.pid, signal.SIGINT)
        assert running.end() == 130, running.log()


def test_kill_9_of_mpirun():
    with leaving_nothing() as env:
        running = Running(env)
        os.kill(running.mpirun(), signal.SIGKILL)
        assert running.end() != 0, running.log()


def test_kill_9_of_a_whole_job_in_one_process():
    with leaving_nothing() as env:
        running = Running(env, ranks=0, launch=False)
        running.process.kill()
        assert running.end() == -signal.SIGKILL


LONG_BATCH = ["splits.train.batch_size=4", "loader.chunk_samples=2"]
WAYS = {"shm": ({}, "shm"), "mpi": ({}, "mpi"), "tcp": ({"OMPI_MCA_btl": "self,tcp"}, "mpi")}


def long_program(folder):
    """Ten epochs of 80 images, in some seconds."""
    return [PATTERNS, "long", job, os.path.join(folder, "%r.json"), *LONG_BATCH]


@functools.cache
def undisturbed():
    result = run_job(job, overrides=LONG_BATCH, program=long_program(work.name))
    split = result.report["splits"]["train"]
    assert split["images"] == 10 * 80
    return split


def require_same_stream(running):
    report = json.loads(running.text().strip().splitlines()[-1])
    for key in ("images", "order_hash", "pixel_hash"):
        assert report["splits"]["train"][key] == undisturbed()[key], (key, running.log())
    return report


def test_kill_9_of_a_loader_costs_time_alone():
    expected = undisturbed()
    assert expected["images"] == 800
    for way, (variables, transport) in WAYS.items():
        with leaving_nothing() as env:
            running = Running(dict(env, **variables), program=long_program(work.name),
                              overrides=[*LONG_BATCH, f"transport={transport}", "balancer.lost_after_s=60"])
            os.kill(running.ranks()[3], signal.SIGKILL)
            assert running.end(30) == 0, (way, running.log())
            report = require_same_stream(running)
            lost = [text for rank in report["ranks"] for text in rank.get("lost_loaders", [])]
            assert len(lost) == 1 and lost[0].startswith("rank 3 (loader): "), lost
            assert "the job is complete; killed, or cut off with its host: rank 3" in running.text("stderr"), running.log()


def test_a_loader_that_gets_sigterm_leaves_in_good_order():
    # Alone it goes; where all of them are asked to, the last one stays.
    for ranks in ((3,), (2, 3)):
        with leaving_nothing() as env:
            running = Running(env, program=long_program(work.name), overrides=[*LONG_BATCH, "balancer.lost_after_s=60"])
            loaders = running.ranks()
            for rank in ranks:
                os.kill(loaders[rank], signal.SIGTERM)
            assert running.end(30) == 0, running.log()
            report = require_same_stream(running)
            left = [text for rank in report["ranks"] for text in rank.get("left_loaders", [])]
            assert len(left) == 1 and re.match(r"rank [23] \(loader\): SIGTERM", left[0]), left
            assert not any(rank.get("lost_loaders") for rank in report["ranks"]), running.log()
            assert [rank["rank"] for rank in report["ranks"] if rank["role"] == "loader"] == [2, 3], running.log()
            assert "leaves (SIGTERM)" in running.text("stderr"), running.log()


def test_a_loaders_loss_ends_the_job_where_that_is_asked_for_or_mpirun_does_it():
    with leaving_nothing() as env:
        running = Running(env, overrides=["balancer.on_loader_loss=fail"])
        os.kill(running.ranks()[3], signal.SIGKILL)
        assert running.end() == 5, running.log()
        assert "penstock: lost rank 3 (loader): " in running.text("stderr"), running.log()
    with leaving_nothing() as env:  # without --enable-recovery; the ranks say at the start that it is missing
        running = Running(env, launch=False)
        os.kill(running.ranks()[3], signal.SIGKILL)
        assert running.end() != 0, running.log()
        assert "--enable-recovery" in running.text("stderr"), running.log()


def test_all_loaders_lost():
    for waits, overrides in ((2, []), (4, ["balancer.on_all_lost=wait", "balancer.wait_s=4"])):
        with leaving_nothing() as env:
            running = Running(env, overrides=overrides)
            ranks = running.ranks()
            for rank in (2, 3):
                os.kill(ranks[rank], signal.SIGKILL)
            begun = time.monotonic()
            assert running.end() == 5, running.log()
            assert waits <= time.monotonic() - begun < waits + GRACE_S + 3, (time.monotonic() - begun, running.log())
            assert "no loader is left" in running.text("stderr"), running.log()


def test_kill_9_of_a_trainers_rank():
    for trainer in (0, 1):
        with leaving_nothing() as env:
            running = Running(env)
            os.kill(running.ranks()[trainer], signal.SIGKILL)
            assert running.end() != 0, running.log()
            assert f"rank {trainer}" in running.text("stderr"), running.log()


def test_kill_9_of_a_training_program():
    for ranks in (0, 4):
        for trainer in (0, 1):
            with leaving_nothing() as env:
                running = Running(env, ranks=ranks, launch=ranks > 0)
                os.kill(running.program(trainer), signal.SIGKILL)
                assert running.end() == 1, running.log()
                assert f"trainer {trainer}" in running.text("stderr"), running.log()
                assert "was killed by SIGKILL" in running.text("stderr"), running.log()


def test_a_loader_that_stops_for_a_while():
    # Its leases run out and are granted again, so the job goes on; what it sends when it wakes up is late and dropped.
    for transport in ("shm", "mpi"):
        with leaving_nothing() as env:
            folder = tempfile.mkdtemp(dir=work.name)
            running = Running(env, program=long_program(folder),
                              overrides=[*LONG_BATCH, f"transport={transport}", "balancer.lease_timeout_s=0.3",
                                         "balancer.lost_after_s=60", f"balancer.log={folder}/balancer.log"])
            loader = running.ranks()[3]
            for _ in range(3):
                os.kill(loader, signal.SIGSTOP)
                time.sleep(0.7)
                os.kill(loader, signal.SIGCONT)
                time.sleep(0.15)
            assert running.end(40) == 0, running.log()
            report = require_same_stream(running)
        with open(os.path.join(folder, "balancer.log")) as file:
            assert '"revoke"' in file.read(), "no lease ran out: the loader was not in the way of anything"
        dropped = sum(rank.get("dropped_chunks", 0) for rank in report["ranks"])
        print(f"  over {transport}: {dropped} late chunks dropped", flush=True)


def test_a_loader_that_was_given_up_comes_back():
    for transport in ("shm", "mpi"):
        with leaving_nothing() as env:
            running = Running(env, program=long_program(work.name),
                              overrides=[*LONG_BATCH, f"transport={transport}", "balancer.heartbeat_s=0.1",
                                         "balancer.lost_after_s=0.8"])
            loader = running.ranks()[3]
            for _ in range(2):
                os.kill(loader, signal.SIGSTOP)
                time.sleep(1.1)
                os.kill(loader, signal.SIGCONT)
                time.sleep(0.3)
            assert running.end(40) == 0, running.log()
            report = require_same_stream(running)
            lost = [text for rank in report["ranks"] for text in rank.get("lost_loaders", [])]
            assert len(lost) == 2 and all("; back after " in text for text in lost), lost
            assert any(rank["role"] == "loader" and rank["rank"] == 3 for rank in report["ranks"]), running.log()
            assert "lost rank 3 (loader): silent for 0." in running.text("stderr"), running.log()
            assert "rank 3 (loader) is back" in running.text("stderr"), running.log()


def test_a_loader_that_stays_stopped_costs_neither_the_stream_nor_the_end():
    with leaving_nothing() as env:
        running = Running(env, program=long_program(work.name),
                          overrides=[*LONG_BATCH, "balancer.heartbeat_s=0.1", "balancer.lost_after_s=0.8"])
        os.kill(running.ranks()[3], signal.SIGSTOP)
        assert running.end(40) == 0, running.log()
        require_same_stream(running)


def test_a_trainer_that_stops_for_a_while():
    # One stopped trainer's program holds up its own stream alone; nobody gives up on it.
    with leaving_nothing() as env:
        running = Running(env, program=long_program(work.name), overrides=[*LONG_BATCH, "balancer.lease_timeout_s=0.3"])
        stopped = running.program(1)
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(stopped, signal.SIGCONT)
        assert running.end(40) == 0, running.log()
        report = json.loads(running.text().strip().splitlines()[-1])
    assert report["splits"]["train"]["images"] == 10 * 80


if __name__ == "__main__":
    assert sys.platform == "linux"
    run_tests(globals())
