"""Memory stays flat: twenty epochs need no more than two, at every rank, and loaders stay within their budget."""
import sys
import tempfile

import jobs
from leftovers import no_leftovers

SLACK_MB = 8  # malloc's arenas settle over the first epochs; a leak of one batch an epoch would be 14 MB and more
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
        short = peaks(job, env, 2)
        long = peaks(job, env, 20)
        print(f"after 2 epochs {short}, after 20 {long}")
        for (role, before), (_, after) in zip(short, long):
            assert after <= before + SLACK_MB, f"a {role} grew from {before:.0f} to {after:.0f} MB over 20 epochs"
            if role == "loader":
                assert after <= 0.25 * 1024 + BASE_MB, f"a loader uses {after:.0f} MB of a budget of 256"
    return 0


if __name__ == "__main__":
    sys.exit(main())
