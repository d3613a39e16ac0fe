"""How a running job ends or goes on when something hits it: Ctrl-C and SIGTERM, kill -9 of launch, of mpirun, of a
loader, of a trainer's rank, of the training program, and any of them stopped for a while. Each time: a named end in
seconds or the same stream, and no process, socket, segment or file left. With PENSTOCK_FULL=1 what is stopped is so for
half a minute, and each end comes 20 times at random moments, of which a table is printed. By default each kind of end and of
interruption comes once, in jobs whose pictures have a few pixels."""

import contextlib
import ctypes
import functools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from jobs import FULL, KILLED, PENSTOCK, demo_photos, hold_file, left_to_full, mpirun_words, run_job, run_tests, small_pictures, skip_without_mpirun, write_job
from leftovers import BUSY_S, MARK, marked_processes, no_leftovers

skip_without_mpirun()
PATTERNS = os.path.join(os.environ["PENSTOCK_BUILD"], "patterns")
work = tempfile.TemporaryDirectory(prefix="endings_test-")


def pictures(count=80):
    return demo_photos(count=count) if FULL else small_pictures(os.path.join(work.name, f"pictures-{count}"), count)


job = write_job(work.name, pictures())
GRACE_S = 2  # of the job
HANGING_READS = os.path.join(os.environ["PENSTOCK_BUILD"], "tests", "multirank", "libhanging_reads.so")
HANGING = ["roles.trainers=1", "splits.train.batch_size=6", "splits.train.sampler.shuffle=false", "loader.threads=1"]
LIMIT_S = GRACE_S + 10 + BUSY_S
SECOND_S = 3.5  # from one Ctrl-C to the next, which so means "at once": by signals.h that is 2 s, between moments of another process


class Running:
    """A job whose trainers have had their first batch; where `started` is false, one that has just been asked for; where
    `heard` is, one whose stderr is a pipe that nobody reads."""
    hold = None  # the file that keeps the programs from their last epoch, until let_go()

    def __init__(self, env, ranks=4, mode="endless", launch=True, overrides=(), program=None, started=True,
                 job_file=job, heard=True, mpirun="mpirun"):
        self.env = env
        self.folder = tempfile.mkdtemp(dir=work.name)
        self.out = open(os.path.join(self.folder, "stdout"), "w+")
        self.err = open(os.path.join(self.folder, "stderr"), "w+")
        if not heard:
            self.err.close()
            reading, writing = os.pipe()
            os.close(reading)
            self.err = os.fdopen(writing, "w")
        program = program or [PATTERNS, mode, job_file, os.path.join(self.folder, "%r.json")]
        words = ["run", job_file, "--json", "--quiet", *overrides, "--", *program]
        if launch:
            words = [PENSTOCK, "launch", "--run", "--mpirun", mpirun, "-n", str(ranks), *words[1:]]
        elif ranks:
            words = [*mpirun_words(ranks), PENSTOCK, *[word for word in words if word != "--quiet"]]
        else:
            words = [PENSTOCK, *words]
        self.process = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err,
                                        start_new_session=True)
        if started:
            self.wait_for("first batch 0")
            self.wait_for("first batch 1")

    def text(self, name="stdout"):
        with open(os.path.join(self.folder, name), errors="replace") as file:
            return file.read()

    def wait_for(self, what, limit_s=40, name="stdout", count=1):
        deadline = time.monotonic() + limit_s
        while self.text(name).count(what) < count:
            assert time.monotonic() < deadline and self.process.poll() is None, f"no '{what}'\n{self.log()}"
            time.sleep(0.02)

    def log(self):
        return f"exit code {self.process.poll()}\n--- stdout\n{self.text()}\n--- stderr\n{self.text('stderr')[-5000:]}"

    def pids(self, pattern):
        return sorted(pid for pid, what in marked_processes(self.env[MARK]).items() if re.search(pattern, what))

    def mpirun(self):
        return self.pids(r"^(mpirun|prterun) (?!--version)")[0]  # launch asks for that first

    def ranks(self):
        """pids by rank: mpirun's children, in the order they were started."""
        mpirun = self.mpirun()
        found = {}
        with open(f"/proc/{mpirun}/task/{mpirun}/children") as file:
            for pid in map(int, file.read().split()):
                with open(f"/proc/{pid}/environ", "rb") as environ:
                    number = re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", environ.read())
                if number:  # else mpirun has forked it a moment ago, and it has not come to its program
                    found[int(number.group(1))] = pid
        return found

    def program(self, trainer):
        for pid in self.pids(r"^\S*patterns "):
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"RANK={trainer}".encode() in file.read().split(b"\0"):
                    return pid
        raise AssertionError(f"no program of trainer {trainer}")

    def let_go(self):
        if self.hold:
            os.remove(self.hold)
            self.hold = None

    def end(self, limit_s=LIMIT_S):
        """The exit code, which must come in time."""
        self.let_go()
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
    for number in (signal.SIGINT, signal.SIGTERM) if FULL else (signal.SIGTERM,):
        with leaving_nothing() as env:
            running = Running(env)
            os.killpg(running.process.pid, number)  # as a terminal does it
            assert running.end() == 128 + number, running.log()
            assert "mpirun -n" not in running.text("stderr"), running.log()  # --quiet: not the line either
    with leaving_nothing() as env:  # mpirun itself, without the launcher
        running = Running(env, ranks=3, launch=False)
        running.process.send_signal(signal.SIGTERM)
        assert running.end() != 0
    for number in (signal.SIGINT, signal.SIGTERM) if FULL else (signal.SIGINT,):  # the whole job in one process
        with leaving_nothing() as env:
            running = Running(env, ranks=0, launch=False)
            running.process.send_signal(number)
            assert running.end() == 128 + number, running.log()


CHECKPOINT_GRACE = ["trainer.grace_s=10"]  # it takes 0.6 s where it gets its batches at once


def test_sigterm_to_mpirun_alone_is_a_request_to_the_job():
    for number in (signal.SIGTERM, signal.SIGINT) if FULL else (signal.SIGTERM,):
        with leaving_nothing() as env:
            running = Running(env, mode="checkpoint", overrides=CHECKPOINT_GRACE)
            begun = time.monotonic()
            os.kill(running.mpirun(), number)
            assert running.end() == 128 + number, running.log()
            assert time.monotonic() - begun < LIMIT_S, running.log()


def test_a_loader_that_is_killed_while_the_job_starts_is_named_alone():
    # Before launch has heard of it, and after: it has a socket, by which it says that it has begun, as its first act.
    def heard(pid):
        sockets = [fd for fd in os.listdir(f"/proc/{pid}/fd") if "socket:" in os.readlink(f"/proc/{pid}/fd/{fd}")]
        if sockets:
            time.sleep(0.02)
        return bool(sockets)

    def killed_in_time(running, ready):
        """Not so where the job has begun before this process had a core: it then goes on without the loader."""
        deadline = time.monotonic() + 40
        killed = False
        while running.process.poll() is None and "first batch" not in running.text():
            assert time.monotonic() < deadline, running.log()
            if not killed:
                with contextlib.suppress(LookupError, OSError, AttributeError, KeyError):
                    pid = running.ranks()[3]
                    if ready(pid):
                        os.kill(pid, signal.SIGKILL)
                        killed = True
            time.sleep(0.05 if killed else 0.002)  # each look reads all of /proc
        return killed and running.process.poll() is not None

    for ready in (lambda _: True, heard) if FULL else (heard,):
        for tries in range(5):
            with leaving_nothing() as env:
                running = Running(env, started=False)
                if not killed_in_time(running, ready):
                    assert tries < 4 and running.process.poll() is None, running.log()
                    os.killpg(running.process.pid, signal.SIGINT)
                    running.end()
                    continue
                code = running.end()
                last = running.text("stderr").splitlines()[-1]
                assert code != 0, running.log()
                assert re.search(KILLED + rf"rank 3 \(host {socket.gethostname()}\)$", last), running.log()
                break


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
    for reach, number in cases * 4 if FULL else cases[-2:]:
        with leaving_nothing() as env:
            running = Running(env, mode="checkpoint", overrides=CHECKPOINT_GRACE)
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
        time.sleep(SECOND_S)
        assert running.process.poll() is None
        os.killpg(running.process.pid, signal.SIGINT)
        assert running.end() == 130, running.log()


def test_an_end_at_once_is_heard_while_programs_have_their_grace():
    """A program has failed, and the other one has a minute for its end."""
    for ranks in (4, 0):
        with leaving_nothing() as env:
            running = Running(env, ranks=ranks, launch=ranks > 0, overrides=["trainer.grace_s=60"], started=False, program=[
                "sh", "-c", "trap '' TERM; echo first batch $RANK; [ $RANK = 0 ] || exit 3; while :; do sleep 0.05; done"])
            deadline = time.monotonic() + 20
            while "the program exited with" not in running.text("stderr"):
                assert time.monotonic() < deadline and running.process.poll() is None, running.log()
                time.sleep(0.02)
            time.sleep(0.5)
            ctrl_c(SECOND_S)(running)
            assert running.end(10 + BUSY_S) in (1, 130), running.log()


# Both trainers at once: a few words, a while that is longer than mpirun's own wait limit (1 s), then much more than
# pipes hold. What two processes write at once, mpirun mixes; so each has a character of its own, and they are counted.
SAYS_MUCH = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
def save(*_):
    for end in (1, 2):
        os.write(end, b"saving %d\\n" % rank)
    time.sleep(1.2)
    for end in (1, 2):
        for _ in range(2000):
            os.write(end, b"~^"[rank:rank + 1] * 99 + b"\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
os.write(1, b"first batch %d\\n" % rank)
while True:
    time.sleep(0.05)
"""


def test_what_a_program_says_while_it_is_ended_is_seen():
    program = [sys.executable, "-S", "-c", SAYS_MUCH]
    for group, number in ((False, signal.SIGTERM), (True, signal.SIGINT)) * 10 if FULL else ((True, signal.SIGINT),):
        with leaving_nothing() as env:
            # On a busy machine mpirun takes seconds to read a megabyte; beyond the grace nothing is seen.
            running = Running(env, overrides=["trainer.grace_s=20"], program=program)
            if group:
                os.killpg(running.process.pid, number)  # Ctrl-C
            else:
                running.process.send_signal(number)
            assert running.end(30 + BUSY_S) == 128 + number, running.log()
            for stream in ("stdout", "stderr"):
                text = running.text(stream)
                assert "saving 0" in text and "saving 1" in text, running.log()
                assert (text.count("~"), text.count("^")) == (2000 * 99, 2000 * 99), (stream, text[-3000:])
    # mpirun by hand gives its ranks a second. The program has its grace beyond that, but its words have nowhere to go.
    for _ in range(10 if FULL else 0):
        with leaving_nothing() as env:
            running = Running(env, launch=False, program=program)
            running.process.send_signal(signal.SIGTERM)
            assert running.end() != 0
            for stream in ("stdout", "stderr"):
                assert "saving 0" in running.text(stream) and "saving 1" in running.text(stream), running.log()


def test_kill_9_of_mpirun():
    with leaving_nothing() as env:
        running = Running(env)
        os.kill(running.mpirun(), signal.SIGKILL)
        assert running.end() == 5, running.log()


def test_kill_9_of_a_whole_job_in_one_process():
    with leaving_nothing() as env:
        running = Running(env, ranks=0, launch=False)
        running.process.kill()
        assert running.end() == -signal.SIGKILL


WAYS = {"shm": ({}, "shm"), "mpi": ({}, "mpi"), "tcp": ({"OMPI_MCA_btl": "self,tcp"}, "mpi")}


class Stream:
    """Ten epochs of `count` images with 40 ms for each batch, and how they are when nobody disturbs them."""

    def __init__(self, count, batch):
        self.count = count
        self.overrides = [f"splits.train.batch_size={batch}", "loader.chunk_samples=2"]

    @functools.cached_property
    def job(self):
        return write_job(work.name, pictures(self.count), name=f"job-{self.count}.yaml")

    @functools.cached_property
    def undisturbed(self):
        # Read in one process and without a pause: when a batch is asked for is nothing to the stream.
        split = run_job(self.job, options=["--epochs=10"], overrides=self.overrides).report["splits"]["train"]
        assert split["images"] == 10 * self.count
        return split

    def start(self, env, overrides=(), heard=True):
        """Held before its last epoch until it is let go, or its end is waited for."""
        folder = tempfile.mkdtemp(dir=work.name)
        hold = hold_file(folder)
        program = [PATTERNS, "long", self.job, os.path.join(folder, "%r.json"), *self.overrides]
        running = Running(env, job_file=self.job, program=program, overrides=[*self.overrides, *overrides], heard=heard)
        running.hold = hold
        return running

    def require_same(self, running):
        report = json.loads(running.text().strip().splitlines()[-1])
        for key in ("images", "order_hash", "pixel_hash"):
            assert report["splits"]["train"][key] == self.undisturbed[key], (key, running.log())
        return report


SHORT = Stream(count=80, batch=8)     # 2 s of batches
LONG = Stream(count=80, batch=4)      # 4 s
LONGER = Stream(count=400, batch=2)  # 40 s


def stop_for(seconds, pid):
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


def test_kill_9_of_a_loader_costs_time_alone():
    for way in WAYS if FULL else ("shm",):  # kills_test and openmpi5_test have the others
        variables, transport = WAYS[way]
        with leaving_nothing() as env:
            running = SHORT.start(dict(env, **variables), [f"transport={transport}", "balancer.lost_after_s=60"])
            os.kill(running.ranks()[3], signal.SIGKILL)
            assert running.end(30) == 0, (way, running.log())
            report = SHORT.require_same(running)
            lost = [text for rank in report["ranks"] for text in rank.get("lost_loaders", [])]
            assert len(lost) == 1 and lost[0].startswith("rank 3 (loader): "), lost
            assert re.search("the job is complete; " + KILLED + "rank 3 ", running.text("stderr")), running.log()


def test_whoever_reads_what_a_job_says_may_leave():
    # As with `2>&1 | head -1`: the ranks and launch have something to say, of a loader that was lost, and go on.
    with leaving_nothing() as env:
        running = SHORT.start(env, heard=False)
        os.kill(running.ranks()[3], signal.SIGKILL)
        assert running.end(30) == 0, running.log()
        assert SHORT.require_same(running)["ranks"][0]["lost_loaders"], running.log()


def test_a_loader_that_gets_sigterm_leaves_in_good_order():
    # Alone it goes; where all of them are asked to, the last one stays.
    for ranks in ((3,), (2, 3)) if FULL else ((2, 3),):
        with leaving_nothing() as env:
            running = SHORT.start(env, ["balancer.lost_after_s=60"])
            loaders = running.ranks()
            for rank in ranks:
                os.kill(loaders[rank], signal.SIGTERM)
            running.wait_for("leaves (SIGTERM)", name="stderr")
            assert running.end(30) == 0, running.log()
            report = SHORT.require_same(running)
            left = [text for rank in report["ranks"] for text in rank.get("left_loaders", [])]
            assert len(left) == 1 and re.match(r"rank [23] \(loader\): SIGTERM", left[0]), left
            assert not any(rank.get("lost_loaders") for rank in report["ranks"]), running.log()
            assert [rank["rank"] for rank in report["ranks"] if rank["role"] == "loader"] == [2, 3], running.log()


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
    waiting = ["balancer.on_all_lost=wait", "balancer.wait_s=60"]  # no dead loader can come back; serve_test has it by default
    waits = 2
    for overrides in ([], waiting) if FULL else ([],):
        with leaving_nothing() as env:
            running = Running(env, overrides=["balancer.lost_after_s=60", *overrides])
            ranks = running.ranks()
            for rank in (2, 3):
                os.kill(ranks[rank], signal.SIGKILL)
            begun = time.monotonic()
            while "no loader is left, and none" not in running.text("stderr"):
                assert time.monotonic() - begun < waits + 3 + BUSY_S, running.log()  # a death is detected in milliseconds
                time.sleep(0.02)
            assert running.end() == 5, running.log()
            assert waits <= time.monotonic() - begun < waits + GRACE_S + 3 + BUSY_S, (time.monotonic() - begun, running.log())
            assert "no loader is left" in running.text("stderr"), running.log()
    with leaving_nothing() as env:  # before the program has opened its split
        opens_late = ["sh", "-c", f"echo first batch $RANK; sleep 2; exec {PATTERNS} all {job} {work.name}/never.json"]
        running = Running(env, program=opens_late)
        ranks = running.ranks()
        for rank in (2, 3):
            os.kill(ranks[rank], signal.SIGKILL)
        assert running.end() == 5, running.log()
        assert "no loader is left that could read split" in running.text("stderr"), running.log()


def test_a_read_that_hangs_as_the_job_ends():
    # The program takes one batch and leaves, while the loader waits for the file of the next one.
    with leaving_nothing() as env:
        folder = small_pictures(os.path.join(work.name, "pictures-hanging"), 12, 1)
        hanging = os.path.join(folder, "train", "class3", "0011.ppm")  # the last one in order
        env = dict(env, LD_PRELOAD=HANGING_READS, HANGING_READS=hanging)
        if "ASAN_OPTIONS" in env:  # which wants to be the first library
            env["ASAN_OPTIONS"] += ":verify_asan_link_order=0"
        program = [PATTERNS, "first_batch", job, os.path.join(work.name, "hanging-%r.json"), *HANGING]
        program.append(f"splits.train.dataset.folder={folder}/train")
        running = Running(env, ranks=2, program=program, started=False,
                          overrides=[*HANGING, f"splits.train.dataset.folder={folder}/train"])
        running.wait_for("first batch")
        begun = time.monotonic()
        assert running.end(30) == 0, running.log()
        assert "a read hangs" in running.text("stderr"), running.log()
        assert time.monotonic() - begun < 6 + BUSY_S and "still there" not in running.text("stderr"), running.log()


def test_kill_9_of_a_trainers_rank():
    for trainer in (0, 1) if FULL else (1,):
        with leaving_nothing() as env:
            running = Running(env)
            os.kill(running.ranks()[trainer], signal.SIGKILL)
            assert running.end() == 5, running.log()
            assert re.search(KILLED + f"rank {trainer} ", running.text("stderr")), running.log()


def test_kill_9_of_a_trainers_rank_and_its_helper():
    # Nobody is left who knows of the program and of what that has started: launch ends them.
    out = os.path.join(tempfile.mkdtemp(dir=work.name), "%r.json")
    with leaving_nothing() as env:
        running = Running(env, program=["sh", "-c", 'sleep 1000 & exec "$@"', "sh", PATTERNS, "endless", job, out])
        rank = running.ranks()[1]
        helper = helper_of(rank)
        deadline = time.monotonic() + 20
        while len(running.pids("^sleep 1000")) < 2:  # the shell's child may still be the shell
            assert time.monotonic() < deadline, running.log()
            time.sleep(0.02)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: a helper is quick to end with its rank
            for pid in (helper, rank):  # the end of a rank would continue its helper
                os.kill(pid, number)
        assert running.end() == 5, running.log()
        assert re.search(KILLED + "rank 1 ", running.text("stderr")), running.log()


def helper_of(rank):
    with open(f"/proc/{rank}/task/{rank}/children") as file:
        helper, = map(int, file.read().split())
    return helper


def test_a_stopped_helper_is_continued():
    # It would not say that its program has ended, and the job would wait for that for ever.
    with leaving_nothing() as env:
        running = SHORT.start(env)
        os.kill(helper_of(running.ranks()[1]), signal.SIGSTOP)
        assert running.end(30) == 0, running.log()
        SHORT.require_same(running)
        assert re.search(r"trainer 1 \(.*the helper of its program \(process \d+\) does not answer; .*continued", running.text("stderr")), running.log()


@left_to_full("process_helper_test kills a helper that does not answer")
def test_a_helper_that_cannot_be_continued_ends_the_job():
    libc = ctypes.CDLL(None, use_errno=True)
    seize, interrupt = 0x4206, 0x4207  # PTRACE_…: a process that is traced and stopped takes no SIGCONT
    with leaving_nothing() as env:
        running = Running(env, overrides=["balancer.lost_after_s=5", "trainer.grace_s=0.5"])
        helper = helper_of(running.ranks()[1])
        for request in (seize, interrupt):
            assert libc.ptrace(request, helper, None, None) == 0, os.strerror(ctypes.get_errno())

        def wait_for_its_end():  # who traces a process sees its end first
            while os.WIFSTOPPED(os.waitpid(helper, 0)[1]):
                pass

        reaper = threading.Thread(target=wait_for_its_end)
        reaper.start()
        assert running.end(40) == 5, running.log()
        reaper.join(10)
        assert f"the helper of its program (process {helper}) does not answer, and did not after SIGCONT either" in running.text("stderr"), running.log()


def test_kill_9_of_a_training_program():
    for ranks, trainer in ((0, 0), (0, 1), (4, 0), (4, 1)) if FULL else ((0, 1), (4, 0)):
        with leaving_nothing() as env:
            running = Running(env, ranks=ranks, launch=ranks > 0)
            os.kill(running.program(trainer), signal.SIGKILL)
            assert running.end() == 1, running.log()
            assert f"trainer {trainer}" in running.text("stderr"), running.log()
            assert "was killed by SIGKILL" in running.text("stderr"), running.log()


def test_a_loader_that_stops_for_a_while():
    # Its leases run out and are granted again, so the job goes on; what it sends when it wakes up is late and dropped.
    for transport in ("shm", "mpi") if FULL else ("shm",):
        with leaving_nothing() as env:
            folder = tempfile.mkdtemp(dir=work.name)

            def revoked(log=os.path.join(folder, "balancer.log")):
                with open(log) as file:
                    return '"revoke"' in file.read()

            running = LONG.start(env, [f"transport={transport}", "balancer.lease_timeout_s=0.3",
                                         "balancer.lost_after_s=60", f"balancer.log={folder}/balancer.log"])
            loader = running.ranks()[3]
            for _ in range(2):
                stop_for(0.7, loader)
                time.sleep(0.15)
            # On a busy machine no lease may have run out: deadlines follow what chunks have taken.
            os.kill(loader, signal.SIGSTOP)
            running.let_go()
            deadline = time.monotonic() + 20
            while not revoked():
                assert time.monotonic() < deadline, f"no lease ran out: the loader was not in the way of anything\n{running.log()}"
                time.sleep(0.05)
            os.kill(loader, signal.SIGCONT)
            assert running.end(40) == 0, running.log()
            report = LONG.require_same(running)
        dropped = sum(rank.get("dropped_chunks", 0) for rank in report["ranks"])
        print(f"  over {transport}: {dropped} late chunks dropped", flush=True)


# As long as a process may be kept from its core on a busy machine, or one that nobody has stopped is lost as well.
SOON_MISSED = ["balancer.heartbeat_s=0.1", "balancer.lost_after_s=2"]


def test_a_loader_that_was_given_up_comes_back():
    for transport in ("shm", "mpi") if FULL else ("mpi",):
        with leaving_nothing() as env:
            running = LONG.start(env, [f"transport={transport}", *SOON_MISSED])
            loader = running.ranks()[3]
            for turn in (1, 2):
                os.kill(loader, signal.SIGSTOP)
                running.wait_for("lost rank 3 (loader): silent for ", name="stderr", count=turn)
                os.kill(loader, signal.SIGCONT)
                running.wait_for("rank 3 (loader) is back", name="stderr", count=turn)
            assert running.end(40) == 0, running.log()
            report = LONG.require_same(running)
            lost = [text for rank in report["ranks"] for text in rank.get("lost_loaders", [])]
            assert len(lost) == 2 and all("; back after " in text for text in lost), lost
            assert any(rank["role"] == "loader" and rank["rank"] == 3 for rank in report["ranks"]), running.log()
            assert "the job is complete; lost for a while, and back: rank 3 (loader)" in running.text("stderr"), running.log()


def test_a_loader_that_stays_stopped_costs_neither_the_stream_nor_the_end():
    with leaving_nothing() as env:
        running = SHORT.start(env, [*SOON_MISSED, "trainer.grace_s=0.5"])
        os.kill(running.ranks()[3], signal.SIGSTOP)
        assert running.end(40) == 0, running.log()
        SHORT.require_same(running)
    if not FULL:
        return
    # Stopped just before the end, with the limits that users have: its report is waited for, then its end, 8 s together.
    with leaving_nothing() as env:
        running = SHORT.start(env, ["trainer.grace_s=5"])
        ranks = running.ranks()
        os.kill(ranks[3], signal.SIGSTOP)
        running.let_go()
        while running.pids(r"^\S*patterns "):
            time.sleep(0.05)
        begun = time.monotonic()
        assert running.end(40) == 0, running.log()
        assert time.monotonic() - begun < 15, (time.monotonic() - begun, running.log())
        assert "the job is complete; silent until it was ended (stopped, or cut off): rank 3" in running.text("stderr"), running.log()


def test_a_job_that_fails_while_a_loader_is_away_does_not_wait_for_it():
    for transport, given_up in ((one, up) for one in ("shm", "mpi") for up in (True, False)) if FULL else (("mpi", True), ("shm", False)):
        with leaving_nothing() as env:
            running = Running(env, overrides=[*(SOON_MISSED if given_up else []), "trainer.grace_s=0.5", f"transport={transport}"])
            os.kill(running.ranks()[3], signal.SIGSTOP)
            if given_up:
                running.wait_for("lost rank 3 (loader): ", name="stderr")
            os.kill(running.program(0), signal.SIGKILL)
            begun = time.monotonic()
            assert running.end(40) == 1, running.log()
            # The grace, 3 s more in MPI_Finalize where nobody has missed the loader yet, and another 3 s in which launch expects
            # all ranks to be gone. A job that has ended well waits for 15 s in MPI_Finalize.
            assert time.monotonic() - begun < 15, (time.monotonic() - begun, running.log())
            assert "was killed by SIGKILL" in running.text("stderr"), running.log()


def test_an_end_that_is_asked_for_while_a_loader_is_stopped():
    # Nobody has missed it yet, so that the others wait for it in MPI_Finalize.
    grace_s = 0.5
    for number in (signal.SIGINT, signal.SIGTERM) if FULL else (signal.SIGINT,):
        with leaving_nothing() as env:
            running = Running(env, overrides=[f"trainer.grace_s={grace_s}", "balancer.lost_after_s=60"])
            os.kill(running.ranks()[3], signal.SIGSTOP)
            begun = time.monotonic()
            os.killpg(running.process.pid, number)
            assert running.end(25 + BUSY_S) == 128 + number, running.log()
            assert time.monotonic() - begun < grace_s + 5 + 2 + BUSY_S, (time.monotonic() - begun, running.log())
            last = running.text("stderr").splitlines()[-1]
            assert re.search(rf"{signal.Signals(number).name} asked for the job's end, and rank 3 \(host .*\) is still there after 4 s", last), running.log()


def test_rank_0_is_killed_while_a_loader_is_stopped():
    # launch sees rank 0's end, and does not wait until somebody misses the loader. The cause is rank 0's end alone.
    grace_s = 0.5
    for program in (None, STUBBORN) if FULL else (STUBBORN,):
        with leaving_nothing() as env:
            running = Running(env, overrides=[f"trainer.grace_s={grace_s}", "balancer.lost_after_s=60"], program=program)
            ranks = running.ranks()
            os.kill(ranks[3], signal.SIGSTOP)
            begun = time.monotonic()
            os.kill(ranks[0], signal.SIGKILL)
            assert running.end(25 + BUSY_S) == 5, running.log()
            assert time.monotonic() - begun < grace_s + 5 + 2 + BUSY_S, (time.monotonic() - begun, running.log())
            last = running.text("stderr").splitlines()[-1]
            assert re.search(KILLED + r"rank 0 \(host \S+\)$", last), running.log()


def test_a_trainer_that_stops_for_a_while():
    # One stopped trainer's program holds up its own stream alone; nobody gives up on it. Nor does it give up itself,
    # where it was stopped for longer than it waits for a batch.
    with leaving_nothing() as env:
        running = SHORT.start(env, ["balancer.lease_timeout_s=0.3", "trainer.timeout_s=3"])
        stop_for(3.5, running.program(1))
        assert running.end(40) == 0, running.log()
        SHORT.require_same(running)


def test_ranks_of_trainers_that_stop_for_a_while():
    # Shorter than balancer.lost_after_s (10 s): all that is lost is time.
    with leaving_nothing() as env:
        running = SHORT.start(env)
        ranks = running.ranks()
        for rank in (1, 0):
            stop_for(1.2, ranks[rank])
        assert running.end(40) == 0, running.log()
        report = SHORT.require_same(running)
        assert not any(rank.get("lost_loaders") for rank in report["ranks"]), running.log()


def test_a_trainers_rank_that_stays_stopped_ends_the_job():
    # It can neither end itself nor say anything; the others name it, and launch ends it.
    silence_s, grace_s = 0.8, 0.5
    overrides = ["balancer.heartbeat_s=0.1", f"balancer.lost_after_s={silence_s}", f"trainer.grace_s={grace_s}"]
    for rank in (0, 1) if FULL else (0,):
        for transport in ("shm", "mpi") if FULL else ("shm",):
            with leaving_nothing() as env:
                running = Running(env, overrides=[*overrides, f"transport={transport}"])
                begun = time.monotonic()
                os.kill(running.ranks()[rank], signal.SIGSTOP)
                # Rank 0 is missed after twice the silence, and its own silence is waited for besides.
                limit_s = (3 if rank == 0 else 1) * silence_s + 2 * grace_s + 5 + BUSY_S
                assert running.end(limit_s) == 5, running.log()
                assert time.monotonic() - begun < limit_s, (time.monotonic() - begun, running.log())
                said = running.text("stderr")
                assert re.search(rf"lost .*\(rank {rank}, .*nothing was heard of it for", said), running.log()
                # Rank 0 has to be ended; another one may be ended by mpirun before.
                assert re.search(rf"(silent until it was ended \(stopped, or cut off\): |{KILLED})rank {rank} ", said), running.log()


def test_rank_0_that_stays_stopped_beside_a_loader_ends_the_job():
    # The loader says nothing either, so that launch cannot wait for all others to be gone.
    with leaving_nothing() as env:
        running = Running(env, overrides=["balancer.heartbeat_s=0.1", "balancer.lost_after_s=0.8", "trainer.grace_s=0.5"])
        ranks = running.ranks()
        for rank in (3, 0):
            os.kill(ranks[rank], signal.SIGSTOP)
        assert running.end(25 + BUSY_S) == 5, running.log()
        said = running.text("stderr")
        assert re.search(r"rank 0 \(host .*\) has not ended, though rank 1 \(host .*\) left with exit code 5; mpirun is ended", said), running.log()
        assert re.search(r"silent until it was ended \(stopped, or cut off\): rank 0 .*, rank 3 ", said), running.log()


@left_to_full("stops of a second or two of the same processes, with limits that are as much shorter")
def test_stops_of_half_a_minute():
    # With the times that users have: a loader is given up after 10 s and comes back; a program is waited for, for as
    # long as it likes. A rank of a trainer would be given up as well, and with it the job, unless the limit is raised.
    for what, transport, overrides in (("loader", "shm", []), ("loader", "mpi", []), ("program", "shm", []),
                                       ("rank 0", "shm", ["balancer.lost_after_s=60"]),
                                       ("rank 1", "mpi", ["balancer.lost_after_s=60"])):
        with leaving_nothing() as env:
            running = LONGER.start(env, [f"transport={transport}", *overrides])
            ranks = running.ranks()
            victims = {"loader": ranks[3], "program": running.program(1), "rank 0": ranks[0], "rank 1": ranks[1]}
            stop_for(30, victims[what])
            assert running.end(120) == 0, (what, running.log())
            report = LONGER.require_same(running)
            lost = [text for rank in report["ranks"] for text in rank.get("lost_loaders", [])]
            assert len(lost) == (1 if what == "loader" else 0), (what, lost, running.log())
            assert all("; back after " in text for text in lost), lost
        print(f"  {what} over {transport}: the same stream {lost}", flush=True)


# Ends as somebody sees them who knows nothing of grace periods: what is done, and with which exit code launch may end
# then. The programs end at SIGTERM at once, save a checkpoint, or ignore it.
STUBBORN = ["sh", "-c", "trap '' TERM; echo first batch $RANK; while :; do sleep 0.05; done"]


def ctrl_c(*pauses):
    def press(running):
        begun = time.monotonic()
        os.killpg(running.process.pid, signal.SIGINT)
        for pause in pauses:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(pause)
                break
            os.killpg(running.process.pid, signal.SIGINT)
        return begun
    return press


def kill_9(find):
    def kill(running):
        while running.process.poll() is None:
            with contextlib.suppress(LookupError, AssertionError, OSError):  # it is not there yet
                os.kill(find(running), signal.SIGKILL)
                return time.monotonic()
            time.sleep(0.01)
        raise AssertionError(f"nothing to kill\n{running.log()}")
    return kill


ENDS = {
    "Ctrl-C": (ctrl_c(), {130, -2}),
    "Ctrl-C three times, 0.3 s apart": (ctrl_c(0.3, 0.3), {130, -2}),
    "Ctrl-C three times, 2.5 s apart": (ctrl_c(2.5, 2.5), {130, -2}),
    "kill -9 of launch": (kill_9(lambda running: running.process.pid), {-9}),
    "kill -9 of mpirun": (kill_9(lambda running: running.mpirun()), {5}),
    "kill -9 of a trainer's rank": (kill_9(lambda running: running.ranks()[1]), {5}),
    "kill -9 of rank 0": (kill_9(lambda running: running.ranks()[0]), {5}),
    "kill -9 of a training program": (kill_9(lambda running: running.program(0)), {1}),
}
ONLY_HERE = ("kill -9 of launch",)  # the others are tested above


def mpirun_whose_ranks(begin):
    """A folder with an `mpirun` whose ranks do that first, in shell."""
    folder = tempfile.mkdtemp(dir=work.name)
    scripts = {
        "mpirun": f'for word; do shift; [ "$word" != {PENSTOCK} ] || word={folder}/rank; set -- "$@" "$word"; done; exec mpirun "$@"',
        "rank": f'up={folder}/up; {begin}; exec {PENSTOCK} "$@"',
    }
    for name, script in scripts.items():
        with open(os.path.join(folder, name), "w") as file:
            file.write(f"#!/bin/sh\n{script}\n")
        os.chmod(os.path.join(folder, name), 0o755)
    return folder


def test_an_end_at_once_that_is_asked_for_before_there_are_ranks():
    # Ranks that come up slowly do not hear what mpirun passes on, and so it comes again.
    folder = mpirun_whose_ranks('trap "" ALRM XCPU; : > $up; sleep 6')
    with leaving_nothing() as env:
        running = Running(env, program=STUBBORN, started=False, overrides=["trainer.grace_s=60"], mpirun=os.path.join(folder, "mpirun"))
        while not os.path.exists(os.path.join(folder, "up")):
            assert running.process.poll() is None, running.log()
            time.sleep(0.02)
        begun = ctrl_c(SECOND_S)(running)
        assert running.end(25 + BUSY_S) == 130, running.log()
        assert time.monotonic() - begun > SECOND_S, running.log()  # both came before there were ranks


def test_an_end_is_heard_by_ranks_that_wait_for_one_that_is_gone():
    folder = mpirun_whose_ranks('[ "$OMPI_COMM_WORLD_RANK" != 1 ] || kill -9 $$')
    with leaving_nothing() as env:
        running = Running(env, program=STUBBORN, started=False, mpirun=os.path.join(folder, "mpirun"))
        while len(running.pids(r"penstock run")) < 6:  # three ranks and their helpers
            assert running.process.poll() is None, running.log()
            time.sleep(0.02)
        time.sleep(1)
        begun = ctrl_c()(running)
        assert running.end(20) == 130 and time.monotonic() - begun < 6 + BUSY_S, (time.monotonic() - begun, running.log())


def test_a_rank_that_stays_stopped_while_the_job_starts_is_named():
    # At moments that are drawn: in MPI_Init, in what follows it, or when the job has begun, and then it is a loader that is silent.
    limit_s = 4 + BUSY_S / 2  # of each step; mpirun has it, too, to start the ranks
    seed = random.randrange(1 << 32)
    print(f"  seed {seed}", flush=True)
    draw = random.Random(seed)
    named = 0
    tries = 12 if FULL else 4
    for number in range(tries):
        if named and not FULL:
            break
        with leaving_nothing() as env:
            running = Running(env, started=False, overrides=[f"mpi.start_timeout_s={limit_s}"])
            pid = None
            while pid is None:
                assert running.process.poll() is None, running.log()
                with contextlib.suppress(LookupError, OSError, AttributeError):
                    rank_3 = running.ranks()[3]
                    # It forks its helper once it has told launch that it has begun; before that it would be one not heard of.
                    while True:
                        with open(f"/proc/{rank_3}/task/{rank_3}/children") as file:
                            if file.read():
                                break
                        time.sleep(0.002)
                    pid = rank_3
            time.sleep(draw.uniform(0, 0.1 if number % 2 == 0 or not FULL else 0.6))  # a start may take no longer than 0.1 s
            os.kill(pid, signal.SIGSTOP)
            deadline = time.monotonic() + 2 * limit_s + 20 + BUSY_S
            while running.process.poll() is None and "first batch" not in running.text():
                assert time.monotonic() < deadline, running.log()
                time.sleep(0.05)
            if running.process.poll() is None:
                os.killpg(running.process.pid, signal.SIGINT)
                running.end()
                continue
            assert running.end() == 5, running.log()
            last = running.text("stderr").splitlines()[-1]
            assert re.search(rf"silent until it was ended \(stopped, or cut off\): rank 3 \(host {socket.gethostname()}\)$", last), running.log()
            named += 1
    assert named, "no job was stopped while it started"
    print(f"  named in {named} of {tries} jobs" if FULL else "  named", flush=True)


def seconds_until_nothing_is_left(running, begun, limit_s):
    looks = 0  # as in leftovers.py
    while looks < 2:
        left = [*marked_processes(running.env[MARK]).values(), *os.listdir(running.env["TMPDIR"])]
        looks = 0 if left else looks + 1
        seconds = time.monotonic() - begun
        assert seconds < limit_s, (left, running.log())
        time.sleep(0.02)
    return seconds


def test_nothing_is_left_whatever_ends_the_job():
    seed = random.randrange(1 << 32)
    print(f"  seed {seed}", flush=True)
    draw = random.Random(seed)
    if FULL:
        print("  | what | times | exit codes | longest until nothing was left |\n  |---|---|---|---|", flush=True)
    for name, (end, codes) in ENDS.items():
        seen, longest = {}, 0
        for number in range(20 if FULL else name in ONLY_HERE):
            program, mode = draw.choice([(None, "endless"), (None, "checkpoint"), (STUBBORN, "")])
            if "program" in name:
                program, mode = None, "endless"
            # Half of the jobs have just been asked for, and may be in the middle of starting.
            started, delay_s = (True, draw.uniform(0, 1)) if number % 2 == 0 else (False, draw.uniform(0.1, 2))
            # Where later presses mean "at once", that is so whatever the grace.
            overrides = ["trainer.grace_s=60"] if "2.5 s" in name else []
            with leaving_nothing() as env:
                running = Running(env, mode=mode, program=program, started=started, overrides=overrides)
                time.sleep(delay_s)
                begun = end(running)
                seconds = seconds_until_nothing_is_left(running, begun, GRACE_S + 5 + BUSY_S)
                code = running.end()
                assert code in codes, (name, started, delay_s, running.log())
            seen[code] = seen.get(code, 0) + 1
            longest = max(longest, seconds)
        if FULL:
            codes_seen = ", ".join(f"{code} ({count})" for code, count in sorted(seen.items()))
            print(f"  | {name} | {sum(seen.values())} | {codes_seen} | {longest:.1f} s |", flush=True)


if __name__ == "__main__":
    assert sys.platform == "linux"
    run_tests(globals())
