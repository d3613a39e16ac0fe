"""No kernel keeps tables or blocks in its threads' own memory on a GPU, which lies where global memory does: as nvcc
compiles them, all but a few small values are in registers. Reads the PTX; needs nvcc, and no GPU."""

import re

from ptx import compile_to_ptx, compiler

MOST_BYTES = 16  # three predictions of the entropy stage; a pixel

text = compile_to_ptx(*compiler())
found = {}
for entry in re.finditer(r"\.entry\s+(\S+)\(", text):
    body = text[entry.start() : text.index("\n}\n", entry.start())]
    name = re.search(r"GpuKernelILNS\w*GpuStageE(\d+)", entry[1])[1]
    found[int(name)] = sum(int(size) for size in re.findall(r"\.local[^;]*?\[(\d+)\];", body))
assert sorted(found) == list(range(20)), sorted(found)
assert all(size <= MOST_BYTES for size in found.values()), found
# That it would be seen: those three predictions are.
assert found[0] > 0, found
print(found)
