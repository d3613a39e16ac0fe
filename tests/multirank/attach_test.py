"""Programs started as torchrun starts them attach to `penstock serve` under mpirun: the stream is the embedded one and
that of `penstock run`, attach after attach and after kill -9; whoever does not fit is refused by name and number;
nothing hangs and nothing is left."""

import functools
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time

from jobs import FULL, PENSTOCK, demo_photos, hashes_of, run_job, run_tests, skip_without_mpirun, write_job
from leftovers import MARK, marked_processes, no_leftovers, run
from stream_hash import read_dump, total
from trainers import Serving, outside, place, run_trainers, start_trainers, wait_trainers

skip_without_mpirun()
PATTERNS = os.path.join(os.environ["PENSTOCK_BUILD"], "patterns")
TRAINERS, STEPS = 2, 3
HOST = socket.gethostname()
KILLS = ((0, 1), (1,), (0,)) if FULL else ((1,),)
RANKS = 3 if FULL else 0  # for what receivers decide by themselves: the same code in one process, which starts at once
work = tempfile.TemporaryDirectory(prefix="attach_test-")
# Three steps of 32 of 80 photos, or by default of 8 of 24.
job = write_job(work.name, demo_photos()) if FULL else write_job(work.name, demo_photos(24, 8, 3), batch=4)


def words(mode, overrides=(), name="out"):
    return [PATTERNS, mode, job, os.path.join(work.name, f"{name}_%r.json"), *overrides]


def check_good(results):
    for code, out, err in results:
        assert code == 0 and err == "", f"{code}\n{out}\n{err}"


def check_refused(results, code, *said):
    """At least one program failed so; the others were ended for it."""
    failed = [err for got, _, err in results if got == code]
    assert failed, results
    for word in said:
        assert any(word in err for err in failed), f"'{word}' is missing: {results}"


@functools.cache
def expected_train():
    """{(epoch, trainer, step): (order, pixel)} as `penstock inspect` has it, which knows no trainers and no loaders."""
    found = {}
    for epoch in (0, 1):
        out = os.path.join(work.name, f"inspect_{epoch}")
        result = run([PENSTOCK, "inspect", job, "--raw", "--split=train", f"--epoch={epoch}", "--steps=99",
                      f"--trainers={TRAINERS}", f"--out={out}"], 60)
        assert result.returncode == 0, result.stderr
        for (trainer, step), batch in read_dump(out).items():
            found[epoch, trainer, step] = batch.hashes()
    return found


def check_ranges(report, expected):
    """Every range of steps that any iteration consumed, broken off or not, holds what it should."""
    ranges = []
    for rank in report["ranks"]:
        if rank["role"] != "trainer":
            continue
        for r in rank["splits"].get("train", {"ranges": []})["ranges"]:
            if r["epoch"] in (0, 1):
                steps = [expected[r["epoch"], rank["trainer"], step] for step in range(r["first_step"], r["end_step"])]
                assert total(steps) == (r["order_hash"], r["pixel_hash"]), (rank["trainer"], r)
            ranges.append((rank["trainer"], r["epoch"], r["first_step"], r["end_step"]))
    return ranges


def stream_of_run():
    return run_job(job, program=words("all", name="run")).hashes()


def twice(hashes):
    return {name: total([tuple(int(part, 16) for part in pair)] * 2) for name, pair in hashes.items()}


def test_the_stream_is_that_of_run_and_of_embedded():
    once = stream_of_run()
    embedded = []
    for rank in range(TRAINERS):
        out = os.path.join(work.name, f"embedded{rank}.json")
        env = dict(outside(os.environ), RANK=str(rank), WORLD_SIZE=str(TRAINERS))
        assert run([PATTERNS, "all", job, out], 60, env=env).returncode == 0
        with open(out) as file:
            # stats of "train" were asked for after both splits had passed: one world feeds both
            embedded.append(json.load(file)["stats"]["splits"])
    for name, pair in once.items():
        assert total([(int(s[name]["order_hash"], 16), int(s[name]["pixel_hash"], 16)) for s in embedded]) == pair, name
    for ranks, overrides in ((3, []), (4, ["transport=mpi"])) if FULL else ((3, []),):
        with no_leftovers() as env, Serving(job, env, ranks, overrides) as serving:
            for _ in range(2):
                check_good(run_trainers(words("all"), TRAINERS, env))
            assert hashes_of(serving.end()) == twice(once)


def test_trainers_are_killed_and_start_again():
    expected = expected_train()
    with no_leftovers() as env, Serving(job, env, 3) as serving:
        for killed in KILLS:
            trainers = start_trainers(words("endless"), TRAINERS, env)
            for trainer in trainers:
                trainer.wait_for("first batch")
            for number in killed:
                trainers[number].kill()
            for trainer in trainers:  # as torchrun: one is gone, all go
                trainer.kill()
            # At once, without waiting until the receivers have noticed.
            check_good(run_trainers(words("all"), TRAINERS, env))
        report = serving.end()
        ranges = check_ranges(report, expected)
        for trainer in range(TRAINERS):
            for epoch in (0, 1):
                assert ranges.count((trainer, epoch, 0, STEPS)) >= len(KILLS), ranges
        memory = [rank["max_rss_mb"] for rank in report["ranks"]]
        assert max(memory) < 300, memory


def test_a_dead_program_is_gone_though_its_child_keeps_the_socket():
    with no_leftovers() as env, Serving(job, env, RANKS) as serving:
        trainers = start_trainers(words("forked"), TRAINERS, env)
        for trainer in trainers:
            trainer.wait_for("first batch").kill()
        children = [pid for pid, what in marked_processes(env[MARK]).items() if " forked " in what]
        assert len(children) == TRAINERS, children
        try:
            check_good(run_trainers(words("all"), TRAINERS, env))
        finally:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
        serving.end()


def test_many_attaches_leave_nothing_in_the_ranks():
    def descriptors():
        ranks = pids(env, r"\S*penstock serve")
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in ranks), len(ranks)

    def settled_descriptors(deadline, before):
        """A memory's descriptor is closed a moment after it is unmapped: two looks agree, and with what was `before`."""
        last = None
        while (now := descriptors()) != last or before not in (None, now) and time.monotonic() < deadline:
            assert time.monotonic() < deadline, (last, now)
            last = now
            time.sleep(0.3)
        return now

    def memories():
        found = 0
        for pid in pids(env, r"\S*penstock serve"):
            with open(f"/proc/{pid}/maps") as maps:
                found += maps.read().count("memfd:penstock-")
        return found

    # Reading ahead begins when a read waits for the disk, at whichever attach that is, and takes two descriptors for good.
    with no_leftovers() as env, Serving(job, env, RANKS, ["loader.read_ahead=0"]) as serving:
        seen = []
        for _ in range(12 if FULL else 2):
            trainers = start_trainers(words("endless"), TRAINERS, env)
            for trainer in trainers:
                trainer.wait_for("first batch")
            assert memories()
            for trainer in trainers:
                trainer.kill()
            deadline = time.monotonic() + 20
            while serving.text().count("is gone") < TRAINERS * (len(seen) + 1):
                assert time.monotonic() < deadline, serving.text()
                time.sleep(0.02)
            while memories():  # chunk buffers, at loaders and where receivers read them, and batch buffers
                assert time.monotonic() < deadline, memories()
                time.sleep(0.02)
            seen.append(settled_descriptors(deadline, seen[0] if seen else None))
        assert seen[0][1] > RANKS and len(set(seen)) == 1, seen
        serving.end()


def test_programs_that_do_not_fit_the_job():
    with no_leftovers() as env, Serving(job, env, RANKS) as serving:
        serving.wait_for("--stop")
        four = run_trainers(words("all"), 4, env, together_s=15)  # all of them are refused
        check_refused(four, 2, f"on host {HOST} feeds 2 trainers", "one of 4 (RANK 3, WORLD_SIZE 4, LOCAL_RANK 3)",
                      "one of 4 (RANK 0,", "--nproc_per_node=2")
        alone = run_trainers(words("all"), 1, env, [{"PENSTOCK_ATTACH": "1"}])
        check_refused(alone, 2, "feeds 2 trainers, and nothing says which")
        swapped = run_trainers(words("all"), 2, env, [place(0, 2, 1), place(1, 2, 0)])
        check_refused(swapped, 2, "feeds trainer 1 at this receiver, and this program has RANK 0", "LOCAL_RANK")
        no_such = run_trainers(words("all"), 2, env, [place(0, 2), place(1, 2, 5)])
        check_refused(no_such, 2, "feeds 2 trainers on this host", "LOCAL_RANK 5")
        wrong = run_trainers(words("all", ["splits.nothing.batch_size=2"]), 2, env)
        check_refused(wrong, 3, "nothing")
        check_good(run_trainers(words("all"), TRAINERS, env))  # none of it did any harm
        serving.end()


def test_two_programs_on_one_receiver():
    with no_leftovers() as env, Serving(job, env, RANKS) as serving:
        first = start_trainers(words("endless"), TRAINERS, env)
        for trainer in first:
            trainer.wait_for("first batch")
        second = run_trainers(words("all", name="second"), TRAINERS, env)
        for rank in range(TRAINERS):
            assert second[rank][0] in (2, -signal.SIGKILL), second
        check_refused(second, 2, "feeds split 'train' to process", HOST, "LOCAL_RANK")
        assert any(f"to process {trainer.pid}" in err for trainer in first for _, _, err in second), second
        assert all(trainer.process.poll() is None for trainer in first)  # they did not notice
        for trainer in first:
            trainer.kill()
        serving.end()


def test_trainers_that_ask_for_different_things():
    with no_leftovers() as env, Serving(job, env, RANKS) as serving:
        for _ in range(2 if FULL else 1):  # what the first pair said is not held against the second
            results = run_trainers(words("disagree"), TRAINERS, env)
            check_refused(results, 3, "opens split 'train' differently from trainer", "batch_size")
            check_good(run_trainers(words("all"), TRAINERS, env))
        serving.end()


def test_trainers_at_different_cursors():
    with no_leftovers() as env, Serving(job, env, RANKS) as serving:
        for _ in range(2 if FULL else 1):
            results = run_trainers(words("different_cursors"), TRAINERS, env)
            check_refused(results, 2, "begins an iteration over split 'train' at epoch 1, step", "began at epoch 1, step")
        for mode in ("look_first", "resume", "break", "two", "validate") if FULL else ("look_first",):
            check_good(run_trainers(words(mode), TRAINERS, env))
        serving.end()
    if not FULL:
        return
    # The same under `penstock run`.
    result = run_job(job, program=words("different_cursors"), timeout=20)
    assert result.code == 1 and "began at epoch 1, step" in result.stderr, result.log
    assert run_job(job, program=words("look_first")).code == 0


def pids(env, pattern):
    return sorted(pid for pid, what in marked_processes(env[MARK]).items() if re.match(pattern, what))


def check_lost(trainers):
    for code, out, err in wait_trainers(trainers):
        assert code in (5, -signal.SIGKILL), (code, out, err)
        if code == 5:
            assert re.search(f"the receiver of trainer [01] on host {HOST} went away", err) and "penstock serve" in err, err


def test_serving_ends_or_dies_in_mid_epoch():
    for how in ("stop", "kill a trainer's rank", "kill mpirun") if FULL else ("kill a trainer's rank",):
        ranks = RANKS if how == "stop" else 3
        with no_leftovers(wait_s=12) as env, Serving(job, env, ranks, launch=ranks > 0) as serving:
            trainers = start_trainers(words("endless"), TRAINERS, env)
            for trainer in trainers:
                trainer.wait_for("first batch")
            if how == "stop":
                report = serving.end()
                assert report["splits"]["train"]["images"] > 0
            elif how == "kill mpirun":
                os.kill(pids(env, r"mpirun ")[0], signal.SIGKILL)
            else:
                mpirun = pids(env, r"mpirun ")[0]
                with open(f"/proc/{mpirun}/task/{mpirun}/children") as file:
                    os.kill(int(file.read().split()[1]), signal.SIGKILL)
            check_lost(trainers)
            serving.process.wait(20)


def test_under_torchrun():
    # Its two seconds for each start are for FULL. torch 1.13 on Python 3.11 needs both of the options that give output.
    torchrun = shutil.which("torchrun", path="/usr/bin")
    if not FULL or torchrun is None:
        return
    script = os.path.join(work.name, "fails_once.sh")
    with open(script, "w") as file:
        file.write("#!/bin/sh\n[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exec \"$@\"\n"
                   "[ $RANK = 0 ] && exec \"$1\" endless \"$3\" \"$4\"\n"
                   "\"$1\" endless \"$3\" \"$4\" & sleep 1; kill -9 $!; exit 3\n")
    os.chmod(script, 0o755)
    with no_leftovers() as env, Serving(job, env, 3) as serving:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            tcp_port = free.getsockname()[1]
        command = [torchrun, "--redirects=1", "--tee=1", f"--log_dir={work.name}", "--no_python",
                   f"--nproc_per_node={TRAINERS}", "--max_restarts=1", f"--master_port={tcp_port}", script, *words("all")]
        result = run(command, 60, env=dict(outside(env), PENSTOCK_ATTACH="1"))
        assert result.returncode == 0, result.stdout + result.stderr
        report = serving.end()
        ranges = check_ranges(report, expected_train())
        assert all((trainer, epoch, 0, STEPS) in ranges for trainer in range(TRAINERS) for epoch in (0, 1)), ranges
        assert serving.text().count("is gone") == 2 * TRAINERS, serving.text()


if __name__ == "__main__":
    assert sys.platform == "linux"
    run_tests(globals())
