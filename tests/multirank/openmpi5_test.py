"""The same build under Open MPI 5 (PyPI's, tests/make_openmpi5.sh): the stream, the loss of a loader, and how jobs end."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from jobs import FULL, PENSTOCK, demo_photos, hashes_of, run_job, run_tests, write_job
from kills_test import Kills
from leftovers import MARK, marked_processes, no_leftovers, run
from watching import ranks

MPIRUN = os.environ.get("PENSTOCK_OPENMPI5")
if not MPIRUN:
    print("SKIP: Open MPI 5 is not there (PENSTOCK_OPENMPI5, tests/make_openmpi5.sh)")
    sys.exit(77)
PATTERNS = os.path.join(os.environ["PENSTOCK_BUILD"], "patterns")
work = tempfile.TemporaryDirectory(prefix="openmpi5_test-")
# 80 photos in steps of 32, or by default 24 in as many steps of 8.
job = write_job(work.name, demo_photos()) if FULL else write_job(work.name, demo_photos(24, 8, 3), batch=4)


def words(*options, program=()):
    line = [PENSTOCK, "launch", "--run", "--mpirun", MPIRUN, "-n", "4", job, "--json", "--quiet", *options]
    return line + (["--", *program] if program else [])


def test_one_stream():
    expected = run_job(job).hashes()
    for transport in ("auto", "mpi") if FULL else ("mpi",):
        with no_leftovers() as env:
            result = run(words(f"transport={transport}"), 60, env=env)
        assert result.returncode == 0, result
        report = json.loads(result.stdout.strip().splitlines()[-1])
        assert hashes_of(report) == expected, report
        seen = {way for rank in report["ranks"] for way in rank.get("chunks_by_transport", {})}
        assert seen == {"shm" if transport == "auto" else "mpi"}, seen


def test_kill_9_of_a_loader():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    kills = Kills(MPIRUN, small=not FULL)
    for way in ("mpi", "tcp") if FULL else ("mpi",):
        kills.require_same(way, random.Random(seed))


def start(env, mode):
    process = subprocess.Popen(words(program=[PATTERNS, mode, job, os.path.join(work.name, "%r.json")]), env=env, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    assert process.stdout.readline().startswith("first batch"), process.communicate()
    return process


def mpirun_of(env):
    found, = [pid for pid, what in marked_processes(env[MARK]).items() if os.path.basename(what.split()[0]) in ("mpirun", "prterun")]
    return found


def test_the_cause_is_said_whoever_is_killed():
    # mpirun kills the other ranks as soon as one left with an error, rank 0 among them, while that ends its program.
    for _ in range(5 if FULL else 2):
        with no_leftovers(wait_s=8) as env:
            process = start(env, "endless")
            os.kill(ranks(env)[1], signal.SIGKILL)
            err = process.communicate(timeout=40)[1]
            assert process.returncode == 5, (process.returncode, err)
            assert re.search(r"exit code 5, says rank 0 \(host .*\): lost a trainer \(rank 1, ", err.splitlines()[-1]), err


def test_endings():
    def ctrl_c(process, env):
        os.killpg(process.pid, signal.SIGINT)

    def kill_mpirun(process, env):
        os.kill(mpirun_of(env), signal.SIGKILL)

    for act, code in ((ctrl_c, 130), (kill_mpirun, 5)) if FULL else ((ctrl_c, 130),):
        with no_leftovers(wait_s=8) as env:
            process = start(env, "endless")
            time.sleep(0.2)
            act(process, env)
            out, err = process.communicate(timeout=40)
            assert process.returncode == code, (act.__name__, process.returncode, out, err)
    if not FULL:
        return
    with no_leftovers() as env:  # a program that fails
        result = run(words(program=["sh", "-c", "exit 3"]), 30, env=env)
    assert result.returncode == 1 and "exited with status 3" in result.stderr, result


if __name__ == "__main__":
    run_tests(globals())
