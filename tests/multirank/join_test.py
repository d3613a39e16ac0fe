"""Programs that are MPI ranks themselves (bindings/mpi, penstock.mpi, examples/mpi_sgd): the same losses and hashes as embedded and as
under `penstock run`, part of a program's ranks, one job after the other; what is refused; and how a job ends whose rank dies."""

import os
import re
import sys
import tempfile
import time

from jobs import BUILD, FULL, demo_photos, left_to_full, mpirun_words, run_job, run_tests, skip_without_mpirun, write_job
from leftovers import no_leftovers, run

skip_without_mpirun()
PROBE = os.path.join(BUILD, "tests", "multirank", "join_probe")
SGD = os.path.join(BUILD, "mpi_sgd")
work = tempfile.TemporaryDirectory(prefix="join_test-")
JOB = write_job(work.name, demo_photos())
SCRIPT = os.path.join(work.name, "program.py")
PROGRAM = '''\
import sys
from mpi4py import MPI
import penstock, penstock.mpi
with penstock.mpi.join(MPI.COMM_WORLD, sys.argv[1], overrides=sys.argv[2:]) as rank:
    if rank.loads:
        rank.serve()
    else:
        for split in ("train", "val"):
            with rank.DataLoader(split, output="OUTPUT") as loader:
                assert f"{len(loader)} batches of {loader.batch_size}" in repr(loader)
                for images, labels in loader:
                    assert rank.trainers.allreduce(1) == rank.num_trainers
        assert rank.trainers.Get_rank() == rank.number
        if "seed=13" in sys.argv and rank.number == 1:
            raise ValueError("unlucky")
if rank.report:
    for name, split in sorted(rank.report["splits"].items()):
        print(name, split["order_hash"], split["pixel_hash"])
'''.replace("OUTPUT", "torch" if FULL else "numpy")  # importing torch takes most of such a program's time


WRONG = '''\
import os, signal, sys, threading, time
from mpi4py import MPI
import penstock, penstock.mpi
def said(call, *words, **named):
    try:
        call(*words, **named)
    except penstock.UsageError as problem:
        print(problem, flush=True)
def mark(number):
    return f"{sys.argv[2]}/handled.{number}"
mine = mark(MPI.COMM_WORLD.Get_rank())
signal.signal(signal.SIGUSR1, lambda *_: open(mine, "w").close())
with penstock.mpi.join(MPI.COMM_WORLD, sys.argv[1]) as rank:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    if rank.loads:
        said(rank.leave)
        rank.serve()
    else:
        said(rank.serve)
        said(rank.DataLoader, "train", rank=0, num_replicas=2)
        if rank.number == 1:                    # the others wait for it, and handle signals meanwhile
            deadline = time.monotonic() + 20
            while not all(map(os.path.exists, map(mark, range(3)))) and time.monotonic() < deadline:
                time.sleep(0.02)
            print("handled by", sum(map(os.path.exists, map(mark, range(3)))), flush=True)
        rank.leave()
'''
for path, text in ((SCRIPT, PROGRAM), (SCRIPT.replace("program", "wrong"), WRONG)):
    with open(path, "w") as file:
        file.write(text)


def under_mpirun(ranks, *words, code=0, limit_s=60, mca=()):
    with no_leftovers() as env:
        done = run([*mpirun_words(ranks, mca), *words], limit_s, env=env)
    assert (done.returncode != 0) if code is None else done.returncode == code, (words, done)
    return done.stdout


def test_gradients_reduced_by_mpi_are_those_of_an_embedded_program():
    embedded = under_mpirun(2, SGD, "--embedded", "--epochs=2", JOB)
    assert len(embedded.splitlines()) == 6 and len(set(embedded.splitlines())) == 6, embedded
    assert under_mpirun(4, SGD, "--epochs=2", JOB) == embedded
    if FULL:
        assert under_mpirun(3, SGD, "--epochs=2", JOB, "transport=mpi") == embedded


def test_hashes_are_those_of_penstock_run():
    with no_leftovers() as env:
        wanted = run_job(JOB, ranks=3 if FULL else 0, env=env).hashes()
    said = under_mpirun(4, sys.executable, "-m", "mpi4py", SCRIPT, JOB)
    assert {line.split()[0]: tuple(line.split()[1:]) for line in said.splitlines()} == wanted, said
    if FULL:  # one of them fails; by default in test_a_rank_that_ends_badly_ends_the_job
        said = under_mpirun(4, sys.executable, "-m", "mpi4py", SCRIPT, JOB, "seed=13", code=None, limit_s=90)
        assert "val" not in said, said


def test_some_of_the_programs_ranks_and_one_job_after_the_other():
    said = under_mpirun(5, PROBE, "subset", JOB).splitlines()
    first, second = (next(line for line in said if line.startswith(title)).split(" ", 1)[1] for title in ("first", "second"))
    assert first == second and first.startswith("2 trainers "), said
    assert "5 ranks at the end" in said, said


def test_what_is_refused():
    for ranks, mode, why in ((2, "serialized", "MPI_THREAD_SERIALIZED"), (3, "other_job", "seed: "),
                             (1, "before_init", "MPI has not been started"), (1, "null", "MPI_COMM_NULL"),
                             (1, "alone", "the communicator has one rank"), (2, "all", "all 2 ranks would train"))[:6 if FULL else 2]:
        said = under_mpirun(ranks, PROBE, mode, JOB, code=0 if mode == "before_init" else None)
        assert why in said, (mode, said)
    if FULL:
        assert "JoinOptions::role" in under_mpirun(4, PROBE, "roles", JOB, code=None)
    said = under_mpirun(3, sys.executable, "-m", "mpi4py", SCRIPT.replace("program", "wrong"), JOB, work.name)
    assert said.count("serve(): this rank trains") == 2 and said.count("has its place by that") == 2, said
    assert said.count("leave(): this rank loads") == 1 and "handled by 3" in said, said
    if not FULL:
        return
    said = under_mpirun(3, PROBE, "wrong_calls", JOB)
    assert "trainer: serve(): this rank trains" in said and "loader: leave(): this rank loads" in said, said


def test_batches_outlive_the_job():
    said = under_mpirun(3, PROBE, "batch_after_leave", JOB)
    assert said.count("again: leave(): this rank has left") == 2 and said.count("after leave: ") == 2, said
    assert said.count("this rank has left the job") == 2, said


def test_a_rank_that_ends_badly_ends_the_job():
    for mode in ("throws", "kill"):
        under_mpirun(4, PROBE, mode, JOB, code=None, limit_s=90)


def test_who_cannot_go_on_tells_the_others():
    over_mpi = write_job(work.name, demo_photos(), name="mpi.yaml")
    with open(over_mpi, "a") as file:
        file.write("transport: mpi\n")
    for mode in ("leaves_badly", "never_leaves"):
        for job in (JOB, over_mpi) if FULL else (over_mpi,) if mode == "leaves_badly" else (JOB,):
            begun = time.monotonic()
            said = under_mpirun(4, PROBE, mode, job, code=None, limit_s=60)
            assert "rank 1: trainer 1 cannot go on" in said, (mode, said)
            why = "the program left badly" if mode == "leaves_badly" else "the program dropped its Rank without leave"
            assert re.search(r"^rank 0: .*trainer 1 .*" + why, said, re.M), (mode, said)
            assert len(re.findall(r"^rank [23]: loader [01]: the job ended badly", said, re.M)) == 2, (mode, said)
            assert time.monotonic() - begun < 25, (mode, job)


def test_a_program_that_forgets_to_leave_comes_to_an_end():
    begun = time.monotonic()
    said = under_mpirun(3, PROBE, "finalize_first", JOB, code=None, limit_s=90)
    assert "rank 2: loader 0: " in said, said
    assert time.monotonic() - begun < 60


def test_a_forked_child_disturbs_nothing():
    assert under_mpirun(3, PROBE, "fork", JOB).count("child ended with 0") == 2


@left_to_full("test_some_of_the_programs_ranks_and_one_job_after_the_other: loaders that serve while the trainers are there")
def test_loaders_that_serve_when_the_trainers_have_left():
    assert under_mpirun(4, PROBE, "late", JOB).count("served late") == 2


def test_roles_that_the_ranks_say():
    without_roles = write_job(work.name, demo_photos(), trainers=None, name="roles.yaml")
    assert under_mpirun(4, PROBE, "roles", without_roles).startswith("roles 3 trainers ")


if __name__ == "__main__":
    run_tests(globals())
