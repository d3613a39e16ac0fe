"""Runs a program under one of CUDA's tools, or skips by name where the tool is not there or does not work on this machine.

    tool.py compute-sanitizer --error-exitcode=9 build/tests/gpu/cuda_gpu_test
"""

import json
import shutil
import subprocess
import sys

# What a tool says that is not allowed to look at this machine's GPU.
REFUSALS = ("Device not supported", "LibraryNotLoaded", "ERR_NVGPUCTRPERM", "Failed to initialize the profiler", "Unable to find injection")

tool = sys.argv[1]
if not shutil.which(tool):
    print(f"SKIP: no {tool} on this machine")
    sys.exit(77)
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
said = done.stdout + done.stderr
sys.stderr.write(said)
if done.returncode and any(refusal in said for refusal in REFUSALS):
    print(f"SKIP: {tool} does not work on this machine: {next(refusal for refusal in REFUSALS if refusal in said)}")
    sys.exit(77)
summary = [line.strip("= ").strip() for line in said.splitlines() if "ERROR SUMMARY" in line]
print(json.dumps({"name": tool, "ok": done.returncode == 0, "summary": summary}))
sys.exit(done.returncode)
