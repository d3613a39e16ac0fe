"""Runs a test in the virtual environment that make_venv.sh made, or skips it and says why.

    in_venv.py FOLDER SCRIPT [ARGUMENT…]
"""

import os
import sys

folder, *words = sys.argv[1:]
python = os.path.join(folder, "bin", "python")
if os.environ.get("PENSTOCK_FULL") != "1":
    print("SKIP: only with PENSTOCK_FULL=1")
    sys.exit(77)
if not os.path.exists(os.path.join(folder, "requirements.txt")):
    print(f"SKIP: no virtual environment in {folder}: its packages could not be installed")
    sys.exit(77)
# torch makes this folder in TMPDIR otherwise, where the tests look for what a job leaves behind.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(folder, "inductor"))
os.execv(python, [python, *words])
