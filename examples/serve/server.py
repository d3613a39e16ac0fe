"""A server for a network that examples/imagefolder_ddp/train.py trained: pictures in, classes out.

    python examples/serve/server.py imagefolder-run/epoch-29.pt --port 8000
    curl --data-binary @photo.jpg http://127.0.0.1:8000/predict        # and a page for a browser: http://127.0.0.1:8000/

The tensor that the network sees is validation's for the same file, byte for byte: the checkpoint says which pipeline that is, and the
server does not start with another one. Bytes that are no picture are answered with 422 and the reason; where too many requests wait, 503
says when to come again.
"""

import argparse
import contextlib
import os
import sys

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.requests import ClientDisconnect

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "imagefolder_ddp")]
from common.flags import plainly, positive  # noqa: E402
from trained import read_trained  # noqa: E402
from serve.batching import Batcher, Overloaded  # noqa: E402


def onnxruntime_session(path):
    try:
        import onnxruntime
    except ImportError:
        raise SystemExit("--onnx needs ONNX Runtime: pip install onnxruntime") from None
    try:
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as problem:  # of kinds that onnxruntime does not export
        raise SystemExit(f"cannot read the network '{path}': {problem}") from None


class Classifier:
    """Encoded pictures to classes and probabilities. `answer` is called from one thread or several."""

    def __init__(self, path, device="cpu", top=3, onnx=None, job=None):
        session = None if onnx is None else onnxruntime_session(onnx)
        raw = session is not None and session.get_inputs()[0].type == "tensor(uint8)"
        trained = read_trained(path, dtype="uint8" if raw else None, job=job)  # penstock.ConfigError names what differs
        self.classes, self.preprocess, self.device = trained.classes, trained.preprocess, torch.device(device)
        self.top = min(top, len(self.classes))
        if session is None:
            network = trained.network.to(self.device)
            self.scores = lambda images: network(images.to(self.device)).cpu()
        else:
            self.scores = lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])

    def tensors(self, encoded):
        """float32 (uint8 for a network that takes pixels) [n, 3, height, width], and for each None or why it is no usable picture."""
        return self.preprocess(encoded, errors="status")

    def answer(self, encoded):
        images, statuses = self.tensors(encoded)
        with torch.inference_mode():
            shares = torch.softmax(self.scores(images), 1)
        answers = []
        for status, share in zip(statuses, shares):
            best = share.topk(self.top)
            answers.append({"error": str(status)} if status else
                           {"classes": [{"name": self.classes[int(at)], "probability": float(value)} for value, at in zip(*best)]})
        return answers


def application(classifier, *, max_bytes, **batching):
    batcher = Batcher(classifier.answer, **batching)

    @contextlib.asynccontextmanager
    async def running(app):
        async with batcher:
            yield

    app = FastAPI(lifespan=running)

    def refuse(code, why, **headers):
        return JSONResponse({"error": why}, code, headers)

    @app.post("/predict")
    async def predict(request: Request):
        if int(request.headers.get("content-length", 0)) > max_bytes:
            return refuse(413, f"a picture has at most {max_bytes} bytes here")
        encoded = bytearray()
        try:
            async for piece in request.stream():
                encoded += piece
                if len(encoded) > max_bytes:
                    return refuse(413, f"a picture has at most {max_bytes} bytes here")
        except ClientDisconnect:
            return refuse(400, "the client hung up")  # which nobody reads
        if not encoded:
            return refuse(422, "the request's body is empty; it is to be the encoded picture")
        try:
            answer = await batcher.answer(bytes(encoded))
        except Overloaded:
            return refuse(503, "too many requests wait", **{"Retry-After": "1"})
        return refuse(422, answer["error"]) if "error" in answer else answer

    @app.get("/health")
    async def health():
        return {"pipeline": classifier.preprocess.fingerprint, "classes": classifier.classes, "requests": batcher.requests,
                "batches": batcher.batches}

    @app.get("/", response_class=HTMLResponse)
    async def page():
        with open(os.path.join(HERE, "page.html"), encoding="utf-8") as file:
            return file.read()

    return app


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--job", help="the job file, where it is not where it was")
    parser.add_argument("--onnx", help="what export_onnx.py wrote of it, run by ONNX Runtime on the CPU")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--max-batch", type=positive, default=16)
    parser.add_argument("--batching-timeout-ms", type=float, default=5)
    parser.add_argument("--instances", type=positive, default=1, help="batches that are made at the same time")
    parser.add_argument("--max-waiting", type=positive, default=128, help="requests; more are answered with 503")
    parser.add_argument("--max-bytes", type=positive, default=20_000_000, help="of one picture")
    arguments = parser.parse_args()
    if arguments.onnx and arguments.device != "cpu":
        parser.error("--onnx is run on the CPU")
    classifier = Classifier(arguments.checkpoint, arguments.device, onnx=arguments.onnx, job=arguments.job)
    app = application(classifier, max_bytes=arguments.max_bytes, max_batch=arguments.max_batch,
                      batching_timeout_ms=arguments.batching_timeout_ms, instances=arguments.instances, max_waiting=arguments.max_waiting)
    # Bodies that are on their way count too: with more connections uvicorn itself answers 503.
    uvicorn.run(app, host=arguments.host, port=arguments.port, log_level="warning",
                limit_concurrency=arguments.max_waiting + arguments.max_batch * (arguments.instances + 1))


if __name__ == "__main__":
    plainly(main)
