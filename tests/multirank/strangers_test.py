"""A running job gets malformed messages at every socket that it listens on, and neither its stream nor its memory tells.

    PENSTOCK_FULL=1 strangers_test.py      # 10^6 of them in all; CI sends twelve thousand

What listens while a job runs, and who may talk to it:
    p<n>  a receiver's, for training programs: the same user, who says the job's token
    r<n>  transport/shm between the ranks of a node: the same user, token, and a rank that is not connected yet
    n<n>  the ring of a node's ranks (transport/node_ring.h), where MPI joins them: the same user and the token
    TCP   launch's end channel (launch/end_channel.h): the token of its own
Others are pairs of sockets between a parent and its child (helper, Python workers), which nobody else can reach.

What comes: random bytes; mutated, cut and repeated copies of well-formed messages, with the token and without; messages of
many packets that never end; descriptors, up to 250 at once, of files, pipes and memory of other sizes and without seals;
connections that are closed at once, or held by the hundred and say nothing; clients that never read their answers.
Everything is sent by a process of the same user: another one is turned away by the kernel's word, before a byte is read.
A training program knows the token, so who says it is let in where a place is free; that costs itself, never the job.

Covered elsewhere: the parsers of all protocols, without sockets, by tests/fuzz/fuzz_protocol.cpp (1.4 million executions in
tests/fuzz/ledger.jsonl); one stranger of each kind by tests/transport (unix_socket, shm_transport, node_ring) and
tests/launch/end_channel_test.cpp; what a receiver answers to each wrong message by tests/receiver. Here it is quantity, in
a job that goes on: descriptors (of which the ranks get 256), threads and memory must not grow.
"""

import array
import contextlib
import functools
import json
import os
import random
import re
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import time

from jobs import FULL, PENSTOCK, demo_photos, run_job, run_tests, skip_without_mpirun, write_job
from leftovers import BUSY_S, MARK, marked_processes, no_leftovers
from watching import descriptors, environment_of, figures, ranks

skip_without_mpirun()
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
PATTERNS = os.path.join(os.environ["PENSTOCK_BUILD"], "patterns")
work = tempfile.TemporaryDirectory(prefix="strangers_test-")
# Without read_ahead: its ring opens whenever the first read has to wait, on a busy machine in the middle of the attack.
SPLIT = ["splits.train.batch_size=4", "loader.chunk_samples=2", "loader.read_ahead=0"]
MESSAGES = 500_000 if FULL else 6_000  # to each of the two jobs, at least
# Ten steps each, or by default three of fewer photos. Where the attack takes longer the last epoch waits for its end (patterns.cpp).
PHOTOS, EPOCHS, PACE_MS = (80, 250, 30) if FULL else (24, 15, 180)
# UndefinedBehaviorSanitizer needs a descriptor to look at an object, and says that it is none where none are left.
MOST_FDS = 256 if "ASAN_OPTIONS" not in os.environ else 4096
job = write_job(work.name, demo_photos() if FULL else demo_photos(24, 8, 3))
HELD = 1500  # connections: more than a rank may have descriptors
# What a rank may grow by: buffers of the largest photo it has not met yet (memory_flat_test.py), and those of the strangers
# that it keeps waiting, 64 of 96 KiB at each socket. In the large version 63 bytes kept of each message would be more.
SLACK_MB = 30 if "ASAN_OPTIONS" not in os.environ else 300  # its quarantine keeps what was freed
SEED = int(os.environ.get("SEED", random.randrange(1 << 32)))


def program(folder):
    return [PATTERNS, "counted", job, os.path.join(folder, "%r.json"), *SPLIT]


def pace(env=None, pace_ms=PACE_MS):
    return dict(env or os.environ, PATTERNS_EPOCHS=str(EPOCHS), PATTERNS_PACE_MS=str(pace_ms))


@functools.cache
def undisturbed():
    split = run_job(job, overrides=SPLIT, program=program(work.name), env=pace(pace_ms=0), timeout=120).report["splits"]["train"]
    assert split["images"] == EPOCHS * PHOTOS, split
    return split


# ---- well-formed messages -------------------------------------------------------------------------------------------

def text(value):
    return struct.pack("<I", len(value)) + value


def client_hello(token):
    return b"\0" + text(token) + struct.pack("<i", os.getpid())


@functools.cache
def real_open():
    """What a program really says to open its split: one that a receiver made here has heard."""
    name = f"strangers-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind("\0" + name)
        listening.listen(1)
        env = dict(os.environ, PENSTOCK_RECEIVER="@" + name, PENSTOCK_TOKEN="t", RANK="0", WORLD_SIZE="2")
        child = subprocess.Popen(program(work.name), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            listening.settimeout(30)
            with listening.accept()[0] as client:
                client.settimeout(30)
                assert client.recv(1 << 20)[1:2] == b"\0"  # its hello
                client.send(b"\0\x0f" + struct.pack("<iii", 0, 2, 2) + text(b"here") + text(b"[]"))
                said = client.recv(1 << 20)
        finally:
            child.kill()
            child.wait()
    assert said[:2] == b"\0\1" and b"train" in said, said
    return said[1:]


def client_messages(draw):
    """One of each kind that a client may send, and of those that only a receiver does."""
    small = draw.randrange(-1, 6)
    stream = draw.choice((0, 1, 2**32, 2**32 + 1, 2**33 + draw.randrange(4)))
    return [
        client_hello(b"x"), real_open(), real_open(),
        b"\4" + struct.pack("<iqqQ", small, draw.choice((0, 1, -1, 2**40)), draw.choice((0, 3, -5)), 0),
        b"\4" + struct.pack("<iqqQ", small, 0, 0, 3) + bytes(24),
        b"\4" + struct.pack("<iqqQ", small, 0, 0, 2**61 + 1) + bytes(8),
        b"\6" + struct.pack("<Q", stream), b"\x0b" + struct.pack("<ii", small, small), b"\x0c" + struct.pack("<Q", stream), b"\x0d",
        b"\x0e" + text(b"{}"), b"\x10", b"\x11" + struct.pack("<iQB", 1, 4096, 0), b"\x12" + struct.pack("<iB", small, 1),
        b"\x14" + struct.pack("<i", small) + text(b"id"), b"\x16" + struct.pack("<iI", small, 2**31), b"\x17",
    ]


def mutated(draw, message):
    way = draw.randrange(5)
    message = bytearray(message)
    if way == 0 and message:
        for _ in range(draw.randrange(1, 5)):
            message[draw.randrange(len(message))] = draw.randrange(256)
    elif way == 1:
        del message[draw.randrange(len(message) + 1):]
    elif way == 2:
        message += NOISE[: draw.randrange(1, 200)]
    elif way == 3:
        at = draw.randrange(len(message) + 1)
        message[at:at + 4] = struct.pack("<I", draw.choice((0, 0xFFFFFFFF, 0x7FFFFFFF, 1 << 26, len(message))))
    return bytes(message)  # or as it was


NOISE = random.Random(SEED).randbytes(1 << 17)


def noise(draw):
    size = draw.choice((1, 2, 3, 4, 5, 9, 40, 300, 4096, 90_000)) if draw.random() < 0.2 else draw.randrange(1, 100)
    at = draw.randrange(len(NOISE) - size)
    return NOISE[at:at + size]


class Descriptors:
    """What is sent along: memory of other sizes and without seals, files, pipes, sockets."""

    def __init__(self):
        self.all = [os.memfd_create(f"stranger{size}") for size in (0, 1, 4096, 1 << 20)]
        for fd, size in zip(self.all, (0, 1, 4096, 1 << 20)):
            os.ftruncate(fd, size)
        self.all += [os.open("/dev/null", os.O_RDWR), os.open("/", os.O_RDONLY), *os.pipe()]

    def some(self, draw):
        count = draw.choice((1, 1, 2, 3, 250))
        fds = array.array("i", [draw.choice(self.all) for _ in range(count)])
        return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]

    def close(self):
        for fd in self.all:
            os.close(fd)


# ---- who sends them --------------------------------------------------------------------------------------------------

class Attack:
    def __init__(self, names, token, tcp_number, end_token, draw):
        self.draw = draw
        self.token, self.tcp_number, self.end_token = token, tcp_number, end_token
        self.receivers = [name for name in names if re.search(r"/p\d+$", name)]
        self.ranks = [name for name in names if re.search(r"/r\d+$", name)]
        self.ring = [name for name in names if re.search(r"/n\d+$", name)]
        self.sent = {}  # by target and whether the token was said: messages that the kernel took
        self.connections = 0
        self.held = []
        self.insiders = []  # clients that have said the token, and read no answer
        self.descriptors = Descriptors()

    def count(self, what, messages=1):
        self.sent[what] = self.sent.get(what, 0) + messages

    def total(self):
        return sum(self.sent.values())

    def connect(self, name):
        """None where nobody takes connections at this moment."""
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            one.connect("\0" + name)
        except (BlockingIOError, ConnectionRefusedError):
            one.close()
            time.sleep(0.0005)  # its queue is full: let the rank come to it
            return None
        self.connections += 1
        return one

    def send(self, one, packet, what):
        """False once the other end has hung up, or takes no more."""
        try:
            if self.draw.random() < 0.05:
                one.sendmsg([packet], self.descriptors.some(self.draw))
            else:
                one.send(packet)
        except OSError:
            return False
        self.count(what)
        return True

    def once(self):
        """Somebody comes, says something and goes."""
        chosen = self.draw.random()
        if chosen < 0.45:
            self.client_with_token()
        elif chosen < 0.60:
            self.client_without_token()
        elif chosen < 0.90:
            self.stranger_to_ranks()
        elif chosen < 0.97:
            self.end_channel()
        else:
            self.hold_one()

    def client_without_token(self):
        draw = self.draw
        if (one := self.connect(draw.choice(self.receivers))) is None:
            return
        if draw.random() < 0.02:  # a message without an end
            for _ in range(40):
                if not self.send(one, b"\1" + NOISE[:90_000], "p, without token"):
                    break
        for _ in range(draw.randrange(4)):
            message = noise(draw) if draw.random() < 0.5 else mutated(draw, draw.choice(client_messages(draw)))
            if not self.send(one, b"\0" + message if draw.random() < 0.9 else message, "p, without token"):
                break
        one.close()

    def client_with_token(self):
        draw = self.draw
        if (one := self.connect(draw.choice(self.receivers))) is None:
            return
        self.send(one, b"\0" + client_hello(self.token), "p, with token")
        if draw.random() < 0.003:  # it will not read what it is answered
            for _ in range(1500):
                if not self.send(one, b"\0" + noise(draw), "p, with token"):
                    break
            self.insiders.append(one)
            if len(self.insiders) > 20:
                self.insiders.pop(0).close()
            return
        said = client_messages(draw)
        for _ in range(draw.randrange(12)):
            message = noise(draw) if draw.random() < 0.2 else mutated(draw, draw.choice(said))
            if not self.send(one, b"\0" + message if draw.random() < 0.95 else message, "p, with token"):
                break
        if draw.random() < 0.3:
            with contextlib.suppress(OSError):
                while one.recv(1 << 16):
                    pass
        one.close()

    def stranger_to_ranks(self):
        """Says to be a rank, of this job or not, with the token or without; and then what ranks say."""
        draw = self.draw
        name = draw.choice(self.ranks or self.ring)
        if (one := self.connect(name)) is None:
            return
        kind, knows = name[name.rindex("/") + 1], draw.random() < 0.5
        what = f"{kind}, with{'' if knows else 'out'} token"
        rank = draw.choice((0, 1, 2, 3, 4, -1, 2**31 - 1))
        hello = struct.pack("<i", rank) + text(self.token if knows else b"0" * 64)
        if kind == "r":
            hello = b"\1" + hello
        if draw.random() < 0.4:
            hello = mutated(draw, hello)
        if draw.random() < 0.02:
            for _ in range(40):
                if not self.send(one, b"\1" + NOISE[:90_000], what):
                    break
        if self.send(one, b"\0" + hello, what) and draw.random() < 0.5:
            packets = [b"\2" + noise(draw), b"\3" + struct.pack("<IQQ", 0, 1 << 20, 4096), b"\4" + struct.pack("<IIQ", 0, 0, 64),
                       b"\5" + struct.pack("<II", 0, 0), b"\6" + struct.pack("<I", 0), b"\0"]
            for _ in range(draw.randrange(4)):
                if not self.send(one, b"\0" + mutated(draw, draw.choice(packets)), what):
                    break
        one.close()

    def end_channel(self):
        draw = self.draw
        one = socket.socket()
        one.settimeout(2)
        try:
            one.connect(("127.0.0.1", self.tcp_number))
            self.connections += 1
            knows = draw.random() < 0.5
            what = f"TCP, with{'' if knows else 'out'} token"
            rank = draw.choice(("0", "1", "3", "-1", "4", "4294967296", "18446744073709551615", "1e99", '"0"', "null"))
            token = self.end_token if knows else "0" * 64
            hello = f'{{"token":"{token}","rank":{rank},"host":"h"}}\n'.encode()
            end = draw.choice((b'{"end":7,"why":"a stranger"}\n', b'{"end":0}\n', b'{"running":true}\n', b"[" * 60_000 + b"\n", noise(draw)))
            if draw.random() < 0.5:
                hello = mutated(draw, hello)
            for packet in (hello, end)[: draw.randrange(1, 3)]:
                one.send(packet)
                self.count(what)
            if draw.random() < 0.01:
                one.settimeout(0)
                for _ in range(20):
                    one.send(NOISE[:65536].replace(b"\n", b"x"))
                    self.count(what)
        except OSError:
            pass
        finally:
            one.close()

    def hold_one(self):
        """Says nothing, or half of something, and stays."""
        draw = self.draw
        name = draw.choice([*self.receivers, *self.ranks, *self.ring, ""])
        if name:
            one = self.connect(name)
            if one is not None and draw.random() < 0.3:
                self.send(one, b"\1" + noise(draw)[:3000], "held")
        else:
            one = socket.socket()
            one.settimeout(2)
            with contextlib.suppress(OSError):
                one.connect(("127.0.0.1", self.tcp_number))
                self.connections += 1
        if one is not None:
            self.held.append(one)
        if len(self.held) > HELD:
            self.held.pop(0).close()

    def leave(self):
        for one in [*self.held, *self.insiders]:
            one.close()
        self.held, self.insiders = [], []
        self.descriptors.close()


# ---- the job ---------------------------------------------------------------------------------------------------------

def new_descriptors(before, now):
    """But for one pidfd: the process that attacks is known as a program until it ends."""
    before = [*before, "anon_inode:[pidfd]"]
    return [one for one in now if one not in before or before.remove(one)]


def wait_for(what, process, said, limit_s=30):
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline and process.poll() is None, said()
        time.sleep(0.02)


def attack_one(transport, draw):
    expected = undisturbed()
    real_open()
    folder = tempfile.mkdtemp(dir=work.name)
    open(f"{folder}/hold", "w").close()
    with no_leftovers(wait_s=8) as env, open(f"{folder}/out", "w+") as out, open(f"{folder}/err", "w+") as err:
        def few_descriptors():
            resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_FDS, MOST_FDS))

        def said():
            return open(out.name).read()[-2000:] + open(err.name, errors="replace").read()[-6000:]

        process = subprocess.Popen(
            [PENSTOCK, "launch", "--run", "-n", "4", job, "--json", "--quiet", f"transport={transport}", *SPLIT, "--", *program(folder)],
            env=pace(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, preexec_fn=few_descriptors)
        wait_for(lambda: open(out.name).read().count("first batch") == 2, process, said)
        watched = {"launch": process.pid, **{f"rank {rank}": pid for rank, pid in sorted(ranks(env).items())}}
        variables = environment_of(watched["rank 0"])
        end_token, tcp_number = variables[b"PENSTOCK_END_TOKEN"].decode(), int(variables[b"PENSTOCK_END_CHANNEL"].rpartition(b":")[2])
        programs = [pid for pid, words in marked_processes(env[MARK]).items() if words.startswith(PATTERNS)]
        variables = environment_of(programs[0])
        token, receiver = variables[b"PENSTOCK_TOKEN"], variables[b"PENSTOCK_RECEIVER"].decode()
        id_of_job = receiver.lstrip("@").rpartition("/")[0]
        assert len(watched) == 5 and token and end_token, watched
        with open("/proc/net/unix") as file:
            names = sorted({line.split()[-1][1:] for line in file if line.split()[-1].startswith("@" + id_of_job + "/")})
        kinds = sorted({name[name.rindex("/") + 1] for name in names})
        assert kinds == (["n", "p", "r"] if transport == "shm" else ["n", "p"]), names
        assert len(names) == (10 if transport == "shm" else 6), names

        time.sleep(0.5)  # everybody has had the first batches
        if transport == "shm":  # and trainers the memory of both loaders, which comes with a loader's first chunk for them
            wait_for(lambda: all(sum("penstock-chunk-buffers" in one for one in descriptors(watched[f"rank {rank}"])) == 2
                                 for rank in range(2)), process, said)
        before = {who: figures(pid) for who, pid in watched.items()}
        open_before = {who: descriptors(pid) for who, pid in watched.items()}
        attack = Attack(names, token, tcp_number, end_token, draw)
        most_fds = {who: 0 for who in watched}
        begun = time.monotonic()
        try:
            for _ in range(HELD):
                attack.hold_one()
            while attack.total() < MESSAGES:
                for _ in range(200):
                    attack.once()
                assert process.poll() is None, said()
                for who, pid in watched.items():
                    most_fds[who] = max(most_fds[who], len(os.listdir(f"/proc/{pid}/fd")))
        except BaseException:
            print("so far", attack.sent, said(), flush=True)
            raise
        finally:
            attack.leave()
        ended = time.monotonic()
        took = ended - begun
        # What they had open closes within a moment, while the job goes on.
        while time.monotonic() < ended + 3 + BUSY_S and process.poll() is None and (
                left := {who: more for who, pid in watched.items() if (more := new_descriptors(open_before[who], descriptors(pid)))}):
            time.sleep(0.05)
        assert process.poll() is None, "the job was over before all was sent: give it more epochs\n" + said()
        assert not left, f"{time.monotonic() - ended:.1f} s after the attack descriptors are open: {left}\n{said()}"
        after = {who: figures(pid) for who, pid in watched.items()}
        passed = re.findall(r"epochs (\d+)", open(out.name).read())
        os.remove(f"{folder}/hold")
        try:
            code = process.wait(EPOCHS * PHOTOS / 8 * PACE_MS / 1000 * 3 + 30)
        except subprocess.TimeoutExpired:
            raise AssertionError("it does not end\n" + said()) from None
        out.seek(0)
        assert code == 0, said()
        report = json.loads(out.read().strip().splitlines()[-1])
    print(f"  {transport}: {attack.total():,} messages by {attack.connections:,} connections in {took:.1f} s, while epoch {(passed or ['0'])[-1]} "
          f"of {EPOCHS} passed: {dict(sorted(attack.sent.items()))}")
    for who in watched:
        print(f"    {who}: before {before[who]}, after {after[who]}, most descriptors {most_fds[who]}")
    for key in ("images", "order_hash", "pixel_hash"):
        assert report["splits"]["train"][key] == expected[key], (key, report["splits"]["train"][key], expected[key])
    assert not any(rank.get("lost_loaders") for rank in report["ranks"]), report
    for who in watched:
        assert after[who]["threads"] == before[who]["threads"], (who, before[who], after[who])
        assert after[who]["rss_mb"] <= before[who]["rss_mb"] + SLACK_MB, (who, before[who], after[who])
    return attack.total()


def test_malformed_messages_to_a_job_over_shared_memory():
    attack_one("shm", random.Random(SEED))


def test_malformed_messages_to_a_job_over_mpi():
    attack_one("mpi", random.Random(SEED + 1))


if __name__ == "__main__":
    print(f"SEED={SEED}", flush=True)
    run_tests(globals())
