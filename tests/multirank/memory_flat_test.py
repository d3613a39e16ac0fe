"""Memory stays flat: eighty epochs need no more than twenty, at every rank, and loaders stay within their budget, large
pictures included."""
import os
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


def test_many_epochs_need_no_more_than_a_few():
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


def test_large_pictures_share_the_budget():
    """Two splits of six files of 8 KB, 192 MB of pixels each, six threads, and 512 MB: threads wait for each other."""
    with tempfile.TemporaryDirectory(prefix="memory_flat_test-") as folder, no_leftovers() as env:
        env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1:thread_local_quarantine_size_kb=64"
        for split in ("train", "val"):
            os.makedirs(os.path.join(folder, split, "one"))
            for number in range(6):
                write_png(os.path.join(folder, split, "one", f"{number}.png"), 8000)
        job = jobs.write_job(folder, folder, trainers=1, batch=6)
        reports = [jobs.run_job(job, overrides=[f"loader.threads={threads}", "loader.memory_gb=0.5", "loader.chunk_samples=1"],
                                env=env).report for threads in (1, 6)]
        assert jobs.hashes_of(reports[0]) == jobs.hashes_of(reports[1])
        peak = reports[1]["ranks"][0]["max_rss_mb"]
        large = next(rank["large_pictures"] for rank in reports[1]["ranks"] if "large_pictures" in rank)
        print(f"peak {peak:.0f} MB, {large}")
        assert large["count"] == 12 and large["waited_s"] > 0, large
        assert large["most_mb"] <= large["limit_mb"] + 192.1, large
        assert peak <= 512 + BASE_MB, f"{peak:.0f} MB"


def write_png(path, side):
    """White, one bit a pixel: some kilobytes that become side * side * 3 bytes."""
    import struct
    import zlib

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = zlib.compress((b"\0" + b"\xff" * ((side + 7) // 8)) * side, 9)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


if __name__ == "__main__":
    jobs.run_tests(globals())
