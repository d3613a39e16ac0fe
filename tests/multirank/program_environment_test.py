"""What a training program finds under `penstock run`: its place among the trainers, none of the launcher's variables, its
own standard streams and signals, and stdin for trainer 0 only."""

import json
import os
import subprocess
import sys
import tempfile

from jobs import PENSTOCK, demo_photos, mpirun_words, run_job, run_tests, skip_without_mpirun, write_job
from leftovers import no_leftovers

skip_without_mpirun()
work = tempfile.TemporaryDirectory(prefix="program_environment_test-")
job = write_job(work.name, demo_photos())

LOOK = r"""
import json, os, signal, sys
seen = {
    "environment": dict(os.environ), "stdin": sys.stdin.read(), "cpus": sorted(os.sched_getaffinity(0)),
    "folder": os.getcwd(), "argv": sys.argv[1:], "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
    "blocked": sorted(int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "ignored": [s.name for s in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
                if signal.getsignal(s) == signal.SIG_IGN],
}
with open(os.path.join(sys.argv[1], os.environ["RANK"] + ".json"), "w") as file:
    json.dump(seen, file)
os.write(1, f"out of {os.environ['RANK']}\n".encode())
os.write(2, f"err of {os.environ['RANK']}\n".encode())
"""


def look(ranks, stdin=subprocess.DEVNULL, extra=None, overrides=()):
    with tempfile.TemporaryDirectory(dir=work.name) as out, no_leftovers() as env:
        result = run_job(job, ranks=ranks, overrides=overrides, env=dict(env, **(extra or {})), stdin=stdin, cwd=out,
                         program=[sys.executable, "-c", LOOK, out, "--an=option", "and a word"])
        assert result.code == 0, result.log
        trainers = len(os.listdir(out))
        seen = []
        for trainer in range(trainers):
            with open(os.path.join(out, f"{trainer}.json")) as file:
                seen.append(json.load(file))
            assert seen[-1]["folder"] == os.path.realpath(out)
            assert seen[-1]["argv"] == [out, "--an=option", "and a word"]
            assert f"out of {trainer}\n" in result.stdout and f"err of {trainer}\n" in result.stderr, result.log
    return seen


def check_places(seen, trainers):
    assert len(seen) == trainers
    receivers = set()
    for trainer, program in enumerate(seen):
        environment = program["environment"]
        assert environment["RANK"] == environment["LOCAL_RANK"] == str(trainer)
        assert environment["WORLD_SIZE"] == environment["LOCAL_WORLD_SIZE"] == str(trainers)
        assert environment["MASTER_ADDR"] == "127.0.0.1"
        assert 1024 <= int(environment["MASTER_PORT"]) < 65536
        receivers.add(environment["PENSTOCK_RECEIVER"])
        assert environment["PENSTOCK_RECEIVER"].startswith("@penstock/") and environment["PENSTOCK_TOKEN"]
        wrong = [name for name in environment
                 if name.startswith(("OMPI_", "PMIX_", "PMI_", "PRTE_", "ORTE_", "SLURM_PROCID", "SLURM_LOCALID",
                                     "SLURM_NODEID", "SLURM_NTASKS", "SLURM_STEP"))]
        assert not wrong, wrong
        assert program["cpus"] and program["blocked"] == [] and program["ignored"] == []
        assert program["fds"] in ([0, 1, 2, 3], [0, 1, 2]), program["fds"]  # 3 is the listing's own
    assert len(receivers) == trainers
    assert len({program["environment"]["MASTER_PORT"] for program in seen}) == 1


def test_under_mpirun():
    check_places(look(3), 2)
    check_places(look(4, overrides=["roles.trainers=3"]), 3)


def test_in_one_process():
    check_places(look(0), 2)


def test_job_ids_and_the_rest_stay():
    extra = {"RANK": "77", "WORLD_SIZE": "99", "SOMETHING": "kept = so", "CUDA_VISIBLE_DEVICES": "3"}
    for ranks in (0, 3):
        for trainer, program in enumerate(look(ranks, extra=extra)):
            environment = program["environment"]
            assert environment["SOMETHING"] == "kept = so" and environment["RANK"] == str(trainer)
    # A batch system's job id stays, its step's variables go. (Only in one process: mpirun itself reads SLURM_JOB_ID.)
    slurm = {"SLURM_JOB_ID": "1234", "SLURM_NTASKS": "1", "SLURM_NTASKS_PER_NODE": "1", "SLURM_STEPID": "0"}
    for program in look(0, extra=slurm):
        assert program["environment"]["SLURM_JOB_ID"] == "1234"
        assert not set(slurm) - {"SLURM_JOB_ID"} & set(program["environment"])


def test_stdin_is_trainer_0s():
    for ranks in (0, 3):
        with tempfile.TemporaryFile() as stdin:
            stdin.write(b"a line for the program\n")
            stdin.seek(0)
            seen = look(ranks, stdin=stdin)
        assert seen[0]["stdin"] == "a line for the program\n" and seen[1]["stdin"] == "", [s["stdin"] for s in seen]


def test_a_program_without_a_rank_is_refused_a_wrong_stream():
    # A program under mpirun but not under `penstock run`: every task would load the same data, so it is told the line.
    with no_leftovers() as env:
        from leftovers import run
        patterns = os.path.join(os.environ["PENSTOCK_BUILD"], "patterns")
        env = {name: value for name, value in env.items() if name not in ("RANK", "WORLD_SIZE")}
        result = run([*mpirun_words(2), patterns, "all", job, os.path.join(work.name, "x%r.json")], 30, env=env)
        assert result.returncode == 2, result.stderr
        assert "penstock run" in result.stderr and "same data" in result.stderr, result.stderr


def test_a_stranger_at_the_socket_is_refused():
    # The token is what proves that a program belongs to the job.
    script = ("import os, subprocess, sys; environment = dict(os.environ, PENSTOCK_TOKEN='wrong'); "
              "sys.exit(subprocess.run(sys.argv[1:], env=environment).returncode)")
    patterns = os.path.join(os.environ["PENSTOCK_BUILD"], "patterns")
    with no_leftovers() as env:
        result = run_job(job, ranks=3, env=env, timeout=30,
                         program=[sys.executable, "-c", script, patterns, "all", job, os.path.join(work.name, "y%r.json")])
    assert result.code == 1 and "does not belong to the job" in result.stderr, result.log


if __name__ == "__main__":
    assert os.path.exists(PENSTOCK), PENSTOCK
    run_tests(globals())
