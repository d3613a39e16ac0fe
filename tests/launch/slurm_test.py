"""The script of `penstock launch --slurm`, run by a Slurm of several nodes (support/slurm.py): the same stream as in one
process, exit codes, and the programs' grace whichever way a job is ended."""

import contextlib
import os
import re
import sys
import tempfile
import time

from hosts import Hosts
from jobs import FULL, PENSTOCK, Result, demo_photos, run_job, run_tests, write_job
from leftovers import no_leftovers, run
from slurm import Slurm, skip_without_slurm

skip_without_slurm()
work = tempfile.TemporaryDirectory(prefix="slurm_test-")
photos = demo_photos()
GRACE_S = 4
_expected = {}

# Takes batches until it is asked to end, and then as long as it takes to save a state.
SAVES = r"""
import os, signal, sys, time
def end(*_):
    time.sleep(2)
    open(os.path.join(sys.argv[1], "saved." + os.environ["RANK"]), "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
open(os.path.join(sys.argv[1], "started." + os.environ["RANK"]), "w").close()
time.sleep(100)
"""


def expected(job, trainers):
    if trainers not in _expected:
        with no_leftovers() as env:
            _expected[trainers] = run_job(job, overrides=[f"roles.trainers={trainers}"], env=env).hashes()
    return _expected[trainers]


class Submitted:
    """A job of a script that `launch --slurm` wrote, in a folder of its own."""

    def __init__(self, slurm, options, program=(), trainers=None):
        self.slurm = slurm
        self.folder = tempfile.mkdtemp(dir=work.name)
        self.job = write_job(self.folder, photos, trainers=trainers)
        self.script = os.path.join(self.folder, "job.sh")
        program = ["--", *(word.replace("FOLDER", self.folder) for word in program)] if program else []
        # An Open MPI that is told which network the hosts share: sbatch passes the variables on.
        written = Result(run([PENSTOCK, "launch", "--slurm", self.job, "trainer.grace_s=%d" % GRACE_S, *options, *program], 60,
                             env=slurm.env, cwd=self.folder))
        assert written.code == 0, written.log
        with open(self.script, "w") as file:
            file.write(written.stdout)
        self.output = os.path.join(self.folder, "output")
        # Apart, or a message may stand in the middle of a report.
        self.number = slurm.submit(self.script, [f"--output={self.output}", f"--error={self.output}.messages"])

    def text(self):
        text = ""
        for path in (self.output, f"{self.output}.messages"):
            with contextlib.suppress(FileNotFoundError), open(path) as file:
                text += file.read()
        return text

    def end(self, limit_s=60):
        state, code = self.slurm.wait(self.number, limit_s)
        left = [name for name in os.listdir(self.folder) if name.startswith("penstock-nodes-")]
        assert not left, f"{left} is left\n{self.text()}"
        return state, code

    def wait_for(self, names, limit_s=30):
        deadline = time.monotonic() + limit_s
        while missing := [name for name in names if not os.path.exists(os.path.join(self.folder, name))]:
            assert time.monotonic() < deadline, f"no {missing} within {limit_s} s\n{self.text()}\n{self.slurm.log()}"
            time.sleep(0.1)

    def wait_for_text(self, pattern, limit_s=30):
        deadline = time.monotonic() + limit_s
        while not re.search(pattern, self.text(), re.M):
            assert time.monotonic() < deadline, f"no '{pattern}' within {limit_s} s\n{self.slurm.log()}"
            time.sleep(0.1)

    def hashes(self):
        """Of the report, the one line of JSON."""
        line = next(line for line in self.text().splitlines() if line.startswith("{"))
        return Result(type("", (), {"returncode": 0, "stdout": line, "stderr": ""})).hashes()


def with_slurm(test, count=3, wait_s=5):
    with no_leftovers(wait_s=wait_s) as env, Hosts(count, env, wait_s=wait_s + 3) as hosts:
        with Slurm(hosts, hosts.environment(env)) as slurm:
            return test(slurm, hosts)


def test_nodes_that_train_and_nodes_that_load():
    def test(slurm, _):
        job = Submitted(slurm, ["--trainer-nodes=1:2", "--loader-nodes=2:1", "--gpus=2", "--json"])
        assert job.end() == ("COMPLETED", 0), job.text() + slurm.log()
        assert job.hashes() == expected(job.job, 2), job.text()
        placed = re.findall(r"^(host\d) +\d+ +\d+  (trainer|loader) \d+ ", job.text(), re.M)
        assert placed == [("host0", "trainer"), ("host0", "trainer"), ("host1", "loader"), ("host2", "loader")], job.text()
        # Loaders beside the trainers.
        job = Submitted(slurm, ["--trainer-nodes=1:2:1", "--loader-nodes=2:1", "--json"])
        assert job.end() == ("COMPLETED", 0), job.text() + slurm.log()
        assert job.hashes() == expected(job.job, 2), job.text()
        assert len(re.findall(r"^host0 +\d+ +\d+  (trainer|loader) \d+ ", job.text(), re.M)) == 3, job.text()
        # The job's end is the program's.
        job = Submitted(slurm, ["--trainer-nodes=1:1", "--loader-nodes=2:1"], ["sh", "-c", "exit 3"])
        assert job.end() == ("FAILED", 1), job.text()
        assert "status 3" in job.text(), job.text()
    with_slurm(test)


def test_nodes_that_are_all_alike():
    def test(slurm, _):
        job = Submitted(slurm, ["--nodes=2", "--loaders=1", "--json"], trainers=1)
        assert job.end() == ("COMPLETED", 0), job.text() + slurm.log()
        assert job.hashes() == expected(job.job, 2), job.text()
        placed = re.findall(r"^(host\d) +\d+ +\d+  (trainer|loader) \d+ ", job.text(), re.M)
        assert placed == [(host, role) for host in ("host0", "host1") for role in ("trainer", "loader")], job.text()
    with_slurm(test, 2)


def test_a_container_by_apptainer():
    # What stands for Apptainer leaves out what it would do, and runs the rest of the line.
    if not FULL:
        return  # launch_files_test.py has the line
    def test(slurm, _):
        with tempfile.TemporaryDirectory(dir=work.name) as folder:
            with open(os.path.join(folder, "apptainer"), "w") as file:
                file.write('#!/bin/sh\n[ "$1 $2 $4 $6" = "exec --bind --pwd penstock.sif" ] && shift 6 && exec "$@"\n')
            os.chmod(file.name, 0o755)
            slurm.env["PATH"] = f"{folder}:{os.path.dirname(PENSTOCK)}:{slurm.env['PATH']}"
            job = Submitted(slurm, ["--nodes=2", "--loaders=1", "--json", "--image=penstock.sif"], trainers=1)
            assert job.end() == ("COMPLETED", 0), job.text() + slurm.log()
            assert job.hashes() == expected(job.job, 2), job.text()
    with_slurm(test, 2)


def test_a_node_that_only_loads_may_be_lost():
    # Two nodes train: Slurm 22.05 ends a heterogeneous job whose first component has one node with any node of it.
    if not FULL:
        return
    def test(slurm, hosts):
        job = Submitted(slurm, ["--trainer-nodes=2:1", "--loader-nodes=2:1", "--json", "--epochs=250", "balancer.lost_after_s=3"])
        job.wait_for_text(r"^host3 +3 +\d+  loader 1 ")
        time.sleep(2)  # the loaders are in the middle of it
        hosts.kill_link(3)
        assert job.end(120) == ("COMPLETED", 0), job.text() + slurm.log()
        assert re.search(r"the job is complete; .*cut off.*: rank 3 \(host host3\)$", job.text(), re.M), job.text()
        assert "Node failure on host3" in job.text(), job.text()
        with no_leftovers() as env:
            alone = run_job(job.job, options=["--epochs=250"], overrides=["roles.trainers=2"], env=env, timeout=120)
        assert job.hashes() == alone.hashes(), job.text()
        hosts.mend_link(3)
    with_slurm(test, 4, wait_s=60)


def end_by(words):
    def test(slurm, _):
        job = Submitted(slurm, ["--trainer-nodes=2:1", "--loader-nodes=1:1"], [sys.executable, "-c", SAVES, "FOLDER"])
        job.wait_for(["started.0", "started.1"])
        begun = time.monotonic()
        result = slurm.run(["scancel", *words, job.number])
        assert result.returncode == 0, result.stderr
        end = job.end()
        took_s = time.monotonic() - begun
        job.wait_for(["saved.0", "saved.1"], 0)
        print(f"  scancel {' '.join(words)}: {end} after {took_s:.1f} s", flush=True)
        return end
    return with_slurm(test, wait_s=GRACE_S + 6)


def test_the_batch_scripts_sigterm_ends_the_job_in_good_order():
    # What Slurm sends by --signal=B:TERM@… before the time limit, too.
    state, code = end_by(["--batch", "--signal=TERM"])
    assert (state, code) == ("FAILED", 143), (state, code)


def test_scancel_leaves_programs_their_grace_on_every_node():
    if not FULL:
        return
    assert end_by([])[0] == "CANCELLED"


if __name__ == "__main__":
    run_tests(globals())
