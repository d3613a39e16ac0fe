"""`pip install .` in a clean virtual environment: no MPI, no CUDA, no torch; import, load, and the program comes with it."""

import json
import os
import subprocess
import sys
import tempfile

from jobs import demo_photos, run_tests
from leftovers import no_leftovers, run

SOURCE = os.environ["PENSTOCK_SOURCE"]

work = tempfile.TemporaryDirectory(prefix="wheel_test-")
venv = os.path.join(work.name, "venv")
python = os.path.join(venv, "bin", "python")

EXAMPLE = """
import sys
import penstock
from penstock import transforms as T

train = penstock.DataLoader(
    penstock.ImageFolder(sys.argv[1]), batch_size=16, shuffle=True,
    transform=T.Compose([T.RandomResizedCrop(64), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)]))
for images, labels in train:
    assert images.shape == (16, 3, 64, 64) and str(images.dtype) == "float32", (images.shape, images.dtype)
assert "torch" not in sys.modules
print(penstock.__file__, train.stats()["splits"]["train"]["pixel_hash"])
"""


def clean_environment():
    """Nothing of the build folder's package, nor of whoever runs the test."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PENSTOCK_BUILD")}


def test_install():
    subprocess.run(["/usr/bin/python3", "-m", "venv", venv], check=True)
    # The compiler by the name that the other builds use, so that a compiler cache knows its results.
    done = subprocess.run([python, "-m", "pip", "install", "--disable-pip-version-check", "-q", SOURCE],
                          env=dict(clean_environment(), CC="cc", CXX="c++"), capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    needed = subprocess.run(f"ldd {venv}/lib/python3*/site-packages/penstock/*.so* {venv}/lib/python3*/site-packages/penstock/bin/*",
                            shell=True, capture_output=True, text=True).stdout
    assert "not found" not in needed and "libmpi" not in needed and "cuda" not in needed, needed


def test_ten_lines_of_python():
    example = os.path.join(work.name, "example.py")
    with open(example, "w") as file:
        file.write(EXAMPLE)
    with no_leftovers():
        done = run([python, example, os.path.join(demo_photos(), "train")], 60, env=clean_environment(), cwd=work.name)
        assert done.returncode == 0, done.stderr
    where, _ = done.stdout.split()
    assert where.startswith(venv), where


def test_the_program_comes_with_it():
    program = os.path.join(venv, "bin", "penstock")
    done = run([program, "--version"], 30, env=clean_environment())
    assert done.returncode == 0 and done.stdout.startswith("penstock "), done.stderr
    job = os.path.join(work.name, "job.yaml")
    done = run([program, "init", "--data", os.path.join(demo_photos(), "train")], 30, env=clean_environment())
    with open(job, "w") as file:
        file.write(done.stdout)
    done = run([program, "run", job, "--json", "--quiet", "splits.train.batch_size=8"], 60, env=clean_environment())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["splits"]["train"]["images"] == 80


def test_type_checkers_find_types():
    package = subprocess.run(f"ls {venv}/lib/python3*/site-packages/penstock", shell=True, capture_output=True, text=True)
    assert {"py.typed", "_penstock.pyi"} <= set(package.stdout.split()), package.stdout


if __name__ == "__main__":
    try:
        run_tests(globals())
    finally:
        work.cleanup()
        sys.stdout.flush()
