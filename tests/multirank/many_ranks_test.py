"""Many ranks on one node: 40 of them, or 200 with PENSTOCK_FULL=1, of which eight train and run examples/consume. They all
start, within a bounded time and memory, and the stream is that of one process."""

import json
import os
import subprocess
import tempfile
import time

from jobs import FULL, PENSTOCK, demo_photos, run_job, run_tests, skip_without_mpirun, write_job
from leftovers import MARK, marked_processes, no_leftovers

skip_without_mpirun()
CONSUME = os.path.join(os.environ["PENSTOCK_BUILD"], "consume")
RANKS, TRAINERS = (200 if FULL else 40), 8
START_S = 120 if FULL else 180  # --full, alone: 200 ranks took 27 to 34 s on two cores, of which MPI_Init takes 20; 61 s once
MEMORY_GB = 10
work = tempfile.TemporaryDirectory(prefix="many_ranks_test-")
job = write_job(work.name, demo_photos(), trainers=None, batch=4)
FEW = ["loader.threads=1", "loader.chunk_samples=2"]


def proportional_gb(env):
    """What the job's processes take, memory that several map counted once (PSS)."""
    total = 0
    for pid in marked_processes(env[MARK]):
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
        except (OSError, StopIteration):
            pass  # it has just ended
    return total / 2**20


def test_all_of_them_start_and_feed_the_trainers():
    expected = run_job(job, overrides=[f"roles.trainers={TRAINERS}", *FEW], program=[CONSUME, job, "--epochs=2"]).report
    with no_leftovers(wait_s=20) as env, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        begun = time.monotonic()
        words = [PENSTOCK, "launch", "--run", f"--trainer-host=localhost:{TRAINERS}",
                 f"--loader-host=localhost:{RANKS - TRAINERS}", "--json", job, *FEW, "--", CONSUME, job, "--epochs=2"]
        process = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        most_gb, placed, look_at = 0.0, None, begun + 2
        while process.poll() is None and time.monotonic() < begun + 1.5 * START_S:
            if (looking := time.monotonic()) > look_at:  # seldom: it keeps a core busy for a while
                most_gb = max(most_gb, proportional_gb(env))
                look_at = time.monotonic() + 20 * (time.monotonic() - looking)
            if placed is None:
                err.seek(0)
                placed = time.monotonic() - begun if "loader 0" in err.read() else None  # the placement: all have met
            time.sleep(0.5)
        took = time.monotonic() - begun
        code = process.poll()
        if code is None:
            process.kill()
        out.seek(0), err.seek(0)
        said, errors = out.read(), err.read()
    print(f"  {RANKS} ranks: placed after {placed or took:.1f} s, over after {took:.1f} s, {most_gb:.2f} GB", flush=True)
    assert code == 0, errors[-4000:]
    report = json.loads(said.strip().splitlines()[-1])
    assert len(report["ranks"]) == RANKS, len(report["ranks"])
    for name, split in expected["splits"].items():
        assert (split["order_hash"], split["pixel_hash"]) == (report["splits"][name]["order_hash"], report["splits"][name]["pixel_hash"])
    assert (placed or took) < START_S and most_gb < MEMORY_GB


if __name__ == "__main__":
    run_tests(globals())
