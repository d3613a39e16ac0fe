"""A checkpoint's network as an ONNX file, for ONNX Runtime: of finished tensors, or of pixels, mean and deviation being part of it.

    pip install onnx onnxscript onnxruntime
    python examples/serve/export_onnx.py imagefolder-run/epoch-29.pt network.onnx          # float32, normalised by the pipeline
    python examples/serve/export_onnx.py imagefolder-run/epoch-29.pt network.onnx --raw    # uint8: it normalises by itself
    python examples/serve/server.py imagefolder-run/epoch-29.pt --onnx network.onnx

With --raw a quarter of the bytes reach the network, and the server's Preprocessor finishes nothing; what it sees is the same.
"""

import argparse
import os
import sys

import torch
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "imagefolder_ddp"))
from trained import read_trained  # noqa: E402


class OfPixels(nn.Module):
    """What ToDtype(scale=True) and Normalize do, and then the network: uint8 [n, 3, height, width] in."""

    def __init__(self, network, mean, std):
        super().__init__()
        self.network = network
        self.register_buffer("scale", torch.tensor(1 / 255))  # the same operations in the same order, so the same bits
        self.register_buffer("mean", torch.tensor(mean).reshape(3, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(3, 1, 1))

    def forward(self, pixels):
        return self.network((pixels.to(torch.float32) * self.scale - self.mean) / self.std)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("onnx", help="file to write")
    parser.add_argument("--raw", action="store_true", help="of pixels")
    arguments = parser.parse_args()
    trained = read_trained(arguments.checkpoint)
    network, example = trained.network, torch.zeros(2, 3, trained.preprocess.height, trained.preprocess.width)
    if arguments.raw:
        network, example = OfPixels(network, trained.mean, trained.std), example.to(torch.uint8)
    any_number = {"images": {0: "n"}, "scores": {0: "n"}}
    torch.onnx.export(network.eval(), (example,), arguments.onnx, input_names=["images"], output_names=["scores"], dynamic_axes=any_number)


if __name__ == "__main__":
    main()
