"""A Slurm of this machine's own, one slurmd a host of support/hosts.py: for scripts that `penstock launch --slurm` writes.

    with no_leftovers() as env, Hosts(3, env) as hosts, Slurm(hosts, env) as slurm:
        job = slurm.submit(script, cwd=folder)                    # sbatch
        assert slurm.wait(job, 60) == ("COMPLETED", 0), slurm.log()

munged, slurmctld (on host0) and the slurmds run in the foreground as children of this process, with their sockets, keys,
state and logs in a temporary folder: the machine's own Slurm, if it has one, is neither used nor touched. Nothing is
bound or limited (no task plugin, no control groups): two cores have to stand for all nodes'.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from hosts import skip_without_hosts

_TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol")
_CONF = """\
ClusterName=penstock
SlurmctldHost={first}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
SlurmdParameters=config_overrides
MpiDefault=none
GresTypes=gpu
ReturnToService=2
KillWait={kill_wait_s}
SlurmdTimeout=10
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def skip_without_slurm():
    """Ends the script with 77 where no Slurm can be brought up."""
    skip_without_hosts()
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        print(f"SKIP: no {', '.join(missing)} in PATH (Debian: slurmctld slurmd slurm-client munge)")
        sys.exit(77)


class Slurm:
    def __init__(self, hosts, env, kill_wait_s=30, cpus=64):
        self._hosts = hosts
        self._folder = tempfile.TemporaryDirectory(prefix="slurm-")
        self.env = dict(env, SLURM_CONF=os.path.join(self._folder.name, "slurm.conf"))
        self._daemons = []
        nodes = "\n".join(f"NodeName={name} NodeAddr={address} CPUs={cpus} RealMemory=20000{' Gres=gpu:4' if i == 0 else ''} State=UNKNOWN"
                          for i, (name, address) in enumerate(zip(hosts.names, hosts.addresses)))
        with open(self.env["SLURM_CONF"], "w") as file:
            file.write(_CONF.format(first=f"{hosts.names[0]}({hosts.addresses[0]})", folder=self._folder.name, nodes=nodes,
                                    kill_wait_s=kill_wait_s))
        # GPUs are files to Slurm, and here nothing else.
        gpus = os.path.join(self._folder.name, "gpu[0-3]")
        for i in range(4):
            open(gpus.replace("[0-3]", str(i)), "w").close()
        with open(os.path.join(self._folder.name, "gres.conf"), "w") as file:
            file.write(f"NodeName={hosts.names[0]} Name=gpu File={gpus}\n")

    def _start(self, host, name, words):
        with open(os.path.join(self._folder.name, name + ".log"), "w") as log:
            self._daemons.append(subprocess.Popen(self._hosts.enter(host, words), stdin=subprocess.DEVNULL, stdout=log,
                                                  stderr=subprocess.STDOUT, env=self.env))

    def __enter__(self):
        folder = self._folder.name
        try:
            os.chmod(folder, 0o755)
            key = os.path.join(folder, "munge.key")
            with open(key, "wb", opener=lambda path, flags: os.open(path, flags, 0o400)) as file:
                file.write(os.urandom(64))
            # --force: root runs it here, and the folder above is anybody's.
            self._start(0, "munged", ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket",
                                      f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log",
                                      f"--seed-file={folder}/munge.seed"])
            self._until(lambda: os.path.exists(f"{folder}/munge.socket"), "munged")
            self._start(0, "slurmctld", ["slurmctld", "-D", "-i"])
            for i, name in enumerate(self._hosts.names):
                self._start(i, f"slurmd.{name}", ["slurmd", "-D", "-N", name])
            count = len(self._hosts.names)
            self._until(lambda: len(re.findall(r"^\S+ idle$", self.run(["sinfo", "-N", "-h", "-o", "%N %t"]).stdout, re.M)) == count,
                        "idle nodes")
        except BaseException:
            print(self.log(), flush=True)
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in reversed(self._daemons):  # munged last: the others still talk
            with contextlib.suppress(ProcessLookupError):
                daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        # On a host that was cut off one still tries to tell slurmctld how its step ended; its environment has no mark.
        for host in range(len(self._hosts.names)):
            for pid, what in self._hosts.on(host).items():
                if what.startswith("slurmstepd:"):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        self._folder.cleanup()

    def _until(self, holds, what, limit_s=30):
        deadline = time.monotonic() + limit_s
        while not holds():
            assert time.monotonic() < deadline, f"no {what} within {limit_s} s"
            time.sleep(0.1)

    def run(self, words, **kwargs):
        return subprocess.run(self._hosts.enter(0, words), capture_output=True, text=True, timeout=60, env=self.env, **kwargs)

    def submit(self, script, options=()):
        """The number of the job."""
        result = self.run(["sbatch", "--parsable", *options, script])
        assert result.returncode == 0, result.stderr
        return result.stdout.strip().split(";")[0]

    def state(self, job):
        """(state, exit code) of the job, and of its first component where it has several."""
        shown = self.run(["scontrol", "show", "job", job]).stdout
        return re.search(r"JobState=(\w+)", shown)[1], int(re.search(r"ExitCode=(\d+)", shown)[1])

    def wait(self, job, limit_s):
        """The same, once the job has ended."""
        self._until(lambda: self.state(job)[0] not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"), f"end of job {job}",
                    limit_s)
        return self.state(job)

    def log(self):
        text = ""
        for name in sorted(os.listdir(self._folder.name)):
            if name.endswith(".log"):
                with open(os.path.join(self._folder.name, name)) as file:
                    text += f"--- {name}\n{file.read()[-1500:]}\n"
        return text
