"""What nvcc makes of the component's source, to be read; needs no GPU.

    nvcc, flags = compiler()               # the test's arguments; skips it where there are none, or it is not a full run
    text = compile_to_ptx(nvcc, flags)     # as the build does
"""

import os
import subprocess
import sys
import tempfile


def compiler():
    if len(sys.argv) < 3:
        print("SKIP: built without the CUDA component")
        sys.exit(77)
    if os.environ.get("PENSTOCK_FULL") != "1":
        print("SKIP: half a minute of nvcc, for PENSTOCK_FULL=1")
        sys.exit(77)
    return sys.argv[1], sys.argv[2:]


def compile_to_ptx(nvcc, flags):
    source = os.environ["PENSTOCK_SOURCE"]
    with tempfile.NamedTemporaryFile(prefix="penstock-", suffix=".ptx") as ptx:
        subprocess.run([nvcc, *flags, f"-I{source}", "-arch=compute_90", "-ptx", f"{source}/runtime/gpu/cuda/cuda_gpu.cu", "-o",
                        ptx.name], check=True)
        return ptx.read().decode()
