"""A training program that waits: takes a batch, sleeps for a step, meets the others at a barrier, asks for the next one.

    trainer.py JOB STEP_MS SPREAD BARRIER STARTED_FILE [OVERRIDE...]

A step's time is lognormal, of this median and this deviation of its logarithm. A few batches are taken before, and dropped: by
then every loader has started its Python workers, which takes seconds where forty of them share two cores. What is measured goes
to STARTED_FILE.RANK, as a job's report has it: images a second from the first next() to the last batch, and the share of that
time for which the program waited."""

import json
import os
import random
import socket
import sys
import time

import penstock


class Barrier:
    """Of all trainers of a node, through trainer 0: a byte each way."""

    def __init__(self, rank, count, path):
        self.rank, self.count = rank, count
        if rank == 0:
            server = socket.socket(socket.AF_UNIX)
            server.bind(path)
            server.listen(count)
            self.peers = [server.accept()[0] for _ in range(count - 1)]
        else:
            self.peer = socket.socket(socket.AF_UNIX)
            for _ in range(600):
                try:
                    self.peer.connect(path)
                    return
                except OSError:
                    time.sleep(0.1)
            sys.exit("no barrier within a minute")

    def wait(self):
        if self.rank == 0:
            for peer in self.peers:
                peer.recv(1)
            for peer in self.peers:
                peer.send(b"x")
        else:
            self.peer.send(b"x")
            self.peer.recv(1)


def main():
    job, step_ms, spread, barrier, started = sys.argv[1:6]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    draw = random.Random(rank)
    meet = Barrier(rank, world, started + ".barrier") if barrier == "1" and world > 1 else None
    loader = penstock.DataLoader(job, split="train", output="numpy", overrides=sys.argv[6:])
    for taken, _ in enumerate(loader):
        if taken == 3:
            break
    time.sleep(2)
    if meet:
        meet.wait()
    if rank == 0:
        with open(started + ".part", "w") as file:
            file.write(str(time.time()))
        os.rename(started + ".part", started)
    begun, images, waited, last = time.monotonic(), 0, 0.0, 0.0
    batches = iter(loader)
    while True:
        asked = time.monotonic()
        batch = next(batches, None)
        if batch is None:
            break
        last = time.monotonic()
        waited += last - asked
        images += len(batch[1])
        time.sleep(float(step_ms) / 1000 * (draw.lognormvariate(0, float(spread)) if float(spread) else 1))
        if meet:
            meet.wait()
    with open(f"{started}.{rank}", "w") as file:
        json.dump({"images": images, "elapsed_s": last - begun, "waited_s": waited}, file)


if __name__ == "__main__":
    main()
