"""The kernels' floats on a card are IEEE's: as nvcc compiles them, every operation rounds by itself, and none is fused or
approximate. Compiles the component's source as the build does, to PTX, and reads that; needs nvcc, and no card."""

import collections
import os
import re
import subprocess
import sys
import tempfile

if len(sys.argv) < 3:
    print("SKIP: built without the CUDA component")
    sys.exit(77)
if os.environ.get("PENSTOCK_FULL") != "1":
    print("SKIP: half a minute of nvcc, for PENSTOCK_FULL=1")
    sys.exit(77)
nvcc, *flags = sys.argv[1:]
source = os.environ["PENSTOCK_SOURCE"]


def operations(flags):
    """The float arithmetic of all kernels, counted by instruction."""
    with tempfile.NamedTemporaryFile(prefix="cuda_rounding_test-", suffix=".ptx") as ptx:
        subprocess.run([nvcc, *flags, f"-I{source}", "-arch=compute_90", "-ptx", f"{source}/runtime/cuda/cuda_card.cu", "-o",
                        ptx.name], check=True)
        text = ptx.read().decode()
    assert text.count(".entry") >= 14, text[:1000]
    words = r"\b(?:fma|mad|mul|add|sub|div|rcp|sqrt|rsqrt|sin|cos|ex2|lg2|tanh)(?:\.[a-z0-9]+)*\.f(?:16|32|64)\b"
    return collections.Counter(re.findall(words, text))


found = operations(flags)
allowed = {f"{what}.rn.f{bits}" for what in ("mul", "add", "sub", "div") for bits in (32, 64)}
assert set(found) <= allowed, found
assert found["mul.rn.f32"] > 5 and found["div.rn.f64"] > 5, found  # that there is something to see
# And that it would be seen: left to itself, nvcc fuses.
fused = operations([flag for flag in flags if not flag.startswith("-fmad")])
assert any(name.startswith("fma") for name in fused), fused
print(", ".join(f"{count} {name}" for name, count in sorted(found.items())))
