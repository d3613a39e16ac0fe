"""Memory stays flat: eighty epochs need no more than twenty, at every rank, and loaders stay within their budget."""
import sys
import tempfile

import jobs
from leftovers import no_leftovers

# A thread's buffers grow with the largest photo it has met, and malloc's arenas with them. Of four threads each meets it
# within twenty epochs but for once in 300 runs.
EPOCHS = (20, 80)
SLACK_MB = 12  # a leak of a third of a float32 picture an epoch
BASE_MB = 80  # the program, its libraries and MPI, before the first picture


def peaks(job, env, epochs):
    result = jobs.run_job(job, ranks=4, options=[f"--epochs={epochs}", "--json", "--quiet"],
                          overrides=["splits.train.batch_size=64"], env=env)
    report = result.report
    assert report["splits"]["train"]["images"] == epochs * 128, report["splits"]["train"]
    return [(rank["role"], rank["max_rss_mb"]) for rank in report["ranks"]]


def main():
    jobs.skip_without_mpirun()
    with tempfile.TemporaryDirectory(prefix="memory_flat_test-") as folder, no_leftovers() as env:
        # AddressSanitizer keeps 256 MB of what was freed, unless told not to.
        env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1:thread_local_quarantine_size_kb=64"
        job = jobs.write_job(folder, jobs.demo_photos())
        short, long = (peaks(job, env, epochs) for epochs in EPOCHS)
        print(f"after {EPOCHS[0]} epochs {short}, after {EPOCHS[1]} {long}")
        for (role, before), (_, after) in zip(short, long):
            assert after <= before + SLACK_MB, f"a {role} grew from {before:.0f} to {after:.0f} MB over {EPOCHS[1]} epochs"
            if role == "loader":
                assert after <= 0.25 * 1024 + BASE_MB, f"a loader uses {after:.0f} MB of a budget of 256"
    return 0


if __name__ == "__main__":
    sys.exit(main())
