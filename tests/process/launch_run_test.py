"""How a job ends under a real mpirun: by itself, by a failing program, by Ctrl-C, by kill -9 of anything. Each time the
program has its grace and nothing is left: no process, no segment, no session folder. Uses launch_stand_in."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from jobs import KILLED
from leftovers import marked_processes, no_leftovers, run, MARK

STAND_IN = sys.argv[1]
# Traps SIGTERM and needs 1.5 s for its checkpoint: more than mpirun's own wait limit of 1 s.
CHECKPOINT = "trap 'sleep 1.5; echo saved > $OUT/saved; exit 0' TERM; echo up > $OUT/up; while :; do sleep 0.05; done"
STUBBORN = ("trap '' TERM; (setsid sh -c 'trap \"\" TERM; echo up > $OUT/up; while :; do sleep 0.05; done' &) & "
            "while :; do sleep 0.05; done")


class Job:
    """A running job: the launcher, what it wrote, and the processes of each kind."""

    def __init__(self, env, script, grace="10", ranks="3"):
        self.out = tempfile.mkdtemp(prefix="launch_run_test-")
        self.env = dict(env, OUT=self.out)
        self.log = open(os.path.join(self.out, "log"), "w+")
        self.process = subprocess.Popen([STAND_IN, "launch", ranks, grace, "sh", "-c", script], env=self.env,
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        start_new_session=True)
        self.wait_for("up")

    def has(self, name):
        return os.path.exists(os.path.join(self.out, name))

    def wait_for(self, name, limit_s=20):
        deadline = time.monotonic() + limit_s
        while not self.has(name):
            assert time.monotonic() < deadline, f"no '{name}' in {limit_s} s; log:\n{self.text()}"
            time.sleep(0.02)

    def text(self):
        with open(os.path.join(self.out, "log"), errors="replace") as file:
            return file.read()

    def pids(self, part, but=()):
        found = marked_processes(self.env[MARK])
        pids = [pid for pid, what in found.items() if what.startswith(part) and pid not in but]
        assert pids, f"no process '{part}' in {found}"
        return pids

    def mpirun(self):
        return self.pids(("mpirun", "prterun"))[0]  # Open MPI 5 renames itself

    def ranks(self):  # a rank and its helper show the same command line; the rank is mpirun's child
        mpirun = self.mpirun()
        return sorted(int(pid) for pid in
                      open(f"/proc/{mpirun}/task/{mpirun}/children").read().split())

    def end(self, limit_s=30):
        code = self.process.wait(limit_s)
        self.log.close()
        return code

    def forget(self):
        shutil.rmtree(self.out)


def nothing_in(tmpdir):
    assert os.listdir(tmpdir) == [], os.listdir(tmpdir)


def test_a_job_ends_by_itself():
    with no_leftovers() as env:
        result = run([STAND_IN, "launch", "3", "2", "sh", "-c", "echo rank=$RANK $OMPI_COMM_WORLD_RANK."], 30, env)
        assert result.returncode == 0, result.stderr
        assert "rank=0 ." in result.stdout, result.stdout


def test_mpirun_looks_for_no_displays():
    # Its hwloc would, and ask what localhost is for each of them; but a choice of the user's stays.
    with no_leftovers() as env:
        for given, components in (({}, "-gl"), ({"HWLOC_COMPONENTS": "-gl,-opencl"}, "-gl,-opencl")):
            env = {key: value for key, value in env.items() if key != "HWLOC_COMPONENTS"} | given
            result = run([STAND_IN, "launch", "2", "2", "sh", "-c", "echo components=$HWLOC_COMPONENTS."], 30, env)
            assert f"components={components}." in result.stdout, result


def test_the_printed_line_runs_alone():
    with no_leftovers() as env:
        line = run([STAND_IN, "print", "3", "2", "sh", "-c", "echo it runs"], 30, env).stdout
        assert line.startswith("mpirun -n 3 ") and line.count("\n") == 1, line
        result = run(["sh", "-c", line], 30, env)
        assert result.returncode == 0 and "it runs" in result.stdout, result.stderr


def test_a_failing_program_ends_the_job():
    with no_leftovers() as env:
        result = run([STAND_IN, "launch", "3", "2", "sh", "-c", "exit 7"], 30, env)
        assert result.returncode == 1, (result.returncode, result.stderr)
        assert "exited with status 7" in result.stderr, result.stderr
        result = run([STAND_IN, "launch", "3", "2", "no-such-program"], 30, env)
        assert result.returncode == 1 and "cannot start 'no-such-program'" in result.stderr, result.stderr


def test_sigint_and_sigterm_give_the_program_its_grace():
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        with no_leftovers() as env:
            job = Job(env, CHECKPOINT)
            job.process.send_signal(number)
            assert job.end() == code, job.text()
            job.wait_for("saved")
        job.forget()


def test_a_signal_to_the_whole_group_too():
    with no_leftovers() as env:
        job = Job(env, CHECKPOINT)
        os.killpg(job.process.pid, signal.SIGINT)
        assert job.end() == 130, job.text()
        job.wait_for("saved")
    job.forget()


def test_a_terminal_that_is_closed_while_mpirun_starts():
    for number in (signal.SIGHUP, signal.SIGQUIT):
        for delay_s in (0.05, 0.15):  # before a rank holds the session folder
            with no_leftovers() as env:
                process = subprocess.Popen([STAND_IN, "launch", "3", "1", "sleep", "30"], env=env, start_new_session=True,
                                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                time.sleep(delay_s)
                os.killpg(process.pid, number)
                said = process.communicate(timeout=40)[1]
                assert process.returncode in (-number, 128 + number), (number, delay_s, process.returncode, said)


def write_mpirun(folder, text):
    """An `mpirun` of that text, in place of the real one where `folder` is first in PATH."""
    with open(os.path.join(folder, "mpirun"), "w") as script:
        script.write(text)
    os.chmod(script.name, 0o755)


def test_an_mpirun_that_stands_is_killed():
    # As where a rank of it fails in MPI_Init for want of files.
    with tempfile.TemporaryDirectory(prefix="launch_run_test-") as folder, no_leftovers() as env:
        write_mpirun(folder, "#!/bin/sh\n[ \"$1\" = --version ] && exec %s --version\ntrap '' TERM INT ALRM\necho up\n"
                             "while :; do sleep 0.1; done\n" % shutil.which("mpirun"))
        process = subprocess.Popen([STAND_IN, "launch", "2", "1", "true"], stdin=subprocess.DEVNULL,
                                   env=dict(env, PATH=folder + ":" + env["PATH"]), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=40)[1]
        assert process.returncode == 143 and "SIGTERM asked for the job's end, and mpirun has not ended after 9 s" in said, (process.returncode, said)


def test_last_words_count_that_come_after_mpirun_has_ended():
    # mpirun hears of rank 0's end by a connection of its own, while a network sends the rank's words to launch once more.
    with tempfile.TemporaryDirectory(prefix="launch_run_test-") as folder, no_leftovers() as env:
        write_mpirun(folder, "#!/bin/sh\n[ \"$1\" = --version ] && exec %s --version\n"
                             "echo $$ $PENSTOCK_END_CHANNEL $PENSTOCK_END_TOKEN\nread word\n" % shutil.which("mpirun"))
        process = subprocess.Popen([STAND_IN, "launch", "2", "1", "true"], env=dict(env, PATH=folder + ":" + env["PATH"]),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True)
        mpirun, address, token = process.stdout.readline().split()
        host, number = address.split(":")
        with socket.create_connection((host, int(number)), timeout=20) as rank_0:
            for message in ({"token": token, "rank": 0, "host": "elsewhere"}, {"running": True, "loads": False}):
                rank_0.sendall(json.dumps(message).encode() + b"\n")
            process.stdin.write("end\n")
            process.stdin.flush()
            deadline = time.monotonic() + 20
            while os.path.exists(f"/proc/{mpirun}") and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.3)
            # The launch that did not wait is gone, and hangs up.
            with contextlib.suppress(ConnectionError):
                rank_0.sendall(b'{"end": 0, "why": "", "mpi_ended": true}\n')
            said = process.communicate(timeout=20)[1]
        assert process.returncode == 0, (process.returncode, said)


# Starts rank 0, and rank 1 once it has been busy for a while, or never.
SLOW_MPIRUN = """#!/usr/bin/python3
import os, subprocess, sys, time
if "--version" in sys.argv: os.execv(%r, ["mpirun", "--version"])
ranks = []
def start(): ranks.append(subprocess.Popen([sys.executable, %r], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ, OMPI_COMM_WORLD_RANK=str(len(ranks)))))
start()
ranks[0].stdout.readline()
if os.environ["RANK_1"] == "dies": time.sleep(60)
busy_until = time.monotonic() + 7
while time.monotonic() < busy_until: pass
start()
for one in ranks: one.stdin.close()
sys.exit(max(one.wait() for one in ranks))
"""
RANK = """import json, os, socket, sys
host, number = os.environ["PENSTOCK_END_CHANNEL"].split(":")
with socket.create_connection((host, int(number)), timeout=20) as launch:
    def say(**message): launch.sendall(json.dumps(message).encode() + b"\\n")
    say(token=os.environ["PENSTOCK_END_TOKEN"], rank=int(os.environ["OMPI_COMM_WORLD_RANK"]), host="here", pid=os.getpid())
    print("it has said who it is", flush=True)
    sys.stdin.read()
    say(running=True, loads=False)
    say(end=0, why="", mpi_ended=True)
"""


def test_a_rank_that_mpirun_has_not_started_yet_is_not_dead():
    # 200 ranks on two cores: mpirun waits for a core while those that it has started take them.
    with tempfile.TemporaryDirectory(prefix="launch_run_test-") as folder, no_leftovers() as env:
        rank = os.path.join(folder, "rank.py")
        with open(rank, "w") as file:
            file.write(RANK)
        write_mpirun(folder, SLOW_MPIRUN % (shutil.which("mpirun"), rank))
        jobs = {what: subprocess.Popen([STAND_IN, "launch", "2", "1", "true"], stdin=subprocess.DEVNULL,
                                       env=dict(env, PATH=folder + ":" + env["PATH"], RANK_1=what), stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True, start_new_session=True)
                for what in ("starts late", "dies")}
        said = {what: process.communicate(timeout=40)[1] for what, process in jobs.items()}
        assert jobs["starts late"].returncode == 0, said["starts late"]
        assert jobs["dies"].returncode == 5 and "rank 1 (host " in said["dies"] and "left while the job was starting" in said["dies"], said["dies"]


def test_kill_9_of_mpirun():
    with no_leftovers(wait_s=15) as env:
        job = Job(env, CHECKPOINT)
        os.kill(job.mpirun(), signal.SIGKILL)
        assert job.end() == 5, job.text()
        assert f"penstock: mpirun (host {socket.gethostname()}) was killed by SIGKILL, and the job with it" in job.text(), job.text()
        job.wait_for("saved")
    job.forget()


def test_kill_9_of_the_launcher():
    with no_leftovers(wait_s=15) as env:
        job = Job(env, CHECKPOINT)
        job.process.kill()
        job.end()
        job.wait_for("saved")
    job.forget()


def test_kill_9_of_the_launcher_while_mpirun_starts():
    # No rank's helper holds the session folder yet, and mpirun has files in it.
    for number in range(4):
        with no_leftovers(wait_s=8) as env:
            process = subprocess.Popen([STAND_IN, "launch", "3", "1", "sleep", "30"], env=env, start_new_session=True,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            deadline = time.monotonic() + 20
            while not os.listdir(env["TMPDIR"]) and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(0.1 * number)
            process.kill()
            assert process.wait(20) == -signal.SIGKILL


def test_kill_9_of_launcher_and_mpirun_at_once():
    with no_leftovers(wait_s=10) as env:
        job = Job(env, STUBBORN, grace="1")
        mpirun = job.mpirun()
        job.process.kill()
        os.kill(mpirun, signal.SIGKILL)
        job.end()
    job.forget()


def test_kill_9_of_a_rank():
    with no_leftovers(wait_s=8) as env:
        job = Job(env, STUBBORN, grace="1")
        zero, one, _ = job.ranks()
        os.kill(one, signal.SIGKILL)  # a loader: mpirun goes on without it
        time.sleep(1)
        assert job.process.poll() is None, job.text()
        # The trainer, whom the ranks of this stand-in would wait for, for ever; and its helper at once: the program dies with
        # it, and what the program started has nobody left but the launcher.
        with open(f"/proc/{zero}/task/{zero}/children") as children:
            helpers = [int(pid) for pid in children.read().split()]
        assert helpers
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: a helper would end with its rank
            for pid in (*helpers, zero):  # the end of a rank would continue its helper
                os.kill(pid, number)
        assert job.end(40) == 5, job.text()
        assert re.search(r"rank 0 \(host .*\) is gone without a word, and rank 2 \(host .*\) has not ended since", job.text()), job.text()
        assert re.search("no rank said how it ended; .*" + KILLED + r"(rank 0 \(host [^)]*\), )?rank 1 \(host ", job.text()), job.text()
    job.forget()


if __name__ == "__main__":
    if shutil.which("mpirun") is None:
        print("SKIP: no mpirun in PATH")
        sys.exit(77)
    chosen = sys.argv[2:]
    tests = [(name, test) for name, test in sorted(globals().items()) if name.startswith("test_")]
    for name, test in tests:
        if chosen and name not in chosen:
            continue
        start = time.monotonic()
        test()
        print(f"ok {name} {time.monotonic() - start:.1f} s", flush=True)
