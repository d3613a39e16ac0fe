"""The finishing pass equals torch: ((x * (1/255)) - mean) / std on float32 tensors, then a cast, bit for bit, in both memory
formats. Where torchvision has v2, by its to_dtype and normalize."""
import os
import sys
import tempfile

from pipeline_request import need, request

need("torch", "torchvision", "numpy")
import numpy as np
import torch
from torchvision_functions import F, v2

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
HEIGHT, WIDTH, SAMPLES = 37, 29, 3


def main():
    torch.manual_seed(1)
    pixels = torch.randint(0, 256, (SAMPLES, 3, HEIGHT, WIDTH), dtype=torch.uint8)
    pixels[0, :, :9, :29] = (torch.arange(261) % 256).reshape(9, 29).to(torch.uint8)  # every value, every channel
    failed = checked = 0
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "in.bin"), os.path.join(folder, "out.bin")
        pixels.numpy().tofile(source)
        for name in ("uint8", "float32", "float16", "bfloat16"):
            for scale in (False, True):
                for normalize in ((None, None), (MEAN, STD), ([127.5], [58.395]), ([0.0, 0.1, 1e-3], [1e-3, 3.0, 0.7])):
                    for channels_last in (False, True):
                        if name == "uint8" and (normalize[0] or scale):
                            continue
                        first = "float32" if name != "uint8" else name
                        pipeline = [{"CenterCrop": {"size": [HEIGHT, WIDTH]}}, {"ToDtype": {"dtype": first, "scale": scale}}]
                        if v2:
                            expected = F.to_dtype(pixels, getattr(torch, first), scale=scale)
                        else:
                            expected = pixels.to(getattr(torch, first))
                            expected = expected.mul(1.0 / 255) if scale else expected  # as v2's to_dtype
                        if normalize[0]:
                            mean, std = (v if len(v) == 3 else v * 3 for v in normalize)
                            pipeline.append({"Normalize": {"mean": normalize[0], "std": normalize[1]}})
                            expected = F.normalize(expected, mean, std)
                        if name != first:
                            pipeline.append({"ToDtype": {"dtype": name}})
                            expected = expected.to(getattr(torch, name))
                        if channels_last:
                            expected = expected.permute(0, 2, 3, 1)
                        request(mode="finish", pipeline=pipeline, channels_last=channels_last, **{"in": source, "out": target})
                        expected = expected.contiguous()
                        if expected.dtype == torch.bfloat16:
                            expected = expected.view(torch.int16)
                        equal = expected.numpy().tobytes() == open(target, "rb").read()
                        checked += 1
                        if not equal:
                            failed += 1
                            print(f"FAIL: {pipeline} channels_last={channels_last}")
        # ToDtype alone, straight to a 16-bit type: current torch multiplies in float32 and rounds once. (Debian's 1.13 rounds
        # the factor to the 16-bit type first, so its own kernel is no reference here.)
        for name in ("float16", "bfloat16"):
            request(mode="finish", pipeline=[{"CenterCrop": {"size": [HEIGHT, WIDTH]}}, {"ToDtype": {"dtype": name, "scale": True}}],
                    **{"in": source, "out": target})
            expected = pixels.to(torch.float32).mul(1.0 / 255).to(getattr(torch, name))
            if v2:
                expected = F.to_dtype(pixels, getattr(torch, name), scale=True)
            expected = expected.view(torch.int16)
            checked += 1
            if expected.numpy().tobytes() != open(target, "rb").read():
                failed += 1
                print(f"FAIL: ToDtype({name}, scale) alone")
    print(f"{checked} combinations, {failed} differ")
    return 1 if failed or checked < 50 else 0


if __name__ == "__main__":
    sys.exit(main())
