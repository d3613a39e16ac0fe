"""A Python program in a child of this process, which has imported torch: importing it takes three seconds of CPU time.

    child = Child([sys.executable, "train.py", "--epochs", "1"], env)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err

This process must have no threads of torch's or penstock's yet.
"""

import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback


class Child:
    """As subprocess.Popen, of a Python program. Its output is known when it has ended."""

    def __init__(self, words, env):
        self.words, self.returncode = words, None
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            os.dup2(self.out.fileno(), 1)
            os.dup2(self.err.fileno(), 2)
            os.environ.clear()
            os.environ.update(env)
            tempfile.tempdir = None  # by the new TMPDIR
            sys.modules["torch"].set_num_threads(1)
            sys.argv, sys.path[0] = words[1:], os.path.dirname(words[1])
            runpy.run_path(words[1], run_name="__main__")
            code = 0
        except SystemExit as end:
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
            else:
                code = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self):
        if self.returncode is None:
            ended = os.waitpid(self.pid, os.WNOHANG)
            if ended[0]:
                self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)
        while self.poll() is None:
            time.sleep(0.01)

    def wait(self, timeout):
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise subprocess.TimeoutExpired(self.words, timeout)
            time.sleep(0.01)
        return self.returncode

    def communicate(self, timeout):
        self.wait(timeout)
        said = []
        for file in (self.out, self.err):
            file.seek(0)
            said.append(file.read())
            file.close()
        return said
