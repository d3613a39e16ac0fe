"""Exit codes: 0 ok, 1 run time, 2 usage, 3 config, 4 dataset, 5 peer lost; the same under mpirun as in one process, and
one message that names trainer, rank, host and status where a program failed."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from jobs import FULL, PENSTOCK, demo_photos, mpirun_words, run_job, run_tests, write_job
from leftovers import BUSY_S, no_leftovers, run

work = tempfile.TemporaryDirectory(prefix="exit_codes_test-")
job = write_job(work.name, demo_photos())
WAYS = (0, 3) if shutil.which("mpirun") else (0,)
SOME_WAYS = WAYS if FULL else (0,)  # where what is under mpirun differs little, and other tests here have it


def go(ranks, program=(), overrides=(), which=job, options=()):
    with no_leftovers() as env:
        return run_job(which, ranks=ranks, program=program, overrides=overrides, options=options, env=env, timeout=30)


def test_0_and_one_object_on_stdout():
    for ranks in WAYS:
        result = go(ranks)
        assert result.code == 0 and len(result.stdout.strip().splitlines()) == 1, result.log
        json.loads(result.stdout)
        assert result.stderr == "", result.log  # --quiet
        if ranks and not FULL:
            continue  # the next test has programs under mpirun
        program = go(ranks, program=["true"])
        assert program.code == 0 and json.loads(program.stdout)["splits"] == {}, program.log


def test_0_where_our_parent_ignores_sigchld():
    # What is ignored stays so in what is started, and the kernel then keeps to itself how children end.
    for words in ([], ["launch", "--run", "-n", "3"])[:len(WAYS)]:
        with no_leftovers() as env:
            result = run(["env", "--ignore-signal=CHLD", PENSTOCK, *(words or ["run"]), job, "--quiet", "--", "true"], 30, env=env)
        assert result.returncode == 0, (words, result.stderr)


def test_1_where_the_report_cannot_be_written():
    # Under mpirun, launch prints it; cli_test has the job in one process.
    if len(WAYS) == 1:
        return
    with open("/dev/full", "w") as full, no_leftovers() as env:
        said = subprocess.run([PENSTOCK, "launch", "--run", "-n", "3", job, "--json", "--quiet"], stdout=full,
                              stderr=subprocess.PIPE, text=True, timeout=60, env=env)
    assert said.returncode == 1 and said.stderr.endswith("penstock: cannot write to stdout\n"
                                                         "  help: is the disk full, the reader gone, or stdout closed?\n"), said


def test_0_where_the_reader_of_the_report_has_left():
    if len(WAYS) == 1:
        return
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as left, no_leftovers() as env:
        said = subprocess.run([PENSTOCK, "launch", "--run", "-n", "3", job, "--json", "--quiet"], stdout=left,
                              stderr=subprocess.PIPE, text=True, env=env, timeout=60)
    assert said.returncode == 0, said


def where(trainer, ranks):
    return f"trainer {trainer} (rank {trainer}, host {socket.gethostname()})" if ranks else f"trainer {trainer}"


def test_1_where_a_program_fails():
    for ranks in WAYS:
        for script, how in (("exit 3", "exited with status 3"), ("kill -KILL $$", "was killed by SIGKILL"),
                            ("kill -SEGV $$", "was killed by SIGSEGV"))[:1 if ranks and not FULL else 3]:
            result = go(ranks, program=["sh", "-c", f"[ $RANK = 1 ] || exec sleep 30; {script}"])
            assert result.code == 1, result.log
            assert f"{where(1, ranks)}: the program {how}" in result.stderr, result.log
            assert result.stdout == "", result.log


def test_1_where_a_program_is_not_found():
    for ranks in SOME_WAYS:
        result = go(ranks, program=["no-such-program", "x"])
        assert result.code == 1 and "cannot start 'no-such-program': No such file" in result.stderr, result.log
        result = go(ranks, program=["sh", "-c", "no-such-command"])
        assert result.code == 1 and "exited with status 127 (a shell's for: a command was not found)" in result.stderr, result.log
        result = go(ranks, program=[job])
        assert result.code == 1 and "Permission denied" in result.stderr, result.log


def test_5_where_mpi_does_not_start():
    if not shutil.which("mpirun"):
        return
    # The second process of the job never calls MPI, so the first waits for it in MPI_Init.
    with no_leftovers() as env:
        result = run(mpirun_words(1) + [PENSTOCK, "run", job, "--quiet", "mpi.start_timeout_s=1", ":", "-n", "1",
                                        "sleep", "25"], 20, env=env)
    assert result.returncode == 5 and "MPI did not start within 1 s" in result.stderr, result.stderr


def test_the_other_program_gets_sigterm_and_its_grace():
    # Trainer 0 needs a second to save after SIGTERM, or several where it has no core; trainer 1's program fails.
    save = "trap 'sleep 1; echo saved > $OUT/saved; exit 0' TERM; echo up > $OUT/up; while :; do sleep 0.05; done"
    fail = "while [ ! -e $OUT/up ]; do sleep 0.05; done; exit 9"
    stubborn = "trap '' TERM; echo up > $OUT/up; while :; do sleep 0.05; done"
    for ranks in WAYS if FULL else WAYS[-1:]:
        for other, saved in ((save, True), (stubborn, False)) if FULL else ((save, True),):
            with tempfile.TemporaryDirectory(dir=work.name) as out, no_leftovers() as env:
                begun = time.monotonic()
                result = run_job(job, ranks=ranks, env=dict(env, OUT=out), timeout=30, overrides=["trainer.grace_s=30"] if saved else [],
                                 program=["sh", "-c", f"if [ $RANK = 0 ]; then {other}; else {fail}; fi"])
                assert result.code == 1 and "status 9" in result.stderr and where(1, ranks) in result.stderr, result.log
                # Its helper keeps the grace even where mpirun is quicker.
                deadline = time.monotonic() + 5 + BUSY_S
                while saved and not os.path.exists(os.path.join(out, "saved")):
                    assert time.monotonic() < deadline, "the program had no time to save"
                    time.sleep(0.05)
                assert time.monotonic() - begun < 12 + BUSY_S


def test_2_usage():
    for words in (["run"], ["nonsense"], ["run", job, "--nonsense"]):
        assert run([PENSTOCK, *words], 30).returncode == 2, words
    if len(WAYS) > 1:
        result = run([*mpirun_words(3), PENSTOCK, "run", job, "--nonsense"], 30)
        assert result.returncode == 2 and result.stderr.count("--nonsense") == 1, result.stderr
        if not FULL:
            return
        result = go(2)  # two trainers and no loader
        assert result.code in (2, 3) and "loader" in result.stderr, result.log


def test_3_config_once():
    wrong = os.path.join(work.name, "wrong.yaml")
    with open(job) as file, open(wrong, "w") as out:
        out.write(file.read().replace("threads: 2", "threds: 2"))
    for ranks in WAYS:
        result = go(ranks, which=wrong)
        assert result.code == 3 and result.stderr.count("threds: 2") == 1, result.log  # printed once, not by every rank
        if ranks and not FULL:
            continue
        result = go(ranks, overrides=["loader.threads=0"])
        assert result.code == 3 and result.stderr.count("loader.threads") <= 3, result.log
    # Too little memory is a mistake in the job too, found by the loaders.
    for ranks in SOME_WAYS:
        result = go(ranks, overrides=["loader.memory_gb=0.001", "loader.chunk_buffers=4096", "loader.chunk_samples=16"])
        assert result.code == 3 and "loader.memory_gb" in result.stderr, result.log


def test_3_where_parts_of_the_line_disagree():
    if len(WAYS) == 1:
        return
    other = os.path.join(work.name, "other.yaml")
    with open(job) as file, open(other, "w") as out:
        out.write(file.read().replace("batch_size: 16", "batch_size: 8"))
    begin = [*mpirun_words(2), PENSTOCK, "run", job, "--quiet", ":", "-n", "1", PENSTOCK]
    for part, what in ((["run", job, "seed=4"], "split 'train' differs: seed: 4 here, 3 there"),
                       (["serve", job], "command differs"),
                       (["run", other, "--quiet"], "batch_size: 8 here, 16 there"),
                       (["run", job, "splits.train.dataset.folder=/nowhere"], "splits.train.dataset.folder"))[:4 if FULL else 1]:
        with no_leftovers() as env:
            result = run([*begin, *part], 30, env=env)
        assert result.returncode == 3 and what in result.stderr, (part, result.stderr)
        assert result.stderr.count("ranks were given different jobs: on rank 2 ") == 1, (part, result.stderr)
    if not FULL:
        return
    # What decides nothing may differ.
    with no_leftovers() as env:
        result = run([*begin, "run", job, "--quiet", "loader.threads=1"], 60, env=env)
    assert result.returncode == 0, result.stderr


def test_4_dataset():
    for ranks in SOME_WAYS:
        result = go(ranks, overrides=["splits.train.dataset.folder=/nowhere"])
        assert result.code == 4 and "/nowhere" in result.stderr, result.log
        assert result.stderr.count("/nowhere") == 1, result.log
    if len(WAYS) > 1:  # launch's last line says trainer, status, and why
        with no_leftovers() as env:
            said = run([PENSTOCK, "launch", "--run", "-n", "3", job, "--quiet", "splits.train.dataset.folder=/nowhere"], 30,
                       env=env)
        last = said.stderr.splitlines()[-1]
        assert said.returncode == 4 and "exited with status 4, having been told: rank 2 (loader): the dataset" in last, said


def test_signals_reach_the_program():
    # USR1 and USR2 are passed on (Slurm's warning before the end); the program goes on.
    script = ("import os, signal, sys, time\n"
              "got = []\n"
              "signal.signal(signal.SIGUSR1, lambda *_: got.append('USR1'))\n"
              "signal.signal(signal.SIGUSR2, lambda *_: got.append('USR2'))\n"
              "open(os.path.join(sys.argv[1], os.environ['RANK']), 'w').write(str(os.getpid()))\n"
              "deadline = time.time() + 20\n"
              "while len(got) < 2 and time.time() < deadline: time.sleep(0.02)\n"
              "os.write(1, (' '.join(sorted(got)) + ' in ' + os.environ['RANK'] + '\\n').encode())\n")
    import signal
    with tempfile.TemporaryDirectory(dir=work.name) as out, no_leftovers() as env:
        process = subprocess.Popen([PENSTOCK, "run", job, "--quiet", "--", sys.executable, "-c", script, out], env=env,
                                   stdout=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 20
        while len(os.listdir(out)) < 2:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        time.sleep(0.1)
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
        process.send_signal(signal.SIGUSR2)
        stdout, _ = process.communicate(timeout=25)
    assert process.returncode == 0 and "USR1 USR2 in 0\n" in stdout and "USR1 USR2 in 1\n" in stdout, stdout


if __name__ == "__main__":
    run_tests(globals())
