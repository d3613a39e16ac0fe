"""The check for leftovers must itself find what is left: a daemon, a socket, a segment, a file."""

import os
import socket
import subprocess
import sys
import time
import uuid

from leftovers import marked_processes, no_leftovers, run, MARK


def is_up(env, words):
    """It has been forked and executed: until then it has the words of its parent, or shows none."""
    deadline = time.monotonic() + 30
    while words not in marked_processes(env[MARK]).values():
        assert time.monotonic() < deadline, marked_processes(env[MARK])
        time.sleep(0.01)


def failure_of(body, **kwargs):
    try:
        with no_leftovers(wait_s=0.3, shared_machine=False, **kwargs) as env:
            body(env)
    except AssertionError as error:
        return str(error)
    return ""


def test_a_clean_run_passes():
    with no_leftovers() as env:
        assert run(["sh", "-c", "echo hello; exit 3"], 10, env).returncode == 3


def test_a_daemon_is_found_and_ended():
    seen = {}

    def body(env):
        seen["mark"] = env[MARK]
        run(["sh", "-c", "(setsid sleep 300 >/dev/null 2>&1 &) &"], 10, env)
        is_up(env, "sleep 300")

    assert "sleep 300" in failure_of(body)
    assert not marked_processes(seen["mark"])


def test_a_process_that_goes_in_time_is_fine():
    with no_leftovers() as env:
        subprocess.Popen(["sleep", "0.5"], env=env)


def test_a_socket_is_found():
    name = "penstock-test-" + uuid.uuid4().hex
    keep = socket.socket(socket.AF_UNIX)
    try:
        assert name in failure_of(lambda env: (keep.bind("\0" + name), keep.listen()))
    finally:
        keep.close()


def test_files_are_found():
    for path in ("/dev/shm/vader_segment." + uuid.uuid4().hex, "/tmp/penstock-" + uuid.uuid4().hex[:10]):
        try:
            assert path in failure_of(lambda env: open(path, "w").close())
        finally:
            os.unlink(path)


def test_tmpdir_must_be_empty():
    assert "/anything" in failure_of(lambda env: open(env["TMPDIR"] + "/anything", "w").close())


def test_the_tests_own_failure_is_not_hidden():
    try:
        with no_leftovers(wait_s=0.2, shared_machine=False) as env:
            subprocess.Popen(["sleep", "300"], env=env)
            raise ValueError("its own")
    except ValueError:
        return
    assert False, "the failure was replaced"


def test_a_timeout_ends_the_group_and_the_marked():
    with no_leftovers() as env:
        try:
            run(["sh", "-c", "(setsid sleep 300 &) & sleep 300"], 0.5, env)
        except AssertionError as error:
            assert "took longer" in str(error)
        else:
            assert False, "no timeout"
        assert not marked_processes(env[MARK])


if __name__ == "__main__":
    tests = [test for name, test in sorted(globals().items()) if name.startswith("test_")]
    for test in tests:
        test()
        print("ok", test.__name__, flush=True)
    assert len(tests) >= 8
    sys.exit(0)
