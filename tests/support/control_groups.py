"""Control groups of the kernel, of either version, below this process's own.

    group = ControlGroup("memory", v1={"memory.limit_in_bytes": 512 << 20}, v2={"memory.max": 512 << 20})
    group.kind                       # "v1", "v2", or None where no such group can be made here
    group.take(pid)                  # the process, with all its threads
    group.close()                    # once it is empty
"""

import os
import time


class ControlGroup:
    def __init__(self, controller, v1, v2):
        self.folder, self.kind = None, None
        with open("/proc/self/cgroup") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
        places = [("v1", f"/sys/fs/cgroup/{controller}" + path, v1) for _, names, path in lines
                  if controller in names.split(",")]
        places += [("v2", "/sys/fs/cgroup" + path, v2) for number, _, path in lines if number == "0"]
        for kind, parent, settings in places:
            folder = os.path.join(parent, f"penstock-test-{os.getpid()}-{time.monotonic_ns()}")
            try:
                os.mkdir(folder)
            except OSError:
                continue
            self.folder, self.kind = folder, kind
            try:
                for name, value in settings.items():
                    self.set(name, value)
                return
            except OSError:
                os.rmdir(folder)
                self.folder, self.kind = None, None

    def set(self, name, value):
        with open(os.path.join(self.folder, name), "w") as file:
            file.write(str(value))

    def has(self, name):
        return self.folder is not None and os.path.exists(os.path.join(self.folder, name))

    def number(self, *names):
        """The first of these files that is there, or None."""
        for name in names:
            if self.has(name):
                with open(os.path.join(self.folder, name)) as file:
                    return int(file.read())
        return None

    def take(self, pid):
        self.set("cgroup.procs", pid)

    def close(self):
        if self.folder is None:
            return
        deadline = time.monotonic() + 20
        while True:
            try:
                return os.rmdir(self.folder)
            except OSError:
                assert time.monotonic() < deadline, f"{self.folder} is not empty"
                time.sleep(0.05)
