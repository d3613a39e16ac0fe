"""A cable that delays, for hosts.py: where the kernel has no netem, a process carries the frames.

    relay.py HOST_PID SWITCH_PID DEVICE ADDRESS DELAY_MS MBIT

Makes `eth0` in the host's network namespace and DEVICE, at `bridge`, in the switch's, both as TAP devices, and carries
what one of them sends to the other: DELAY_MS later, no faster than MBIT, in each direction. What would wait for more than 50 ms
besides is dropped, as a switch does. Says "ready" when both are up; ends, and takes the devices along, when its standard
input ends.
"""

import collections
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_LONGEST_S = 0.05
_MOST_BYTES = 65536
MTU = 9000  # larger than Ethernet's: frames are costly here


def enter_network(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net") as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns to the network of {pid}")


def make_tap(name):
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return tap


def ip(*words):
    subprocess.run(["ip", *words], stdin=subprocess.DEVNULL, check=True)


class Direction:
    """From one device to the other."""

    def __init__(self, source, to, delay_s, bytes_per_s):
        self.source, self._to, self._delay_s, self._bytes_per_s = source, to, delay_s, bytes_per_s
        self._travelling = collections.deque()  # (when it arrives, frame)
        self._free_at = 0.0

    def take(self):
        while True:
            try:
                frame = os.read(self.source, _MOST_BYTES)
            except BlockingIOError:
                return
            now = time.monotonic()
            if self._free_at > now + _LONGEST_S:
                continue  # dropped
            self._free_at = max(self._free_at, now) + len(frame) / self._bytes_per_s
            self._travelling.append((self._free_at + self._delay_s, frame))

    def deliver(self):
        """Returns when the next one arrives; None: nothing travels."""
        while self._travelling and self._travelling[0][0] <= time.monotonic():
            try:
                os.write(self._to, self._travelling.popleft()[1])
            except OSError:
                pass  # the device is down: the cable is pulled
        return self._travelling[0][0] if self._travelling else None


def main():
    host, switch, device, address, delay_ms, mbit = sys.argv[1:]
    enter_network(host)
    here = make_tap("eth0")
    ip("addr", "add", address, "dev", "eth0")
    ip("link", "set", "eth0", "mtu", str(MTU), "up")
    enter_network(switch)
    there = make_tap(device)
    ip("link", "set", device, "mtu", str(MTU), "master", "bridge", "up")
    directions = [Direction(one, other, float(delay_ms) / 1e3, float(mbit) * 1e6 / 8) for one, other in ((here, there), (there, here))]
    poll = select.poll()
    for fd in (0, here, there):
        poll.register(fd, select.POLLIN)
    print("ready", flush=True)
    while True:
        due = [at for at in (direction.deliver() for direction in directions) if at is not None]
        wait_ms = max(0.0, (min(due) - time.monotonic()) * 1e3) if due else None
        readable = [fd for fd, _ in poll.poll(wait_ms)]
        if 0 in readable and not os.read(0, 1):
            return
        for direction in directions:
            if direction.source in readable:
                direction.take()


if __name__ == "__main__":
    main()
