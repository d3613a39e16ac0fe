"""The kernels' floats on a GPU are IEEE's: as nvcc compiles them, every operation rounds by itself, and none is fused or
approximate. Compiles the component's source as the build does, to PTX, and reads that; needs nvcc, and no GPU."""

import collections
import re

from ptx import compile_to_ptx, compiler

nvcc, flags = compiler()


def operations(flags):
    """The float arithmetic of all kernels, counted by instruction."""
    text = compile_to_ptx(nvcc, flags)
    assert text.count(".entry") >= 14, text[:1000]
    words = r"\b(?:fma|mad|mul|add|sub|div|rcp|sqrt|rsqrt|sin|cos|ex2|lg2|tanh)(?:\.[a-z0-9]+)*\.f(?:16|32|64)\b"
    return collections.Counter(re.findall(words, text))


found = operations(flags)
allowed = {f"{what}.rn.f{bits}" for what in ("mul", "add", "sub", "div") for bits in (32, 64)} | {"sqrt.rn.f64"}
assert set(found) <= allowed, found
assert found["mul.rn.f32"] > 5 and found["div.rn.f64"] > 5, found  # that there is something to see
# And that it would be seen: left to itself, nvcc fuses.
fused = operations([flag for flag in flags if not flag.startswith("-fmad")])
assert any(name.startswith("fma") for name in fused), fused
print(", ".join(f"{count} {name}" for name, count in sorted(found.items())))
