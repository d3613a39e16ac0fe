"""Nodes that train and nodes that load: the same stream as in one process, the programs' places among the trainers alone,
and lines that are refused with the right one. The nodes are support/hosts.py's."""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

from hosts import Hosts, skip_without_hosts
from jobs import FULL, PENSTOCK, Result, demo_photos, left_to_full, mpirun_words, run_job, run_tests, write_job
from leftovers import no_leftovers, run

skip_without_hosts()
work = tempfile.TemporaryDirectory(prefix="nodes_apart_test-")
# Few photos, and three steps an epoch all the same; how many train is said on the command line.
job = write_job(work.name, demo_photos(count=24, val_count=8, classes=3), trainers=None, batch=4)
_expected = {}


def expected(trainers):
    """The hashes of the same job in one process, with as many trainers."""
    if trainers not in _expected:
        with no_leftovers() as env:
            _expected[trainers] = run_job(job, options=["--epochs=2"], overrides=[f"roles.trainers={trainers}"], env=env).hashes()
    return _expected[trainers]


def launch(hosts, env, trainers, loaders, options=(), program=(), timeout=60):
    words = [PENSTOCK, "launch", "--run", job, f"--trainer-host={trainers}", f"--loader-host={loaders}", *options]
    words += ["--", *program] if program else []
    return Result(run(hosts.enter(0, words), timeout, env=hosts.environment(env)))


def table(stderr):
    """[(host, role)] by rank, of the placement table."""
    rows = [re.match(r"(\S+) +\d+ +\d+  (trainer|loader) (\d+) ", line) for line in stderr.splitlines()]
    return [(row[1], f"{row[2]} {row[3]}") for row in rows if row]


def test_nodes_that_load_alone_feed_nodes_that_train_alone():
    with no_leftovers() as env, Hosts(3, env) as hosts:
        result = launch(hosts, env, "host0:2", "host1:2,host2:1", ["--json", "--epochs=2"])
    assert result.hashes() == expected(2), result.log
    assert table(result.stderr) == [("host0", "trainer 0"), ("host0", "trainer 1"), ("host1", "loader 0"), ("host1", "loader 1"),
                                    ("host2", "loader 2")], result.stderr
    seen = {name for rank in result.report["ranks"] if rank["role"] == "trainer" for name in rank["chunks_by_transport"]}
    assert seen == {"mpi"}, seen


@left_to_full("test_nodes_that_load_alone_feed_nodes_that_train_alone; launch_line_test has the lines of all kinds of nodes")
def test_a_node_may_do_both_beside_nodes_that_do_one():
    with no_leftovers() as env, Hosts(3, env) as hosts:
        result = launch(hosts, env, "host0:1,host1:1", "host1:1,host2:2", ["--json", "--epochs=2"])
    assert result.hashes() == expected(2), result.log
    assert table(result.stderr) == [("host0", "trainer 0"), ("host1", "trainer 1"), ("host1", "loader 0"), ("host2", "loader 1"),
                                    ("host2", "loader 2")], result.stderr
    # mpirun's slots of a host are those of both lists: mapped by them, both trainers would be on the first one.
    with no_leftovers() as env, Hosts(3, env) as hosts:
        result = launch(hosts, env, "host0:1,host1:1", "host0:1,host1:2,host2:1", ["--json", "--epochs=2"])
    assert result.hashes() == expected(2), result.log
    assert table(result.stderr) == [("host0", "trainer 0"), ("host1", "trainer 1"), ("host0", "loader 0"), ("host1", "loader 1"),
                                    ("host1", "loader 2"), ("host2", "loader 3")], result.stderr


def test_a_node_on_which_nothing_comes_up_is_named_and_left_clean():
    other = os.path.join(work.name, "other.yaml")
    with open(other, "w") as file:
        file.write("splits: 3\n")
    for over, what, code, limit in (("/bin/false", PENSTOCK, 5, ["mpi.start_timeout_s=8"]), (other, job, 3, []))[:2 if FULL else 1]:
        with no_leftovers() as env, Hosts(3, env) as hosts:
            mount = ["nsenter", "--target", str(hosts.pids[1]), "--mount", "mount", "--bind", over, what]
            subprocess.run(mount, check=True, timeout=20)
            result = launch(hosts, env, "host0:1", "host1:1,host2:1", limit)
            assert not hosts.on(1), hosts.on(1)  # and its files are looked at by Hosts
        assert result.code == code, result.log
        if code == 5:
            assert re.search(r"rank 1 \(host host1\) was (not|never) heard of", result.stderr), result.log


@left_to_full("several_hosts_test's test_launch: nodes that train and load, by --host")
def test_nodes_that_do_both_keep_their_trainers():
    with no_leftovers() as env, Hosts(2, env) as hosts:
        result = launch(hosts, env, "host0:1,host1:1", "host0:1,host1:1", ["--json", "--epochs=2"])
    assert result.hashes() == expected(2), result.log
    assert table(result.stderr) == [("host0", "trainer 0"), ("host1", "trainer 1"), ("host0", "loader 0"), ("host1", "loader 1")], result.stderr


LOOK = r"""
import json, os, socket, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
seen = {name: os.environ[name] for name in names}
with open(os.path.join(sys.argv[1], seen["RANK"] + ".json"), "w") as file:
    json.dump(dict(seen, host=socket.gethostname()), file)
"""


@left_to_full("several_hosts_test's test_places_of_programs: nodes that train and load")
def test_programs_are_told_their_places_among_the_trainers_alone():
    with no_leftovers() as env, Hosts(3, env) as hosts, tempfile.TemporaryDirectory(dir=work.name) as out:
        result = launch(hosts, env, "host0:1,host2:2", "host1:2", ["--quiet"], [sys.executable, "-c", LOOK, out])
        assert result.code == 0, result.log
        seen = []
        for rank in range(3):
            with open(os.path.join(out, f"{rank}.json")) as file:
                seen.append(json.load(file))
    assert [(one["host"], one["RANK"], one["LOCAL_RANK"], one["LOCAL_WORLD_SIZE"]) for one in seen] == [
        ("host0", "0", "0", "1"), ("host2", "1", "0", "2"), ("host2", "2", "1", "2")], seen
    assert all(one["WORLD_SIZE"] == "3" and one["MASTER_ADDR"] == "host0" for one in seen), seen


def check_batch_job(mpirun):
    with no_leftovers(wait_s=8) as env, Hosts(3, env) as hosts, tempfile.TemporaryDirectory(dir=work.name) as folder:
        for i in range(3):
            open(os.path.join(folder, f"node{i}"), "w").close()
        words = [PENSTOCK, "launch", "--run", job, f"--mpirun={mpirun}", "--trainer-nodes=1:2", "--loader-nodes=2:1", "--json",
                 "--epochs=2"]
        net = {name: value for name, value in hosts.environment(env).items() if name != "OMPI_MCA_plm_rsh_agent"}
        net["PRTE_MCA_prte_if_include"] = net["OMPI_MCA_oob_tcp_if_include"]
        tasks = []
        for i in (2, 1, 0):
            place = {"PENSTOCK_NODES": folder, "SLURM_PROCID": str(i), "SLURM_STEP_NUM_TASKS": "3", "SLURM_JOB_ID": "7"}
            tasks.append(subprocess.Popen(hosts.enter(i, words), env={**net, **place}, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE, text=True))
        results = [Result(subprocess.CompletedProcess(words, task.returncode, out, err))
                   for task in tasks for out, err in [task.communicate(timeout=60)]]
        assert results[2].hashes() == expected(2), results[2].log
        assert [result.code for result in results] == [0, 0, 0], [result.log for result in results]
        assert not os.path.exists(folder)
        os.mkdir(folder)  # for its own clean-up
    assert [host for host, _ in table(results[2].stderr)] == ["host0", "host0", "host1", "host2"], results[2].stderr


def test_nodes_of_a_batch_job_find_each_other_through_a_folder():
    # As srun starts them, a task a node (tests/launch/slurm_test.py has Slurm itself); no ssh: mpirun gets an agent.
    check_batch_job("mpirun")
    if FULL and "PENSTOCK_OPENMPI5" in os.environ:
        check_batch_job(os.environ["PENSTOCK_OPENMPI5"])


def test_a_line_that_begins_with_loaders_is_refused_with_the_right_one():
    with no_leftovers() as env, Hosts(2, env) as hosts:
        def line(first, second):
            words = []
            for host, role in (first, second):
                words += [":"] if words else []
                words += ["-n", "1", "--host", f"{host}:1", PENSTOCK, "run", "--role", role, job, "--json", "--epochs=2"]
            return words
        mpirun = [word for word in mpirun_words(1, hosts.mca().items()) if word not in ("-n", "1")]
        refused = Result(run(hosts.enter(0, mpirun + line(("host1", "loader"), ("host0", "trainer"))), 60, env=env))
        assert refused.code == 2 and "the first trainer coordinates and must be rank 0" in refused.stderr, refused.log
        right = re.search(r"put the trainers first: mpirun (.*)", refused.stderr)[1]
        assert shlex.split(right) == line(("host0", "trainer"), ("host1", "loader")), right
        result = Result(run(hosts.enter(0, mpirun + shlex.split(right)), 60, env=env))
        assert result.hashes() == expected(1), result.log


if __name__ == "__main__":
    run_tests(globals())
