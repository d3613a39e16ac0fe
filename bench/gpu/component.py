"""Compiles the CUDA component for the GPU that is here, and puts it where the programs of the bundle look for it.

Prints one JSON line: seconds, and of each kernel its registers, the bytes of a thread's own memory, and what is spilt. Where
this fails the component that came along is put there instead, and the step fails.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time

BUILD, SOURCE = os.environ["PENSTOCK_BUILD"], os.environ["PENSTOCK_SOURCE"]
ROOT = os.path.dirname(BUILD)
COMPONENT = os.path.join(BUILD, "libpenstock_cuda.so")


def architecture():
    try:
        found = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True).stdout.split()
    except OSError:
        found = []
    return "sm_" + found[0].replace(".", "") if found else "sm_90"


def kernels_of(text):
    found = {}
    for entry in re.finditer(r"Compiling entry function '(\S+)'.*?(?=Compiling entry|\Z)", text, re.S):
        stage = re.search(r"StageE(\d+)", entry[1])
        numbers = {"registers": r"Used (\d+) registers", "own_bytes": r"(\d+) bytes stack frame", "spilt_bytes": r"(\d+) bytes spill stores"}
        found[f"stage {stage[1]}" if stage else entry[1][:40]] = {
            name: int(match[1]) if (match := re.search(pattern, entry[0])) else None for name, pattern in numbers.items()}
    return found


def main():
    with open(os.path.join(BUILD, "nvcc_flags")) as file:
        flags = file.read().split(";")
    target = architecture()
    built = os.path.join(BUILD, "compiled_there")
    os.makedirs(built, exist_ok=True)
    library = os.path.join(built, "libpenstock_cuda.so")
    object_file = os.path.join(built, "cuda_gpu.o")
    kernels = next(os.path.join(folder, name) for folder, _, names in os.walk(os.path.join(SOURCE, "runtime")) for name in names
                   if name == "cuda_gpu.cu")
    begun = time.monotonic()
    done = subprocess.run(["nvcc", *filter(None, flags), f"-arch={target}", "-Xptxas=-v", "-Xcompiler=-fPIC,-ffp-contract=off", f"-I{SOURCE}",
                           f"-I{ROOT}/include", "-c", kernels, "-o", object_file], capture_output=True, text=True)
    sys.stderr.write(done.stdout + done.stderr)
    linked = done.returncode == 0 and subprocess.run(
        ["nvcc", f"-arch={target}", "-shared", "-cudart=static", object_file, os.path.join(BUILD, "penstock_cuda_rest.a"), "-o", library,
         "-Xlinker=-rpath,$ORIGIN/..,-rpath,$ORIGIN/../../lib", "-lpthread", "-ldl", "-lrt"], stdout=sys.stderr).returncode == 0
    print(json.dumps({"name": "component", "ok": linked, "architecture": target, "compile_s": round(time.monotonic() - begun, 1),
                      "kernels": kernels_of(done.stderr)}))
    shutil.copy(library if linked else os.path.join(BUILD, "compiled_here", "libpenstock_cuda.so"), COMPONENT)
    # It loads, and says whether there is a driver.
    loads = subprocess.run([os.path.join(BUILD, "penstock"), "doctor"], capture_output=True, text=True)
    sys.stderr.write(loads.stdout + loads.stderr)
    return 0 if linked else 1


sys.exit(main())
