"""The commands of the pods that `penstock launch --k8s` describes, with a host of support/hosts.py for each pod: a real sshd in
those of nodes, ssh keys, host file and variables in them as mpi-operator gives them. No Kubernetes is in it: what the
operator and the cluster make of the manifest is not tested."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import yaml

from hosts import Hosts, skip_without_hosts
from jobs import PENSTOCK, Result, demo_photos, run_job, run_tests, write_job
from leftovers import no_leftovers, run

skip_without_hosts()
missing = [tool for tool in ("/usr/sbin/sshd", "ssh-keygen") if shutil.which(tool) is None]
if missing:
    print(f"SKIP: no {', '.join(missing)} (Debian: openssh-server)")
    sys.exit(77)
work = tempfile.TemporaryDirectory(prefix="kubernetes_pods_test-")
key = os.path.join(work.name, "id_rsa")
subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-N", "", "-f", key], check=True)

# /etc, /run and root's home are the pod's own; FOLDER KEY.
_POD = r"""
set -e
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/sshd /run/upper /run/work /run/home/.ssh
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/upper,workdir=/run/work /etc
sed -i 's|^root:\([^:]*:[^:]*:[^:]*:[^:]*\):[^:]*:|root:\1:/run/home:|' /etc/passwd
cp "$2" "$2.pub" /run/home/.ssh/ && cp "$2.pub" /run/home/.ssh/authorized_keys && chmod 600 /run/home/.ssh/*
printf 'StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n' >/etc/ssh/ssh_config.d/penstock.conf
mkdir -p /etc/mpi && cp "$1/hostfile" /etc/mpi/hostfile && cp "$1/names" /etc/hosts
"""

SAVES = r"""
import os, signal, sys, time
def end(*_):
    time.sleep(1)
    open(os.path.join(sys.argv[1], "saved." + os.environ["RANK"]), "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
open(os.path.join(sys.argv[1], "started." + os.environ["RANK"] + "." + os.environ["OF_THE_CONTAINER"]), "w").close()
time.sleep(100)
"""


class Pods:
    """The manifest's, running; the launcher is the first one."""

    def __init__(self, folder, job, options, program=()):
        words = [PENSTOCK, "launch", "--k8s", job, "--image=penstock", *options, *(["--", *program] if program else [])]
        text = run(words, 60, cwd=os.path.dirname(job)).stdout
        self.documents = {one["kind"]: one for one in yaml.safe_load_all(text)}
        name, spec = self.documents["MPIJob"]["metadata"]["name"], self.documents["MPIJob"]["spec"]
        replicas = spec["mpiReplicaSpecs"]
        self.slots = spec["slotsPerWorker"]
        workers = [f"{name}-worker-{i}" for i in range(replicas["Worker"]["replicas"])]
        self.pods = {f"{name}-launcher": (replicas["Launcher"]["template"]["spec"], [])}
        self.pods.update({worker: (replicas["Worker"]["template"]["spec"], [f"{worker}.{name}.default.svc"]) for worker in workers})
        if "StatefulSet" in self.documents:
            loaders = self.documents["StatefulSet"]
            service = loaders["spec"]["serviceName"]
            for i in range(loaders["spec"]["replicas"]):
                pod = f"{loaders['metadata']['name']}-{i}"
                self.pods[pod] = (loaders["spec"]["template"]["spec"], [f"{pod}.{service}"])
        with open(os.path.join(folder, "hostfile"), "w") as file:
            file.writelines(f"{worker}.{name}.default.svc slots={self.slots}\n" for worker in workers)
        self.folder = folder
        self.processes = []

    def start(self, hosts, env):
        with open(os.path.join(self.folder, "names"), "w") as file:
            file.write("127.0.0.1 localhost\n")
            for address, (pod, (_, names)) in zip(hosts.addresses, self.pods.items()):
                file.write(f"{address} {' '.join([*names, pod])}\n")
        net = {name: value for name, value in hosts.environment(env).items() if name != "OMPI_MCA_plm_rsh_agent"}
        env = dict(net, PATH=f"{os.path.dirname(PENSTOCK)}:{os.environ['PATH']}", OF_THE_CONTAINER="yes")
        operators = {"OMPI_MCA_orte_keep_fqdn_hostnames": "true", "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
                     "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10", "OMPI_MCA_orte_set_default_slots": str(self.slots)}
        for i in range(len(self.pods)):
            made = subprocess.run(hosts.enter(i, ["sh", "-c", _POD, "sh", self.folder, key]), capture_output=True, text=True)
            assert made.returncode == 0, made.stderr
        for i, (spec, _) in enumerate(self.pods.values()):
            container = spec["containers"][0]
            launcher = i == 0
            stream = subprocess.PIPE if launcher else subprocess.DEVNULL
            self.processes.append(subprocess.Popen(hosts.enter(i, container["command"] + [word.replace("$$", "$") for word in container.get("args", [])]),
                                                   env={**env, **(operators if launcher else {})}, stdout=stream, stderr=stream,
                                                   stdin=subprocess.DEVNULL, text=True))

    def end(self, limit_s=60):
        """The launcher's result; the nodes' sshd is ended as the operator ends pods."""
        out, err = self.processes[0].communicate(timeout=limit_s)
        for process in self.processes[1:]:
            process.terminate()
            process.wait(20)
        return Result(subprocess.CompletedProcess([], self.processes[0].returncode, out, err))


def with_pods(options, trainers, act=None, program=()):
    with tempfile.TemporaryDirectory(dir=work.name) as folder:
        job = write_job(folder, demo_photos(), trainers=trainers)
        pods = Pods(folder, job, options, [word.replace("FOLDER", folder) for word in program])
        with no_leftovers(wait_s=8) as env, Hosts(len(pods.pods), env, names=list(pods.pods), wait_s=10) as hosts:
            pods.start(hosts, env)
            if act is not None:
                act(pods, hosts)
            result = pods.end()
        if act is None:
            with no_leftovers() as env:
                alone = run_job(job, overrides=["roles.trainers=2"], env=env)
            assert result.hashes() == alone.hashes(), result.log
        return result, sorted(name for name in os.listdir(folder) if name.startswith("saved"))


def test_workers_that_train_and_a_set_that_loads():
    # The workers have a loader each, too.
    result, _ = with_pods(["--trainer-nodes=2:1:1", "--loader-nodes=2:1", "--json"], None)
    placed = re.findall(r"^job-(\S+) +\d+ +\d+  (trainer|loader) \d+ ", result.stderr, re.M)
    assert placed == [("worker-0", "trainer"), ("worker-1", "trainer"), ("worker-0", "loader"), ("worker-1", "loader"),
                      ("loader-0", "loader"), ("loader-1", "loader")], result.stderr


def test_workers_that_are_all_alike():
    with_pods(["--nodes=2", "--loaders=1", "--json"], 1)


def test_the_launchers_sigterm_leaves_programs_their_grace():
    def act(pods, hosts):
        deadline = time.monotonic() + 40
        while not all(os.path.exists(os.path.join(pods.folder, f"started.{rank}.yes")) for rank in (0, 1)):
            assert time.monotonic() < deadline and pods.processes[0].poll() is None, pods.end().log
            time.sleep(0.1)
        first = min(pid for pid, what in hosts.on(0).items() if what.startswith("penstock launch --run"))
        os.kill(first, signal.SIGTERM)
    result, saved = with_pods(["--trainer-nodes=2:1", "--loader-nodes=1:1", "trainer.grace_s=4"], None, act,
                              ["/usr/bin/python3", "-c", SAVES, "FOLDER"])
    assert result.code == 143 and saved == ["saved.0", "saved.1"], result.log


if __name__ == "__main__":
    run_tests(globals())
