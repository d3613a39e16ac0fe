"""MPI's endpoint and peers in trouble (abandon_probe.cpp). One whose envelope is malformed is lost, and one that announces a
chunk for which there is no memory, and that is all; so is one whose chunk MPI does not receive, and no chunk comes of it. Where
MPI fails, each peer is asked for alone: the one that it fails for is lost, or, where it is nobody's failure, all are. One that
was abandoned is waited for no more: flush() no longer times out for its sake, and the progress thread sleeps although a chunk
of it has only half arrived."""

import os
import re
import subprocess

from jobs import mpirun_words, run_tests, skip_without_mpirun
from leftovers import no_leftovers

skip_without_mpirun()
PROBE = os.path.join(os.environ["PENSTOCK_BUILD"], "abandon_probe")


def look(mca):
    with no_leftovers(wait_s=8) as env:
        # The ranks are killed in the end, so mpirun's exit code says nothing.
        result = subprocess.run([*mpirun_words(6, mca), PROBE], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                timeout=100)
    said = result.stdout
    log = said + result.stderr[-3000:]
    print("  " + " | ".join(said.splitlines()), flush=True)
    assert "lost 2: it sent a chunk's envelope that is too short" in said, log
    assert re.search("lost 3: it (announced a chunk of 3221225472 bytes, for which there is no memory here|sent a chunk's envelope)", said), log
    assert "lost 5: MPI_Irecv failed: " in said and "chunks 0" in said, log
    assert "lost 4: MPI_Iprobe failed: " in said.partition("rank 1 answers")[0], log
    everybody = re.findall(r"lost (\d): (MPI_Improbe failed: .*)", said)
    assert [peer for peer, _ in everybody] == ["1", "2", "3", "4", "5"] and len({why for _, why in everybody}) == 1, log
    assert "rank 1 answers" in said and "rank 1 is stopped" in said, log
    assert re.findall(r"flushed (\d)", said) == ["0", "1"], log
    before, after = map(float, re.findall(r"cpu_ms ([\d.]+)", said))
    assert after < before / 2, log


def test_over_shared_memory():
    look([])


def test_over_tcp():
    look([("btl", "self,tcp")])


if __name__ == "__main__":
    run_tests(globals())
