"""A job over several nodes: the same stream as in one process, the right places and names for the programs; the same stream
still when the network takes a loader, or everything for a moment; and an end in seconds, with a name, when it takes a
trainer, or somebody kills mpirun's daemon. The nodes are support/hosts.py's.

Every node has a trainer (roles.trainers is per node, and a node without one is refused), so a job cannot outlive a node.
What it outlives is a loader: killed, or cut off, its own connections alone being lost (a firewall that forgets them)."""

import json
import os
import re
import signal
import sys
import tempfile
import time

from hosts import Hosts, RunningJob, run_on, skip_without_hosts
from jobs import FULL, KILLED, PENSTOCK, Result, demo_photos, left_to_full, run_job, run_tests, write_job
from leftovers import BUSY_S, no_leftovers, run

skip_without_hosts()
PATTERNS = os.path.join(os.environ["PENSTOCK_BUILD"], "patterns")
GRACE_S = 2  # of the job
LIMIT_S = GRACE_S + 10 + BUSY_S

work = tempfile.TemporaryDirectory(prefix="several_hosts_test-")
job = write_job(work.name, demo_photos(), trainers=1)
_expected = {}


def trainers(per_host):
    return [f"roles.trainers={per_host}"]


def expected(count):
    """The hashes of the same job in one process, with as many trainers in all."""
    if count not in _expected:
        with no_leftovers() as env:
            _expected[count] = run_job(job, options=["--epochs=2"], overrides=trainers(count), env=env).hashes()
    return _expected[count]


def check_same(count, per_host, loaders, overrides):
    with no_leftovers() as env, Hosts(count, env) as hosts:
        result = run_on(hosts, job, per_host + loaders, ["--json", "--epochs=2"], [*trainers(per_host), *overrides],
                        env=env)
    assert result.hashes() == expected(count * per_host), f"{count} hosts, {per_host} trainers each, {overrides}"
    return result


def chunks_by_transport(report):
    """{transport: chunks}, by trainer."""
    return [rank["chunks_by_transport"] for rank in report["ranks"] if rank["role"] == "trainer"]


def table(stderr):
    """[(host, rank, role)] of the placement table."""
    rows = [re.match(r"(\S+) +(\d+) +\d+  (trainer|loader) (\d+) ", line) for line in stderr.splitlines()]
    return [(row[1], int(row[2]), f"{row[3]} {row[4]}") for row in rows if row]


def test_one_stream():
    rows = [(2, 1, 1, "auto")]
    if FULL:
        rows = [(count, per_host, loaders, transport) for count in (2, 3) for per_host in (1, 2) for loaders in (1, 2)
                for transport in ("auto", "mpi")]
    for count, per_host, loaders, transport in rows:
        result = check_same(count, per_host, loaders, [f"transport={transport}"])
        transports_used = chunks_by_transport(result.report)
        assert len(transports_used) == count * per_host
        # Between hosts MPI alone; within one shared memory, unless the job says otherwise.
        seen = {name for chunks in transports_used for name in chunks}
        assert seen == ({"mpi", "shm"} if transport == "auto" else {"mpi"}), transports_used
        rows_of_table = table(result.stderr)
        each = per_host + loaders
        assert [row[:2] for row in rows_of_table] == [(f"host{r // each}", r) for r in range(count * each)]
        assert [row[2] for row in rows_of_table if row[2].startswith("trainer")] == [
            f"trainer {t}" for t in range(count * per_host)]
        assert all(row[2].startswith("trainer") == (row[1] % each < per_host) for row in rows_of_table), rows_of_table


def test_tiny_messages():
    if not FULL:
        return
    check_same(2, 1, 1, ["loader.chunk_samples=1", "loader.chunk_buffers=2", "mpi.max_message_bytes=4096"])


def test_shm_alone_is_refused():
    if not FULL:
        return  # an mpirun that fails over two hosts takes four seconds to go
    with no_leftovers() as env, Hosts(2, env) as hosts:
        result = run_on(hosts, job, 2, overrides=["transport=shm"], env=env)
    assert result.code == 3 and "transport: shm joins ranks of one node" in result.stderr, result.log
    assert result.stderr.count("transport: shm joins") == 1, result.log  # by rank 0 alone


def test_launch():
    with no_leftovers() as env, Hosts(2, env) as hosts:
        env = hosts.environment(env)
        words = [PENSTOCK, "launch", "--host", "host0,host1", "--loaders", "1", "--json", "--epochs=2", job]
        printed = run(hosts.enter(0, [*words, "--print"]), 30, env=env)
        assert printed.returncode == 0 and "--host host0:2,host1:2" in printed.stdout, printed
        assert "ppr:2:node" in printed.stdout, printed.stdout
        # A setting in the environment of this host must reach the others, and so must one on the command line.
        env["PENSTOCK_CFG__LOADER__THREADS"] = "3"
        result = Result(run(hosts.enter(0, [*words, "loader.payload_crc=true", "--run"]), 60, env=env))
        assert result.hashes() == expected(2)
        loaders = [rank for rank in result.report["ranks"] if rank["role"] == "loader"]
        assert [loader["threads"] for loader in loaders] == [3, 3], loaders
    if not FULL:
        return  # launch_line_test reads files of hosts
    with no_leftovers() as env, Hosts(2, env) as hosts:
        hostfile = os.path.join(work.name, "hosts.txt")
        with open(hostfile, "w") as file:
            file.write("host0 slots=1  # fewer than the ranks\nhost1 slots=1\n")
        result = Result(run(hosts.enter(0, [PENSTOCK, "launch", "--run", "--hostfile", hostfile, "--loaders", "1", "--json",
                                            "--epochs=2", job]), 60, env=hosts.environment(env)))
        assert result.hashes() == expected(2)


LOOK = r"""
import json, os, socket, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
seen = {name: os.environ[name] for name in names}
seen["host"] = socket.gethostname()
# What torch's store does: trainer 0 listens at MASTER_PORT, everybody else connects to MASTER_ADDR.
if seen["RANK"] == "0":
    with socket.create_server(("", int(seen["MASTER_PORT"]))) as server:
        server.settimeout(20)
        for _ in range(int(seen["WORLD_SIZE"]) - 1):
            server.accept()[0].sendall(b"met")
else:
    import time
    for _ in range(200):
        try:
            with socket.create_connection((seen["MASTER_ADDR"], int(seen["MASTER_PORT"])), timeout=20) as peer:
                seen["met"] = peer.recv(3).decode()
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
with open(os.path.join(sys.argv[1], seen["RANK"] + ".json"), "w") as file:
    json.dump(seen, file)
"""


def look(per_host, loaders, **kwargs):
    with tempfile.TemporaryDirectory(dir=work.name) as out, no_leftovers() as env, Hosts(2, env, **kwargs) as hosts:
        result = run_on(hosts, job, per_host + loaders, options=[], overrides=trainers(per_host), env=env,
                        program=[sys.executable, "-c", LOOK, out])
        assert result.code == 0, result.log
        seen = []
        for trainer in range(2 * per_host):
            with open(os.path.join(out, f"{trainer}.json")) as file:
                seen.append(json.load(file))
        return seen, result


def test_places_of_programs():
    for per_host in (1, 2) if FULL else (2,):
        seen, _ = look(per_host, 1)
        for trainer, program in enumerate(seen):
            assert program["RANK"] == str(trainer) and program["LOCAL_RANK"] == str(trainer % per_host), seen
            assert program["WORLD_SIZE"] == str(2 * per_host) and program["LOCAL_WORLD_SIZE"] == str(per_host), seen
            assert program["host"] == f"host{trainer // per_host}" and program["MASTER_ADDR"] == "host0", seen
            assert program["MASTER_PORT"] == seen[0]["MASTER_PORT"]
            assert trainer == 0 or program["met"] == "met", seen


class Running(RunningJob):
    """A job of a trainer and a loader on each host."""

    def __init__(self, hosts, env, overrides=(), prefix=(), mode="endless"):
        folder = tempfile.mkdtemp(dir=work.name)
        self.program = [*prefix, PATTERNS, mode, job, os.path.join(folder, "%r.json")]
        words = [PENSTOCK, "launch", "--run", "--host", ",".join(hosts.aliases), "--loaders", "1", "--json", "--quiet", job,
                 *overrides, "--", *self.program]
        super().__init__(hosts, env, words, folder, len(hosts.aliases))

    def end(self, limit_s=LIMIT_S):
        return super().end(limit_s)


# 26 photos in place of 80: as many steps, and less to decode.
FEW = [f"splits.train.dataset.folder={os.path.join(demo_photos(), 'val')}", "splits.train.batch_size=4"]


def test_kill_9_of_a_loader_on_the_other_host():
    # The job goes on: the loader of the other node makes what it had.
    with no_leftovers(wait_s=GRACE_S + 6) as env, Hosts(2, env) as hosts:
        running = Running(hosts, env, ["balancer.lost_after_s=4", *FEW], mode="long")
        os.kill(hosts.ranks(1)[3], signal.SIGKILL)
        assert running.end(30) == 0, running.log()
        assert re.search("complete; " + KILLED + r"rank 3 \(host host1\)", running.text("stderr")), running.log()
        plain = run_job(job, options=["--epochs=10"], overrides=["roles.trainers=2", *FEW])
        for key in ("images", "order_hash", "pixel_hash"):
            assert running.report()["splits"]["train"][key] == plain.report["splits"]["train"][key], (key, running.log())


# ---- the network takes a loader: the others do its work, and the stream is the same ------------------------------------

SILENCE = ["balancer.lost_after_s=2", "balancer.heartbeat_s=0.2"]
_undisturbed = {}


def check_stream(running, hosts, overrides):
    """Complete, and equal in both hashes to the one of a job that nobody disturbed."""
    key = (len(hosts.aliases), *overrides)
    if key not in _undisturbed:
        plain = run_job(job, options=["--epochs=10"], overrides=[*trainers(len(hosts.aliases)), *overrides])
        _undisturbed[key] = plain.report["splits"]["train"]
    for name in ("images", "order_hash", "pixel_hash"):
        assert running.report()["splits"]["train"][name] == _undisturbed[key][name], (name, running.log())


def check_cut_off_loader(count, ways, mended_after_s, overrides):
    with no_leftovers(wait_s=GRACE_S + 6) as env, Hosts(count, env) as hosts:
        if len(ways) == 2:
            hosts.retry_each_second()  # where one way is lost, what is tried again each second would keep it from being silent
        running = Running(hosts, env, [*SILENCE, *overrides], mode="long")
        loader = hosts.ranks(1)[3]
        for host in (host for host in range(count) if host != 1):
            if "out" in ways:
                hosts.lose(1, host, loader)
            if "in" in ways:
                hosts.lose(host, 1, loader)
        if mended_after_s:
            time.sleep(mended_after_s)
            hosts.mend()
        assert running.end(40) == 0, running.log()
        check_stream(running, hosts, overrides)
        stderr, lost = running.text("stderr"), running.lost_loaders()
        if mended_after_s == SHORTER:
            assert not lost and "lost rank" not in stderr, running.log()
        else:
            # TCP needs each other's answers, so one way lost is both, a few messages later.
            assert len(lost) == 1 and re.match(r"rank 3 \(loader, host host1\): silent for 2\.", lost[0]), running.log()
        if mended_after_s == LONGER:
            # It heard what it had missed, dropped what it had, and joined as its next incarnation.
            assert "rank 3 (loader, host host1) is back and takes work again" in stderr and "; back after" in lost[0], running.log()
        if not mended_after_s:
            # It gives up after twice as long, and leaves its node's trainer and daemon alone.
            assert "rank 3: lost trainer 0 (rank 0), which coordinates: nothing was heard of it for 4 s" in stderr, running.log()
            last = running.last_line()
            # Whether it could still say so before it was ended.
            wanted = (r"penstock: the job is complete; (silent until it was ended \(stopped, or cut off\)|killed, or cut "
                      r"off with its host): rank 3 \(host host1\)")
            assert re.match(wanted, last), running.log()
    print(f"  {count} hosts, {' and '.join(ways)}, mended after {mended_after_s} s: {running.took_s:.1f} s, {lost}", flush=True)


# The job has lost_after_s = 2. TCP tries again after 0.2, 0.6, 1.4, 3.0, 6.2 s, or after 2.4, 3.4 s (retry_each_second): until then nothing is
# heard. Mended after 0.4 s it is heard at 0.6, which leaves 1.4 s to a busy machine; after 4 s the loader would have given up.
SHORTER = 0.4
LONGER = 2.4


@left_to_full("test_kill_9_of_a_loader_on_the_other_host, and loader_nodes_lost_test's test_a_node_goes: silence")
def test_a_loader_cut_off():
    rows = [(count, ways, mended_after_s, batch) for count, batch in ((2, 2), (3, 1))
            for ways in (["out", "in"], ["out"], ["in"]) for mended_after_s in (SHORTER, LONGER, None)]
    for count, ways, mended_after_s, batch in rows:
        # Small batches are many: the programs are at work until after the loader has given up.
        check_cut_off_loader(count, ways, mended_after_s, [f"splits.train.batch_size={batch}"])


@left_to_full("test_the_network_goes, and fault_world_test: silences of every length")
def test_the_network_goes_for_a_moment():
    # Shorter than lost_after_s: nobody is lost, neither rank nor daemon. TCP may take as long again to notice that it is back.
    for count, host in ((2, 1), (3, 1), (3, 0)):
        batch = ["splits.train.batch_size=8"]
        with no_leftovers() as env, Hosts(count, env) as hosts:
            running = Running(hosts, env, ["balancer.lost_after_s=5", *batch], mode="long")
            hosts.kill_link(host)
            time.sleep(1)
            hosts.mend_link(host)
            assert running.end(30) == 0, running.log()
            check_stream(running, hosts, batch)
            assert not running.lost_loaders() and "penstock: " not in running.text("stderr"), running.log()


def test_two_hosts_that_do_not_reach_each_other():
    # Trainer 0's host reaches both, so nobody is silent. A chunk that is much longer on its way than others were is another
    # loader's, and so are all that follow it to that receiver; as MPI_Finalize needs all of them, the ranks leave without.
    if not FULL:
        return
    for mended_after_s in (1, None):
        batch = ["splits.train.batch_size=2"]
        with no_leftovers() as env, Hosts(3, env) as hosts:
            running = Running(hosts, env, [*SILENCE, *batch], mode="long")
            time.sleep(2)  # 100 chunks and more, of which it is known how long they take
            hosts.lose(1, 2)
            hosts.lose(2, 1)
            if mended_after_s:
                time.sleep(mended_after_s)
                hosts.mend()
            assert running.end(120) == 0, running.log()
            check_stream(running, hosts, batch)
            assert not running.lost_loaders(), running.log()
            assert running.took_s < 30, running.log()  # 47 to 62 s, where each chunk waited anew, and MPI_Finalize
        print(f"  mended after {mended_after_s} s: {running.took_s:.1f} s", flush=True)


def test_sigterm_of_a_loader_on_the_other_host():
    # Trainer 0 says goodbye to it over MPI, and then has nothing more to do with it: in this order.
    if not FULL:
        return
    batch = ["splits.train.batch_size=4"]
    with no_leftovers() as env, Hosts(2, env) as hosts:
        running = Running(hosts, env, [*SILENCE, *batch], mode="long")
        loader = hosts.ranks(1)[3]
        os.kill(loader, signal.SIGTERM)
        deadline = time.monotonic() + 3  # the job goes on for longer
        while loader in hosts.on(1):
            assert time.monotonic() < deadline, running.log()
            time.sleep(0.02)
        assert running.process.poll() is None, running.log()
        assert running.end(30) == 0, running.log()
        check_stream(running, hosts, batch)
        assert not running.lost_loaders() and "lost trainer 0" not in running.text("stderr"), running.log()


# ---- a trainer is lost with its host: the job ends, everywhere, and says where ------------------------------------------


def test_kill_9_of_mpiruns_daemon():
    # Its ranks notice at once; the trainer tells trainer 0 while it can. The silence, five times as long, is not needed.
    by_rank_0 = 0
    turns = 20 if FULL else 1
    for turn in range(turns):
        count = 3 if turn % 2 else 2
        with no_leftovers() as env, Hosts(count, env) as hosts:
            running = Running(hosts, env, [f"balancer.lost_after_s={5 * LIMIT_S}"])
            daemons = [pid for pid, what in hosts.on(1).items() if what.startswith(("orted", "prted"))]
            assert len(daemons) == 1, hosts.on(1)
            begun = time.monotonic()
            os.kill(daemons[0], signal.SIGKILL)
            assert running.end(GRACE_S + 5 + BUSY_S) == 5, running.log()
            for host in range(count):
                hosts.wait_for_nobody(host, max(1, begun + GRACE_S + 5 + BUSY_S - time.monotonic()))
            assert not hosts.left(), hosts.left()
            last = running.last_line()
            # Mostly by rank 0. But it has just heard from ranks that are going, and where Open MPI ends it for that, it is
            # one of these whose words are left.
            wanted = r"exit code 5, says rank \d \(host host[01]\): .*, host host1\): mpirun, or its daemon on that host, has"
            assert re.search(wanted, last), running.log()
            by_rank_0 += "says rank 0 (host host0): trainer 1 (rank 2, host host1): mpirun" in last
        print(f"  {count} hosts: nothing is left after {time.monotonic() - begun:.1f} s", flush=True)
    print(f"  {by_rank_0} of {turns} times rank 0 could say it", flush=True)


def test_kill_9_of_mpirun():
    if not FULL:
        return
    with no_leftovers() as env, Hosts(3, env) as hosts:
        running = Running(hosts, env, [f"balancer.lost_after_s={5 * LIMIT_S}"])
        mpirun = [pid for pid, what in hosts.on(0).items() if what.startswith(("mpirun", "prterun"))]
        assert len(mpirun) == 1, hosts.on(0)
        begun = time.monotonic()
        os.kill(mpirun[0], signal.SIGKILL)
        assert running.end(GRACE_S + 5 + BUSY_S) == 5, running.log()
        for host in range(3):
            hosts.wait_for_nobody(host, max(1, begun + GRACE_S + 5 + BUSY_S - time.monotonic()))
        last = running.last_line()
        assert last.startswith("penstock: mpirun (host host0) was killed by SIGKILL, and the job with it"), running.log()


def test_a_host_cut_off():
    # For good, or longer than lost_after_s and then up again; both ways, or one; a host with a trainer, and mpirun's own.
    # Whoever has lost mpirun's host notices after twice lost_after_s, and ends its programs, itself and its daemon.
    if not FULL:
        return  # test_the_network_goes
    lost_after_s = 3
    there_s = 2 * lost_after_s + GRACE_S + 8  # and what end_stranded_daemon() waits: 5 s
    for way in ("link", "link, for a time", "link of mpirun's host", "out", "in"):
        with no_leftovers(wait_s=5) as env, Hosts(3, env, wait_s=10) as hosts:
            running = Running(hosts, env, [f"balancer.lost_after_s={lost_after_s}"])
            begun = time.monotonic()
            if way.startswith("link"):
                cut = 0 if "mpirun" in way else 1
                hosts.kill_link(cut)
            for other in (0, 2):
                if way == "out":
                    hosts.lose(1, other)
                if way == "in":
                    hosts.lose(other, 1)
            if way == "link, for a time":
                time.sleep(lost_after_s + 2)
                hosts.mend_link(1)
            assert running.end(lost_after_s + GRACE_S + 20) == 5, (way, running.log())
            last = running.last_line()
            expected_hosts = ("host1", "host2") if "mpirun" in way else ("host1",)
            assert any(re.search(rf"exit code 5.*rank \d+.*host {host}\b", last) for host in expected_hosts), (way, running.log())
            for host in range(3):
                hosts.wait_for_nobody(host, max(1, begun + there_s - time.monotonic()))
        print(f"  {way}: launch had ended after {running.took_s:.1f} s, all hosts after "
              f"{time.monotonic() - begun:.1f} s\n    {last}", flush=True)


def test_ctrl_c():
    if not FULL:
        return
    with no_leftovers(wait_s=GRACE_S + 6) as env, Hosts(2, env) as hosts:
        running = Running(hosts, env)
        os.killpg(running.process.pid, signal.SIGINT)
        assert running.end() == 128 + signal.SIGINT, running.log()


def test_the_network_goes():
    # mpirun notices by its keepalive, the ranks of the other node by the silence of trainer 0's: both nodes end by themselves.
    with no_leftovers(wait_s=5) as env, Hosts(2, env, wait_s=25) as hosts:
        env.update({f"OMPI_MCA_oob_tcp_keepalive_{name}": "1" for name in ("time", "intvl", "probes")})
        running = Running(hosts, env, overrides=["balancer.lost_after_s=4", "splits.train.batch_size=2"])  # little to decode
        time.sleep(0.5)  # what was printed has reached mpirun: its connections are at rest, as most of the time
        hosts.kill_link(1)
        assert running.end() == 5, running.log()
        assert "host1" in running.text("stderr"), running.log()
        begun = time.monotonic()
        hosts.wait_for_nobody(1, GRACE_S + 4 + BUSY_S)
    print(f"  here after {running.took_s:.1f} s, there {time.monotonic() - begun:.1f} s later", flush=True)


CHATTY = "i=0; while :; do echo line $i; i=$((i + 1)); sleep 0.02; done & exec \"$@\""


def test_the_network_goes_in_the_middle_of_a_message():
    # TCP then waits for a quarter of an hour, on both nodes; the heartbeats of the ranks do not.
    if not FULL:
        return
    with no_leftovers(wait_s=5) as env, Hosts(2, env, wait_s=25) as hosts:
        running = Running(hosts, env, overrides=["balancer.lost_after_s=5"], prefix=["sh", "-c", CHATTY, "sh"])
        hosts.kill_link(1)
        assert running.end(30) == 5, running.log()
        assert "host1" in running.text("stderr"), running.log()
        begun = time.monotonic()
        hosts.wait_for_nobody(1, 25)
    print(f"  here after {running.took_s:.1f} s, there {time.monotonic() - begun:.1f} s later", flush=True)


def test_a_trainers_rank_that_is_stopped():
    # Nothing of it is closed, so only its silence tells; the message says which rank, and where.
    if not FULL:
        return  # tests/receiver/receiver_test.cpp has the silence
    with no_leftovers(wait_s=GRACE_S + 6) as env, Hosts(2, env) as hosts:
        running = Running(hosts, env, overrides=["balancer.lost_after_s=1", "balancer.heartbeat_s=0.2"])
        rank = hosts.ranks(1)[2]
        os.kill(rank, signal.SIGSTOP)
        code = running.end()
        assert code == 5, running.log()
        assert "lost a trainer (rank 2, host host1): nothing was heard of it for 1 s" in running.text("stderr"), running.log()


if __name__ == "__main__":
    run_tests(globals())
