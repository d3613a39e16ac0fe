"""Nodes that only load, and what may happen to them: a loader is killed, all loaders of a node are, a loader is stopped and
goes on, is cut off and comes back, or the whole node goes. The trainers' stream is that of a job in one process, every time.
The nodes are support/hosts.py's. several_hosts_test.py has the same for nodes that train and load; by default only what it
cannot have is run here."""

import os
import re
import signal
import tempfile
import time

from hosts import Hosts, RunningJob, skip_without_hosts
from jobs import FULL, KILLED, PENSTOCK, demo_photos, left_to_full, run_job, run_tests, write_job
from leftovers import no_leftovers

skip_without_hosts()
PATTERNS = os.path.join(os.environ["PENSTOCK_BUILD"], "patterns")
GRACE_S = 2  # of the job
LOST_AFTER_S = 2 if FULL else 4  # beside other tests, none but the node that goes is silent for so long
# host0 trains, the others load: ranks 0 and 1, ranks 2 and 3, ranks 4 and 5.
HOSTS, TRAINER_HOSTS, LOADER_HOSTS, TRAINERS = 3, "host0:2", "host1:2,host2:2", 2
OVERRIDES = [f"balancer.lost_after_s={LOST_AFTER_S}", "balancer.heartbeat_s=0.2"]
# A node that goes does so at once: a few seconds of few photos are enough for it. What comes back needs longer.
OVERRIDES += ["splits.train.batch_size=2"] if FULL else [
    "splits.train.batch_size=1", f"splits.train.dataset.folder={os.path.join(demo_photos(), 'val')}"]

work = tempfile.TemporaryDirectory(prefix="loader_nodes_lost_test-")
job = write_job(work.name, demo_photos(), trainers=None)
_plain = []


class Running(RunningJob):
    def __init__(self, hosts, env, trainer_hosts=TRAINER_HOSTS, loader_hosts=LOADER_HOSTS):
        folder = tempfile.mkdtemp(dir=work.name)
        program = [PATTERNS, "long", job, os.path.join(folder, "%r.json")]
        words = [PENSTOCK, "launch", "--run", job, f"--trainer-host={trainer_hosts}", f"--loader-host={loader_hosts}", "--json",
                 "--quiet", *OVERRIDES, "--", *program]
        super().__init__(hosts, env, words, folder, TRAINERS)


def check_stream(running):
    """Complete, and equal in both hashes to that of one process which nobody disturbs."""
    if not _plain:
        overrides = [f"roles.trainers={TRAINERS}", *OVERRIDES]
        _plain.append(run_job(job, options=["--epochs=10"], overrides=overrides).report["splits"]["train"])
    for name in ("images", "order_hash", "pixel_hash"):
        assert running.report()["splits"]["train"][name] == _plain[0][name], (name, running.log())


def check(what, disturb, lost, limit_s=30):
    """`disturb(hosts)`, in the middle of the job, and the job goes on: it loses `lost` ranks."""
    with no_leftovers(wait_s=GRACE_S + 6) as env, Hosts(HOSTS, env, wait_s=15) as hosts:
        running = Running(hosts, env)
        disturb(hosts)
        deadline = time.monotonic() + 30
        while any(f"lost rank {rank} (loader" not in running.text("stderr") for rank in lost):
            assert time.monotonic() < deadline and running.process.poll() is None, f"{lost} are not lost\n{running.log()}"
            time.sleep(0.05)
        assert running.end(limit_s) == 0, running.log()
        check_stream(running)
        texts = running.lost_loaders()
        assert sorted(int(re.match(r"rank (\d+) \(loader, host host\d\)", text)[1]) for text in texts) == sorted(lost), running.log()
    print(f"  {what}: the job went on for {running.took_s:.1f} s, {texts}", flush=True)
    return running


def kill(hosts, *ranks):
    for rank in ranks:
        os.kill({**hosts.ranks(1), **hosts.ranks(2)}[rank], signal.SIGKILL)


@left_to_full("test_a_node_goes: both loaders of a node, and their connections")
def test_a_loader_is_killed():
    running = check("kill -9 of a loader", lambda hosts: kill(hosts, 3), [3])
    assert re.search("complete; " + KILLED + r"rank 3 \(host host1\)", running.last_line()), running.log()


@left_to_full("test_a_node_goes: both loaders of a node, and their connections")
def test_all_loaders_of_a_node_are_killed():
    check("kill -9 of a node's loaders", lambda hosts: kill(hosts, 4, 5), [4, 5])


@left_to_full("test_a_node_goes; fault_world_test stops loaders that go on")
def test_a_loader_is_stopped_and_goes_on():
    def disturb(hosts):
        loader = hosts.ranks(1)[2]
        os.kill(loader, signal.SIGSTOP)
        time.sleep(LOST_AFTER_S + 1)
        os.kill(loader, signal.SIGCONT)

    running = check("a loader stopped", disturb, [2])
    assert "; back after" in running.lost_loaders()[0], running.log()


@left_to_full("test_a_node_goes: both loaders of a node, and their connections")
def test_a_loader_is_cut_off_and_comes_back():
    def disturb(hosts):
        loader = hosts.ranks(2)[4]
        hosts.lose(2, 0, loader)
        hosts.lose(0, 2, loader)
        time.sleep(LOST_AFTER_S + 0.4)
        hosts.mend()

    running = check("a loader cut off", disturb, [4])
    assert "; back after" in running.lost_loaders()[0], running.log()


@left_to_full("several_hosts_test cuts loaders off one way, on hosts that train, too")
def test_a_node_is_cut_off_one_way():
    # For good, and both ways in turn: what it sends is lost, or what the trainers' host sends to it.
    for sends in (True, False):
        check(f"a node that {'is not heard' if sends else 'hears nothing'}",
              lambda hosts, sends=sends: hosts.lose(1, 0) if sends else hosts.lose(0, 1), [2, 3], limit_s=60)


def test_a_node_goes():
    check("a node's cable pulled", lambda hosts: hosts.kill_link(1), [2, 3], limit_s=60)


@left_to_full("job_outcome_test: launch takes a trainers' host for lost when it has been silent for a minute")
def test_the_node_of_all_trainers_goes():
    # launch is on a node that only loads, and no trainer is left to say that rank 0 is lost.
    with no_leftovers(wait_s=GRACE_S + 6) as env, Hosts(HOSTS, env, wait_s=25) as hosts:
        running = Running(hosts, env, "host1:2", "host0:2,host2:2")
        hosts.kill_link(1)
        assert running.end(60 + GRACE_S + 20) == 5, running.log()
        assert re.search(r"killed, or cut off with its host: .*rank 0 \(host host1\)", running.last_line()), running.log()
        hosts.mend_link(1)  # mpirun's daemon there hears that mpirun has ended, as it would in minutes by itself
        hosts.wait_for_nobody(1, 30)
    print(f"  launch ended after {running.took_s:.1f} s: {running.last_line()}", flush=True)


if __name__ == "__main__":
    run_tests(globals())
