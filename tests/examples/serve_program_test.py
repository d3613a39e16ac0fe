"""examples/serve: the tensor is validation's byte for byte, accuracy through the server is validation's, batches are made of what
comes together, and what cannot be answered is said: broken bytes, too many bytes, too many requests."""

import asyncio
import base64
import concurrent.futures
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import torch

from forked import Child
from jobs import FULL, demo_photos, free_port, run_tests
from leftovers import no_leftovers
from programs import EXAMPLES, FIXED, WORK, Program

import penstock

try:
    import fastapi  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as problem:
    print(f"SKIP: {problem}")
    sys.exit(77)

sys.path.insert(0, EXAMPLES)
from serve.batching import Batcher, Overloaded  # noqa: E402
from serve.export_onnx import OfPixels  # noqa: E402
from serve.server import Classifier  # noqa: E402
from trained import read_trained  # noqa: E402

# A fifth of each class is validated with.
PHOTOS, VALIDATED = (os.path.join(demo_photos(), "train"), 16) if FULL else (os.path.join(demo_photos(24, 8, 3), "train"), 6)
CHECKPOINT = os.path.join(WORK, "trained", "epoch-0.pt")


def train():
    program = Program("imagefolder_ddp", "train.py", os.path.join(EXAMPLES, "imagefolder_ddp", "job.yaml"))
    said = program.alone("--data-path", PHOTOS, "--image-size", "32", "--batch-size", "8", "--epochs", "1", "--output",
                         os.path.dirname(CHECKPOINT))
    return float(said.split("validation accuracy ")[1].split()[0])


class Server:
    def __init__(self, *words):
        self.words, self.port = words, free_port()

    def __enter__(self):
        self.clean = no_leftovers()
        env = self.clean.__enter__()
        deadline = time.monotonic() + 60
        while not self.started(env, deadline):
            self.port = free_port()  # somebody else took the other one meanwhile
        return self

    def started(self, env, deadline):
        """False: its port was in use."""
        words = [sys.executable, os.path.join(EXAMPLES, "serve", "server.py"), CHECKPOINT, "--port", str(self.port), *self.words]
        env = {**env, **FIXED}
        self.process = subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True) if FULL else Child(words, env)
        while True:
            ended = self.process.poll() is not None
            try:
                self.get("/health")
                if not ended:
                    return True
            except OSError:
                pass
            if ended:
                said = self.process.communicate(timeout=20)[1]
                assert "address already in use" in said, said
                return False
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def __exit__(self, *problem):
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=20)
        self.clean.__exit__(*problem)

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response, text

    def get(self, path):
        return self.ask("GET", path)

    def predict(self, encoded):
        response, text = self.ask("POST", "/predict", encoded)
        return response, json.loads(text)


def pictures():
    """{class/name: encoded}"""
    files = {}
    for top, _, names in sorted(os.walk(PHOTOS)):
        for name in sorted(names):
            with open(os.path.join(top, name), "rb") as file:
                files[os.path.join(os.path.basename(top), name)] = file.read()
    return files


def validation():
    """Each validation picture's tensor and label, as a loader of the checkpoint's job gives them."""
    more = torch.load(CHECKPOINT)["more"]
    with penstock.DataLoader(more["job"], split="val", batch_size=8, overrides=more["overrides"], copy=True) as val:
        for batch in val:
            images, labels = batch
            for image, label, valid in zip(images, labels, batch.valid.tolist()):
                if valid:
                    yield image, int(label)


def same(one, other):
    """But for the last digits, which depend on how many pictures torch convolves at once."""
    return len(one["classes"]) == len(other["classes"]) and all(
        a["name"] == b["name"] and abs(a["probability"] - b["probability"]) < 1e-4 for a, b in zip(one["classes"], other["classes"]))


# The first test: its server may be a child of this process, which has no threads yet.
def test_requests_that_come_together_share_batches():
    encoded = next(iter(pictures().values()))
    with Server("--batching-timeout-ms", "200", "--max-bytes", "1000000") as server:
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda _: server.predict(encoded)[1], range(24)))
        assert all(same(answer, answers[0]) for answer in answers), answers
        health = json.loads(server.get("/health")[1])
        assert health["requests"] == 24 and health["batches"] < 24, health
        for body, code, why in ((b"no picture", 422, ""), (b"", 422, "empty"), (b"x" * 1_000_001, 413, "at most 1000000 bytes"),
                                (encoded[:len(encoded) // 2], 422, "")):
            response, told = server.predict(body)
            assert response.status == code and why in told["error"] and told["error"], told
        assert same(server.predict(encoded)[1], answers[0])
        assert "Drop a picture" in server.get("/")[1]


def test_the_tensor_is_validations_and_so_is_the_accuracy():
    files = pictures()
    classifier = Classifier(CHECKPOINT)
    tensors = {}
    for name, encoded in files.items():
        images, statuses = classifier.tensors([encoded])
        assert statuses == [None], (name, statuses)
        tensors[images[0].numpy().tobytes()] = name
    # With --full through a server, which imports torch for seconds; without, as the server does: this process has threads by now,
    # so it cannot have one as its child.
    with Server("--max-batch", "4") if FULL else contextlib.nullcontext() as server:
        right = counted = 0
        for image, label in validation():
            name = tensors[image.numpy().tobytes()]  # a KeyError: no picture gives that tensor when it is served
            assert classifier.classes[label] == name.split(os.sep)[0], name
            if server:
                response, told = server.predict(files[name])
                assert response.status == 200, told
            else:
                told = classifier.answer([files[name]])[0]
            right += told["classes"][0]["name"] == classifier.classes[label]
            counted += 1
        assert counted == VALIDATED and f"{right / counted:.4f}" == f"{accuracy:.4f}", (right, counted, accuracy)


def test_too_many_requests_are_refused_and_the_others_answered():
    async def scenario():
        begun, refused = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def slow(requests):
            loop.call_soon_threadsafe(begun.set)
            refused.wait(10)
            if "fail" in requests:
                raise RuntimeError("the model failed")
            return [request.upper() for request in requests]

        async with Batcher(slow, max_batch=1, batching_timeout_ms=0, max_waiting=2) as batcher:
            first = asyncio.create_task(batcher.answer("a"))
            await begun.wait()
            waiting = [asyncio.create_task(batcher.answer(one)) for one in ("b", "fail")]
            await asyncio.sleep(0)
            try:
                await batcher.answer("d")
                raise AssertionError("it was to be refused")
            except Overloaded:
                refused.set()
            assert await first == "A" and await waiting[0] == "B"
            try:
                await waiting[1]
                raise AssertionError("it was to fail")
            except RuntimeError as problem:
                assert str(problem) == "the model failed"
            assert await batcher.answer("e") == "E"  # it goes on
        async with Batcher(lambda requests: [], batching_timeout_ms=0) as batcher:
            try:
                await asyncio.wait_for(batcher.answer("a"), 10)
                raise AssertionError("a result is missing")
            except RuntimeError as problem:
                assert str(problem) == "0 results for 1 requests"

    asyncio.run(scenario())


def test_the_page_in_a_browser():
    """A picture is chosen, another is dropped, and a broken file is complained about, in a real browser."""
    try:
        from selenium import webdriver
        from selenium.webdriver.common.by import By
        from selenium.webdriver.support.ui import WebDriverWait
    except ImportError:
        webdriver = None
    if not FULL or webdriver is None or shutil.which("chromedriver") is None:
        print("the page in a browser: with PENSTOCK_FULL=1 and python3-selenium and chromium-driver only")
        return
    name, encoded = next(iter(pictures().items()))
    broken = os.path.join(WORK, "broken.jpg")
    with open(broken, "wb") as file:
        file.write(encoded[:len(encoded) // 2])
    profile = os.path.join(WORK, "browser")
    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}"):
        options.add_argument(word)
    with Server() as server:
        expected = [f"{one['name']} {100 * one['probability']:.1f} %" for one in server.predict(encoded)[1]["classes"]]
        browser = webdriver.Chrome(options=options)
        try:
            browser.get(f"http://127.0.0.1:{server.port}/")
            answer = browser.find_element(By.ID, "answer")

            def told():
                WebDriverWait(browser, 20).until(lambda _: answer.text not in ("", "…"))
                return answer.text

            choose = browser.find_element(By.ID, "file")
            choose.send_keys(os.path.join(PHOTOS, name))
            assert told().splitlines() == expected, (told(), expected)
            assert browser.execute_script("return document.getElementById('shown').naturalWidth") > 0
            choose.send_keys(broken)
            WebDriverWait(browser, 20).until(lambda _: "error" in answer.get_attribute("class"))
            assert "premature" in told() or "truncated" in told(), told()
            browser.execute_script("""
                const bytes = Uint8Array.from(atob(arguments[0]), c => c.charCodeAt(0));
                const data = new DataTransfer();
                data.items.add(new File([bytes], "dropped.jpg", {type: "image/jpeg"}));
                document.getElementById("drop").dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
                """, base64.b64encode(encoded).decode())
            WebDriverWait(browser, 20).until(lambda _: answer.text.splitlines() == expected)
        finally:
            browser.quit()


def test_onnx_runtime_says_the_same_of_tensors_and_of_pixels():
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError:
        print("ONNX Runtime is tested where it is installed: frameworks.examples.serve_program_test")
        return
    encoded = list(pictures().values())[:7]
    wanted = Classifier(CHECKPOINT).answer(encoded)
    tensors, _ = Classifier(CHECKPOINT).tensors(encoded)
    for words in ((), ("--raw",)):
        network = os.path.join(WORK, "network.onnx")
        with no_leftovers() as env:
            made = subprocess.run([sys.executable, os.path.join(EXAMPLES, "serve", "export_onnx.py"), CHECKPOINT, network, *words],
                                  env={**env, **FIXED}, capture_output=True, text=True, timeout=100)
        assert made.returncode == 0, made
        classifier = Classifier(CHECKPOINT, onnx=network)
        images, _ = classifier.tensors(encoded)
        assert images.dtype == (torch.uint8 if words else torch.float32)
        if words:
            trained = read_trained(CHECKPOINT, dtype="uint8")
            of_pixels = OfPixels(torch.nn.Identity(), trained.mean, trained.std)(images)
            assert torch.equal(of_pixels, tensors), (of_pixels - tensors).abs().max()
        answers = classifier.answer(encoded)
        assert all(same(one, other) for one, other in zip(answers, wanted)), (answers, wanted)


if __name__ == "__main__":
    accuracy = train()
    run_tests(globals())
