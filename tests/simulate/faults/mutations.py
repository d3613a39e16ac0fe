"""Do the simulated worlds find bugs? Each mutation below plants one in the balancer, coordinator, receiver or loader, in a
copy of the sources; fault_world_test must then fail.

    tests/simulate/faults/mutations.py                   # all, in build/mutations; resumes where a log is there
    tests/simulate/faults/mutations.py --only fence      # those whose name contains the word
    tests/simulate/faults/mutations.py --log FILE        # a line each: name, caught or missed, seconds

A mutation whose text is not in the sources any more is an error: it is to be written anew. mutations_test.py looks for that
in every run of the tests."""

import argparse
import os
import subprocess
import sys
import time

TOP = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
LEAST_CAUGHT = 24  # of 25

PROGRAM = "simulate_faults_optimised_whole_tests"  # preset release compiles the tests of a folder into one

# name, file, text, what stands in its place
MUTATIONS = [
    ("a lost loader's made chunks are not granted again", "runtime/balancer/balancer_faults.cpp",
     "  const std::vector<LeaseKey> held = loader->live_leases();\n  checks_.erase",
     "  std::vector<LeaseKey> held;\n  for (const HeldLease& one : loader->leased) held.push_back(one.lease);\n  checks_.erase"),
    ("a silent loader is never given up", "runtime/balancer/balancer_faults.cpp",
     "      actions_.push_back(GiveUpLoader{loader.id, \"silent for \" + seconds_text(silent)});\n", ""),
    ("a stalled loader gets no grants for ever", "runtime/balancer/balancer_faults.cpp",
     "    loader->stalled = false;\n", ""),
    ("a damaged chunk is not made again", "runtime/receiver/receiver.cpp",
     "        to_coordinator(ChunkDamaged{arrived.peer, header.lease, error.message()});\n", ""),
    ("a rest of a failed chunk never ends", "runtime/balancer/balancer_faults.cpp",
     "    streams_.enqueue(stream, place.step, place.chunk, chunk);\n  }\n  return any;\n}\n\nvoid Balancer::Impl::stop_rest",
     "  }\n  return any;\n}\n\nvoid Balancer::Impl::stop_rest"),
    ("hedges have no budget", "runtime/balancer/balancer_faults.cpp",
     "return (hedges_ + 1) * (faults ? kHedgeEveryUnderFaults : kHedgeEvery) <= grants_;",
     "return (hedges_ + 1) * (faults ? kHedgeEveryUnderFaults : kHedgeEvery) > 0;"),
    ("a chunk buffer counts as free twice", "runtime/balancer/loader_registry.cpp",
     "  --loader.chunk_buffers_used;\n", "  loader.chunk_buffers_used -= loader.chunk_buffers_used > 1 ? 2 : 1;\n"),
    ("an accepted chunk frees its chunk buffer", "runtime/balancer/balancer.cpp",
     "      loaders_.finish(*holder, stream->opened.receiver, live);\n    }",
     "      loaders_.finish(*holder, stream->opened.receiver, live);\n"
     "      loaders_.chunk_buffer_freed(*holder, stream->opened.receiver);\n    }"),
    ("a loader that was given up keeps what it has", "runtime/loader/loader.cpp",
     "    dropping_ = true;\n", "    join();\n    return;\n"),
    ("messages of a loader's earlier incarnation are heard", "runtime/coordinator/coordinator.cpp",
     "    if (fenced(peer, message)) return;\n", ""),
    ("a loader that was given up is not told", "runtime/coordinator/coordinator.cpp",
     "      send_(peer, GivenUp{++incarnations_[peer]});\n", "      ++incarnations_[peer];\n"),
    ("a returned loader is not asked for its splits", "runtime/coordinator/split_registry.cpp",
     "    it->second.asked.erase(loader);", "    (void)loader;"),
    ("a split waits for the answer of a lost loader", "runtime/coordinator/split_registry.cpp",
     "    it->second.waiting_for.erase(loader);\n    if (it->second.sizes_from", "    if (it->second.sizes_from"),
    ("chunk buffers of an earlier incarnation are counted on", "runtime/loader/loader_splits.cpp",
     "  for (auto& [chunk_buffer, use] : in_use_) use.counted = false;\n", ""),
    ("a loader forgets to say that it lives", "runtime/loader/loader.cpp", "    send(Alive{});\n", ""),
    ("a chunk buffer is used again before it is returned", "runtime/loader/loader.cpp",
     "    send(ChunkDone{work->lease.lease,",
     "    splits_.free_chunk_buffer(work->chunk_buffer);\n    send(ChunkDone{work->lease.lease,"),
    ("a chunk is taken twice", "runtime/receiver/chunk_intake.cpp",
     "  return chunk >= batch_buffer.chunk_taken.size() || !batch_buffer.chunk_taken[chunk];", "  return chunk + 1 > 0;"),
    ("late chunks are not released", "runtime/receiver/receiver.cpp",
     "    endpoint_->release(arrived.peer, arrived.token);\n    statistics_.chunk_done",
     "    if (taken) endpoint_->release(arrived.peer, arrived.token);\n    statistics_.chunk_done"),
    ("a batch is delivered before it is whole", "runtime/receiver/iterations.cpp",
     "  if (batch_buffer.state != BatchBuffer::State::ready) return;\n  iteration.failed = trouble",
     "  if (batch_buffer.samples_missing > 1) return;\n  iteration.failed = trouble"),
    ("a batch that is held is filled again", "runtime/receiver/iterations.cpp",
     "  batch_buffer.state = BatchBuffer::State::held;", "  batch_buffer.state = BatchBuffer::State::free;"),
    ("the second copy of a chunk is made by the same loader", "runtime/balancer/balancer_grants.cpp",
     "return l.id != it->second.made_by &&", "return l.id == it->second.made_by &&"),
    ("local data: a chunk goes to a loader that cannot read it", "runtime/balancer/balancer_grants.cpp",
     "  if (failed_by(chunk, loader) || !may_read(stream, chunk.group, loader.id)) return false;",
     "  if (failed_by(chunk, loader)) return false;"),
    ("local data: a second copy is asked of a loader that cannot read it", "runtime/balancer/balancer_grants.cpp",
     " && may_read(stream, it->second.group, l.id) &&", " &&"),
    ("local data: a chunk's samples stand one after the other", "runtime/receiver/chunk_intake.cpp",
     "    rows.push_back(row);\n  }\n  return rows;", "    rows.push_back(header.first_row + std::ssize(rows));\n  }\n  return rows;"),
    ("not all hear that the job has ended", "runtime/receiver/job_shutdown.cpp",
     "    if (peer != self_) send_(peer, *goodbye_);", "    if (peer == 1) send_(peer, *goodbye_);"),
]


def run(words, folder, **more):
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, **more)


def build(folder):
    return run(["cmake", "--build", "build/release", "--target", PROGRAM, "--", "--quiet"], folder)


def prepare(folder):
    if not os.path.exists(folder):
        subprocess.run(["git", "clone", "--quiet", "--shared", TOP, folder], check=True)
    head = run(["git", "rev-parse", "HEAD"], TOP).stdout.strip()
    subprocess.run(["git", "fetch", "--quiet", TOP, "HEAD"], cwd=folder, check=True)
    subprocess.run(["git", "checkout", "--quiet", "--force", head], cwd=folder, check=True)
    subprocess.run(["cmake", "--preset", "release", "-DPENSTOCK_MPI=OFF", "-DPENSTOCK_BENCH=OFF", "-DPENSTOCK_PYTHON=OFF"], cwd=folder,
                   check=True, stdout=subprocess.DEVNULL)
    result = build(folder)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return head


def check_texts():
    """Before minutes of building: the text of each stands in the sources, once."""
    for name, file, text, _ in MUTATIONS:
        with open(os.path.join(TOP, file)) as source:
            times = source.read().count(text)
        assert times == 1, f"{name}: {file} has its text {times} times, not once"


def try_one(folder, file, text, instead):
    path = os.path.join(folder, file)
    with open(path) as source:
        before = source.read()
    assert before.count(text) == 1, f"{file} has this {before.count(text)} times, not once:\n{text}"
    try:
        with open(path, "w") as source:
            source.write(before.replace(text, instead))
        result = build(folder)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
        try:
            test = run([f"tests/simulate/faults/{PROGRAM}", "--source-file=*/fault_world_test.cpp"], os.path.join(folder, "build/release"), timeout=300,
                       env=dict(os.environ, PENSTOCK_WORLDS="2000"))
        except subprocess.TimeoutExpired:
            return "caught: the test does not end"
        if test.returncode == 0:
            return "missed"
        lines = [line for line in test.stdout.splitlines() if "values:" in line or "CRASH" in line.upper()]
        return "caught: " + (lines[0].replace(folder + "/", "").strip() if lines else f"exit status {test.returncode}")[:160]
    finally:
        with open(path, "w") as source:
            source.write(before)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--log", default=os.path.join(TOP, "build", "mutations.log"))
    arguments = parser.parse_args()
    check_texts()
    folder = os.path.join(TOP, "build", "mutations")
    head = prepare(folder)
    done = {}
    if os.path.exists(arguments.log):
        with open(arguments.log) as log:
            rows = [line.rstrip("\n").split("\t") for line in log if not line.startswith("#")]
        done = {name: outcome for commit, name, outcome, _ in rows if commit == head}
    chosen = [one for one in MUTATIONS if arguments.only in one[0]]
    for name, file, text, instead in chosen:
        if name not in done:
            begun = time.monotonic()
            done[name] = try_one(folder, file, text, instead)
            with open(arguments.log, "a") as log:
                log.write(f"{head}\t{name}\t{done[name]}\t{time.monotonic() - begun:.0f}\n")
        print(f"{name}: {done[name]}", flush=True)
    missed = [name for name, *_ in chosen if done[name] == "missed"]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} caught")
    allowed = len(MUTATIONS) - LEAST_CAUGHT if len(chosen) == len(MUTATIONS) else 0
    return 1 if len(missed) > allowed else 0


if __name__ == "__main__":
    sys.exit(main())
