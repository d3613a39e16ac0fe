"""Requests a second, and how long they take, of examples/serve with three ways to make tensors: penstock's Preprocessor, torchvision
with Pillow, and OpenCV. Everything else of the server is the same; the arms take turns.

    bench/serve/load.py CHECKPOINT PHOTOS --seconds 8 --rounds 3 >results.jsonl       # a checkpoint of examples/imagefolder_ddp

Before anything is timed, tensors are compared: torchvision's must be penstock's within 1e-6 (its ToTensor divides by 255, v2's ToDtype and
penstock multiply by 1/255), and of OpenCV's the differences are told.
The clients, 8 at a time, are a process of their own; each asks for the next picture as soon as it is answered."""

import argparse
import concurrent.futures
import contextlib
import http.client
import io
import json
import multiprocessing
import os
import socket
import statistics
import sys
import threading
import time

import numpy
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "..", "..", "examples")
sys.path[:0] = [EXAMPLES, os.path.join(EXAMPLES, "imagefolder_ddp")]
from serve.server import Classifier, application  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class OfTorchvision(Classifier):
    def __init__(self, *words, **more):
        super().__init__(*words, **more)
        from PIL import Image
        from torchvision import transforms
        self.open = Image.open
        self.steps = transforms.Compose([transforms.Resize(round(self.preprocess.height * 8 / 7)), transforms.CenterCrop(self.preprocess.height),
                                         transforms.ToTensor(), transforms.Normalize(MEAN, STD)])

    def tensors(self, encoded):
        return torch.stack([self.steps(self.open(io.BytesIO(one)).convert("RGB")) for one in encoded]), [None] * len(encoded)


class OfOpenCV(Classifier):
    def tensors(self, encoded):
        import cv2
        side, images = self.preprocess.height, []
        for one in encoded:
            image = cv2.cvtColor(cv2.imdecode(numpy.frombuffer(one, numpy.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
            height, width = image.shape[:2]
            scale = round(side * 8 / 7) / min(height, width)
            image = cv2.resize(image, (max(side, round(width * scale)), max(side, round(height * scale))))
            top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
            image = image[top:top + side, left:left + side].astype(numpy.float32) / 255
            images.append(torch.from_numpy(((image - MEAN) / STD).astype(numpy.float32).transpose(2, 0, 1).copy()))
        return torch.stack(images), [None] * len(encoded)


ARMS = {"penstock": Classifier, "torchvision": OfTorchvision, "cv2": OfOpenCV}


@contextlib.contextmanager
def serving(classifier):
    import uvicorn
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(application(classifier, max_bytes=20_000_000), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield listening.getsockname()
        finally:
            server.should_exit = True
            thread.join(30)


def ask_for(address, pictures, seconds, first):
    """Times of one client's requests, in seconds."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    times, until, at = [], time.monotonic() + seconds, first
    while time.monotonic() < until:
        begun = time.monotonic()
        connection.request("POST", "/predict", pictures[at % len(pictures)])
        response = connection.getresponse()
        response.read()
        assert response.status == 200, response.status
        times.append(time.monotonic() - begun)
        at += 7
    connection.close()
    return times


def clients(address, pictures, seconds, count, results):
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        found = [pool.submit(ask_for, address, pictures, seconds, first) for first in range(count)]
        results.put([one for future in found for one in future.result()])


def measure(classifier, pictures, seconds, count):
    with serving(classifier) as address:
        context = multiprocessing.get_context("spawn")
        for part, wanted in ((seconds / 4, False), (seconds, True)):  # the first quarter warms up
            results = context.Queue()
            process = context.Process(target=clients, args=(address, pictures, part, count, results))
            cpu = time.process_time()
            process.start()
            times = results.get(timeout=seconds + 60)
            process.join()
            if wanted:
                ranked = sorted(times)
                return {"requests_per_s": len(times) / seconds, "p50_ms": 1e3 * ranked[len(ranked) // 2],
                        "p99_ms": 1e3 * ranked[int(0.99 * (len(ranked) - 1))], "cpu_ms": 1e3 * (time.process_time() - cpu) / len(times)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("photos")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--without-network", action="store_true", help="some numbers of the tensor are the scores: what is left is the server's own work")
    parser.add_argument("--arms", default="penstock,torchvision,cv2")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pictures = []
    for top, _, names in sorted(os.walk(arguments.photos)):
        pictures += [open(os.path.join(top, name), "rb").read() for name in sorted(names) if name.lower().endswith((".jpg", ".jpeg"))]
    pictures = pictures[:100]
    arms = {name: ARMS[name](arguments.checkpoint) for name in arguments.arms.split(",")}
    for name, arm in arms.items():
        largest, same = 0.0, 0
        for one in pictures:
            tensors, wanted = arm.tensors([one])[0], arms["penstock"].tensors([one])[0]
            largest = max(largest, float((tensors - wanted).abs().max()))
            same += arm.answer([one])[0]["classes"][0]["name"] == arms["penstock"].answer([one])[0]["classes"][0]["name"]
        print(f"{name}: tensors differ from penstock's by {largest:.2g} at most; {same} of {len(pictures)} name the same class", file=sys.stderr)
        assert name == "cv2" or largest < 1e-6, name
    for arm in arms.values() if arguments.without_network else ():
        arm.scores = lambda images, count=len(arm.classes): images.float().flatten(1)[:, :count]
    found = {name: [] for name in arms}
    for _ in range(arguments.rounds):
        for name, arm in arms.items():
            found[name].append(measure(arm, pictures, arguments.seconds, arguments.clients))
            print(json.dumps({"arm": name, **found[name][-1]}), flush=True)
    for name, list_of in found.items():
        print(f"{name}: " + ", ".join(f"{key} {statistics.median(one[key] for one in list_of):.2f}" for key in list_of[0]), file=sys.stderr)


if __name__ == "__main__":
    main()
