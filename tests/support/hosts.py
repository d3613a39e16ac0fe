"""Several "hosts" on one machine, for jobs over several nodes.

    from hosts import Hosts

    with no_leftovers() as env, Hosts(2, env) as hosts:
        result = run_on(hosts, job, per_host=2, env=env)          # mpirun on the first host
        hosts.kill_link(1)                                        # the second one's cable is pulled
        hosts.lose(1, 0)                                          # what host1 sends to host0 is lost, not what it hears
        hosts.mend()
        hosts.limit_link(1, mbit=100)                             # it hangs on a slow one
        hosts.delay_link(1, ms=20, mbit=100)                      # or on one that is far away, too

A host is a process that holds a network, a host-name and a mount namespace: its own addresses, its own name, its own
/etc/hosts, /dev/shm and TMPDIR (the one of `env`), and so its own abstract sockets. Everything else, the processors, the
other files, the process numbers, is the machine's. The hosts hang on a bridge in a namespace of its own; nothing is ever
made in the machine's own namespaces, and all of it goes with the holding processes, which end with this one however that
ends. mpirun starts its daemon on another host through `agent`, a script that stands for ssh: it has this process give the
command to a shell there, with none of the environment but PATH, HOME, the mark of support/leftovers.py and a sanitizer's
options. So what runs there descends from nobody on the first host, and nobody there can end it by looking for children.

At the end every host's TMPDIR and /dev/shm must be empty, and no abstract socket of ours may be there; processes are found
by no_leftovers, which must therefore be the outer one.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

import leftovers
import relay
from jobs import PENSTOCK, Result, hold_file, mpirun_words, skip_without_mpirun

_NET = "10.213.7"
_TOOLS = ("ip", "ss", "tc", "unshare", "nsenter", "mount")
# An address that nobody has, its interface's number known all the same: what is sent there is lost on the wire. A route that
# refuses (blackhole, unreachable) would give the sender an error, which no cable does.
_NOBODY = f"{_NET}.250"
_LOST = "77"  # number of the routing table that leads there

# Says "ready" when the host stands, and holds it until its standard input ends.
_HOLD = r"""
set -e
hostname "$1"
mount --bind "$2" /etc/hosts
for folder in "$3" /dev/shm; do mount -t tmpfs -o size=512m tmpfs "$folder"; done
ip link set lo up
echo ready
exec cat >/dev/null
"""
_HOLD_SWITCH = "ip link add bridge type bridge && ip link set bridge up && echo ready && exec cat >/dev/null"

_AGENT = r"""#!{python} -IS
# HOST COMMAND...: what ssh does, for the hosts of one test.
import json, os, socket, sys
environment = {{name: os.environ[name] for name in ("PATH", "{mark}", "ASAN_OPTIONS") if name in os.environ}}
server = socket.socket(socket.AF_UNIX)
server.connect("{server}")
words = json.dumps([sys.argv[1], " ".join(sys.argv[2:]), dict(environment, HOME="/")]).encode()
socket.send_fds(server, [words], [0, 1, 2])
answer = server.recv(16)
sys.exit(int(answer) if answer else 255)
"""


def skip_without_hosts():
    """Ends the script with 77 where hosts cannot be made."""
    skip_without_mpirun()
    reason = None
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0:
        reason = "only root may make network namespaces"
    elif missing:
        reason = f"no {', '.join(missing)} in PATH"
    else:
        with tempfile.TemporaryDirectory(prefix="hosts-") as folder:
            try:
                with Hosts(2, {"TMPDIR": folder}):
                    pass
            except HostsError as error:
                reason = f"no namespaces here: {error}"
    if reason:
        print(f"SKIP: {reason}")
        sys.exit(77)


def can_delay():
    """Whether Hosts.delay_link works here."""
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
        return True
    except OSError:
        return False


class HostsError(Exception):
    pass


def _ip(*words):
    result = subprocess.run(["ip", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    if result.returncode != 0:
        raise HostsError(f"ip {' '.join(words)}: {result.stderr.strip()}")


class Hosts:
    def __init__(self, count, env, names=None, wait_s=8.0 + leftovers.BUSY_S):
        """`env` is no_leftovers': its TMPDIR becomes one of its own on each host. `names` may repeat: what the hosts call
        themselves; the agent knows them as host0, host1, ... nevertheless."""
        self.aliases = [f"host{i}" for i in range(count)]
        self.names = names or self.aliases
        self.addresses = [f"{_NET}.{i + 1}" for i in range(count)]
        self.tmp = env["TMPDIR"]
        self._wait_s = wait_s
        self._folder = None
        self._listening = None
        self._holders = []  # the hosts', then the switch's, then relays
        self._losing = [[] for _ in range(count)]  # rules, by host

    def _hold(self, words, *namespaces):
        holder = subprocess.Popen(["unshare", *namespaces, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        self._holders.append(holder)
        if holder.stdout.readline() != "ready\n":
            raise HostsError(f"unshare: {holder.communicate(timeout=20)[1].strip()}")
        return holder.pid

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="hosts-")
        try:
            known = os.path.join(self._folder.name, "hosts")
            with open(known, "w") as file:
                file.write("127.0.0.1 localhost\n")
                for address, name, alias in zip(self.addresses, self.names, self.aliases):
                    file.write(f"{address} {name}{'' if name == alias else ' ' + alias}\n")
            self.pids = [self._hold(["--propagation", "private", "sh", "-c", _HOLD, "sh", name, known, self.tmp],
                                    "--net", "--uts", "--mount") for name in self.names]
            switch = str(self._hold(["sh", "-c", _HOLD_SWITCH], "--net"))
            for i, (pid, address) in enumerate(zip(self.pids, self.addresses)):
                _ip("link", "add", "eth0", "netns", str(pid), "type", "veth", "peer", "name", f"host{i}", "netns", switch)
                self._in_net(switch, "link", "set", f"host{i}", "master", "bridge", "up")
                self._in_net(pid, "addr", "add", f"{address}/24", "dev", "eth0")
                self._in_net(pid, "link", "set", "eth0", "up")
            self._listening = socket.create_server(os.path.join(self._folder.name, "sshd"), family=socket.AF_UNIX)
            threading.Thread(target=self._accept, daemon=True).start()
            self.agent = os.path.join(self._folder.name, "agent")
            with open(self.agent, "w") as file:
                file.write(_AGENT.format(python=sys.executable, server=self._listening.getsockname(), mark=leftovers.MARK))
            os.chmod(self.agent, 0o755)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind, *_):
        deadline = time.monotonic() + self._wait_s
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._end()
        if left:
            message = f"left behind {self._wait_s:g} s after the test:\n  " + "\n  ".join(left)
            if kind is None:
                raise AssertionError(message)
            print(message, flush=True)

    def _accept(self):
        with contextlib.suppress(OSError):  # shut down
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._run_for, args=(connection,), daemon=True).start()

    def _run_for(self, connection):
        """One command of the agent's: its standard streams are the agent's own."""
        with connection, contextlib.suppress(OSError):
            words, streams, _, _ = socket.recv_fds(connection, 65536, 3)
            try:
                host, command, environment = json.loads(words)
                process = subprocess.Popen(self.enter(self.aliases.index(host), ["/bin/sh", "-c", command]), env=environment,
                                           stdin=streams[0], stdout=streams[1], stderr=streams[2], start_new_session=True)
            finally:
                for stream in streams:
                    os.close(stream)
            connection.sendall(str(process.wait() & 255).encode())

    def _end(self):
        if self._listening is not None:
            self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
        for holder in self._holders:
            with contextlib.suppress(BrokenPipeError):
                holder.communicate(timeout=20)  # closes its input, which ends it
        self._holders = []
        self._folder.cleanup()

    @staticmethod
    def _in_net(pid, *words):
        command = ["nsenter", "--target", str(pid), "--net", "ip", *words]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
        if result.returncode != 0:
            raise HostsError(f"ip {' '.join(words)}: {result.stderr.strip()}")

    def retry_each_second(self):
        """Where the kernel can (6.15), TCP tries again each second, and not after waits that double: a way that was cut for
        two seconds is then good again after three, on a busy machine too."""
        for pid in self.pids:
            subprocess.run(["nsenter", "--target", str(pid), "--net", "sh", "-c",
                            "cd /proc/sys/net/ipv4 && [ ! -e tcp_rto_max_ms ] || echo 1000 >tcp_rto_max_ms"], check=True, timeout=20)

    def left(self):
        """What lies on the hosts: files and sockets."""
        found = []
        for alias, pid in zip(self.aliases, self.pids):
            for folder in (self.tmp, "/dev/shm"):
                found += [f"on {alias}: {os.path.join(folder, name)}" for name in os.listdir(f"/proc/{pid}/root{folder}")]
            with open(f"/proc/{pid}/net/unix") as file:
                found += [f"on {alias}: socket {line.split()[-1]}" for line in file if "@penstock" in line]
        return found

    def enter(self, host, words):
        """`words` as a command on a host, in this folder and with this environment."""
        return ["nsenter", "--target", str(self.pids[host]), "--net", "--uts", "--mount", f"--wd={os.getcwd()}", *words]

    def on(self, host):
        """{pid: command line} of what runs there, holders and other tests' processes excepted."""
        mine = os.readlink(f"/proc/{self.pids[host]}/ns/net")
        found = {}
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if not name.isdigit() or int(name) in self.pids or os.readlink(f"/proc/{name}/ns/net") != mine:
                    continue
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    found[int(name)] = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
        return found

    def wait_for_nobody(self, host, limit_s):
        deadline = time.monotonic() + limit_s
        while running := self.on(host):
            assert time.monotonic() < deadline, f"on {self.aliases[host]} {limit_s} s later: {running}"
            time.sleep(0.05)

    def ranks(self, host):
        """pids of the ranks there, by number."""
        found = {}
        for pid, what in self.on(host).items():
            with contextlib.suppress(OSError):
                if re.search(r"penstock run ", what) and not what.startswith(("mpirun", "prterun", "nsenter")):
                    with open(f"/proc/{pid}/environ", "rb") as file:
                        number = re.search(rb"\0OMPI_COMM_WORLD_RANK=(\d+)", file.read())
                    with open(f"/proc/{pid}/comm") as file:
                        if number and file.read().strip() != "penstock-helper":
                            found[int(number.group(1))] = pid
        return found

    def kill_link(self, host):
        """Pulls the cable: what is sent there is lost without a word."""
        self._in_net(self._holders[len(self.pids)].pid, "link", "set", f"host{host}", "down")

    def mend_link(self, host):
        self._in_net(self._holders[len(self.pids)].pid, "link", "set", f"host{host}", "up")

    def limit_link(self, host, mbit):
        """The cable carries `mbit` Mbit/s each way from now on, with some 20 ms of buffer; None: as much as there is."""
        for pid, device in ((self.pids[host], "eth0"), (self._holders[len(self.pids)].pid, f"host{host}")):
            shape = ["replace", "dev", device, "root", "tbf", "rate", f"{mbit}mbit", "burst", "128kb", "latency", "20ms"]
            words = ["nsenter", "--target", str(pid), "--net", "tc", "qdisc"]
            words += shape if mbit else ["del", "dev", device, "root"]
            result = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
            if result.returncode != 0:
                raise HostsError(f"{' '.join(words[4:])}: {result.stderr.strip()}")

    def delay_link(self, host, ms, mbit):
        """The cable takes `ms` milliseconds each way from now on, and carries `mbit` Mbit/s: relay.py carries the frames.
        Connections that exist break; call it before anything runs there."""
        switch = self._holders[len(self.pids)].pid
        self._in_net(switch, "link", "del", f"host{host}")
        for other, pid in enumerate(self.pids):
            if other != host:
                self._in_net(pid, "link", "set", "eth0", "mtu", str(relay.MTU))
                self._in_net(switch, "link", "set", f"host{other}", "mtu", str(relay.MTU))
        words = [sys.executable, "-IS", relay.__file__, str(self.pids[host]), str(switch), f"host{host}",
                 f"{self.addresses[host]}/24", str(ms), str(mbit)]
        holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._holders.append(holder)
        if holder.stdout.readline() != "ready\n":
            raise HostsError(f"relay: {holder.communicate(timeout=20)[1].strip()}")

    def lose(self, host, to, process=None):
        """From now on what `host` sends to host `to` is lost without a word; the other way stays as it is. With
        `process`, a pid on one of the two, only what goes from or to it, in the connections that it has now."""
        rules = [["to", self.addresses[to]]]
        if process is not None:
            here = host if process in self.on(host) else to
            side = "sport" if here == host else "dport"
            rules = [[*rules[0], "ipproto", "tcp", side, port] for port in self._tcp_numbers(here, process)]
        pid = self.pids[host]
        if not self._losing[host]:
            self._in_net(pid, "neigh", "replace", _NOBODY, "lladdr", "02:00:00:00:00:fa", "nud", "permanent", "dev", "eth0")
            self._in_net(pid, "route", "add", "default", "via", _NOBODY, "dev", "eth0", "table", _LOST)
        for rule in rules:
            self._in_net(pid, "rule", "add", *rule, "table", _LOST)
        self._losing[host] += rules

    def mend(self):
        """Nothing is lost any more; links that are down stay down."""
        for host, pid in enumerate(self.pids):
            for rule in self._losing[host]:
                self._in_net(pid, "rule", "del", *rule, "table", _LOST)
            if self._losing[host]:
                self._in_net(pid, "route", "flush", "table", _LOST)
            self._losing[host] = []

    def _tcp_numbers(self, host, process):
        """The TCP ports that a process listens at, or has connections from."""
        words = ["nsenter", "--target", str(self.pids[host]), "--net", "ss", "-Htnap"]
        lines = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
        numbers = {line.split()[3].rpartition(":")[2] for line in lines if f",pid={process}," in line}
        assert numbers, f"process {process} has no TCP sockets"
        return sorted(numbers)

    def mca(self):
        """Settings of mpirun that such hosts need."""
        net = f"{_NET}.0/24"
        return {"plm_rsh_agent": self.agent, "btl_tcp_if_include": net, "oob_tcp_if_include": net}

    def environment(self, env):
        """The same as variables, for `penstock launch`, which writes the mpirun line itself."""
        return dict(env, **{f"OMPI_MCA_{name}": value for name, value in self.mca().items()})


def run_on(hosts, job, per_host, options=("--json",), overrides=(), program=(), env=None, timeout=60):
    """`penstock run` under an mpirun on the first host, with `per_host` ranks on each."""
    words = mpirun_words(per_host * len(hosts.aliases), hosts.mca().items())
    words += ["--host", ",".join(f"{alias}:{per_host}" for alias in hosts.aliases), PENSTOCK, "run", job, *options, *overrides]
    words += ["--", *program] if program else []
    return Result(leftovers.run(hosts.enter(0, words), timeout, env=env))


class RunningJob:
    """A job in the background whose trainers, or the first of them, have had their first batch (tests/multirank/patterns.cpp).
    Its programs have their OUT.json in `folder`, and are held until its end is waited for."""

    def __init__(self, hosts, env, words, folder, trainers=1, limit_s=40):
        """`words` start it on the first host. What it writes is kept in `folder`."""
        self.env = env
        self.folder = folder
        self.out = open(os.path.join(folder, "stdout"), "w+")
        self.err = open(os.path.join(folder, "stderr"), "w+")
        self._hold = hold_file(folder)
        self.process = subprocess.Popen(hosts.enter(0, words), env=hosts.environment(env), stdin=subprocess.DEVNULL,
                                        stdout=self.out, stderr=self.err, start_new_session=True)
        deadline = time.monotonic() + limit_s
        while not all(f"first batch {t}" in self.text() for t in range(trainers)):
            assert time.monotonic() < deadline and self.process.poll() is None, f"no first batch\n{self.log()}"
            time.sleep(0.02)

    def text(self, name="stdout"):
        with open(os.path.join(self.folder, name), errors="replace") as file:
            return file.read()

    def report(self):
        return json.loads(self.text().strip().splitlines()[-1])

    def lost_loaders(self):
        return [text for rank in self.report()["ranks"] for text in rank.get("lost_loaders", [])]

    def last_line(self):
        return self.text("stderr").strip().splitlines()[-1]

    def log(self):
        return f"exit code {self.process.poll()}\n--- stdout\n{self.text()}\n--- stderr\n{self.text('stderr')[-5000:]}"

    def end(self, limit_s):
        """Its exit code; took_s is how long it went on from now."""
        os.remove(self._hold)
        begun = time.monotonic()
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            left = "\n".join(f"{pid} {what}" for pid, what in leftovers.marked_processes(self.env[leftovers.MARK]).items())
            raise AssertionError(f"still running after {limit_s} s\n{left}\n{self.log()}") from None
        finally:
            self.out.close()
            self.err.close()
        self.took_s = time.monotonic() - begun
        return code
