"""What a wheel holds: no MPI, no CUDA, no torch needed; import, load, and the program comes with it.

By default the build folder's parts are laid out as a wheel has them. With PENSTOCK_FULL=1 it is `pip install .` itself,
in a clean virtual environment: everything is compiled once more.
"""

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

from jobs import BUILD, FULL, demo_photos, run_tests
from leftovers import no_leftovers, run

SOURCE = os.environ["PENSTOCK_SOURCE"]

work = tempfile.TemporaryDirectory(prefix="wheel_test-")
venv = os.path.join(work.name, "venv")
python = os.path.join(venv, "bin", "python")


def package():
    found = glob.glob(os.path.join(venv, "lib", "python3*", "site-packages", "penstock"))
    assert len(found) == 1, found
    return found[0]


EXAMPLE = """
import sys
import penstock
from penstock import transforms as T

train = penstock.DataLoader(
    penstock.ImageFolder(sys.argv[1]), batch_size=16, shuffle=True, output="numpy",
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
    if FULL:
        subprocess.run(["/usr/bin/python3", "-m", "venv", venv], check=True)
    else:
        # Debian's NumPy, so that nothing is fetched; the example asks for NumPy, because Debian's torch is there as well.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", venv], check=True)
        site = glob.glob(os.path.join(venv, "lib", "python3*", "site-packages"))[0]
        subprocess.run(["cmake", "--install", BUILD, "--component", "python", "--prefix", site], check=True,
                       stdout=subprocess.DEVNULL)
        shutil.copytree(os.path.join(SOURCE, "bindings", "python", "penstock"), os.path.join(site, "penstock"),
                        dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        with open(os.path.join(venv, "bin", "penstock"), "w") as file:
            file.write(f"#!{python}\nfrom penstock._program import main\nmain()\n")
        os.chmod(os.path.join(venv, "bin", "penstock"), 0o755)
        return
    # The compiler by the name that the other builds use, so that a compiler cache knows its results.
    done = subprocess.run([python, "-m", "pip", "install", "--disable-pip-version-check", "-q", SOURCE],
                          env=dict(clean_environment(), CC="cc", CXX="c++"), capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def test_what_it_links():
    parts = [path for path in glob.glob(os.path.join(package(), "*.so*")) + glob.glob(os.path.join(package(), "bin", "*"))
             if "penstock_mpi" not in path]
    assert len(parts) >= 3, parts  # library, module, program; a wheel has no links, so the library may stand twice
    needed = subprocess.run(["ldd", *parts], capture_output=True, text=True, env=clean_environment()).stdout
    assert "not found" not in needed and "libmpi" not in needed and "libcuda" not in needed, needed
    assert needed.count(os.path.join(package(), "libpenstock.so.0")) + needed.count("bin/../libpenstock.so.0") >= 2, needed


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
    assert {"py.typed", "_penstock.pyi"} <= set(os.listdir(package())), os.listdir(package())


if __name__ == "__main__":
    try:
        run_tests(globals())
    finally:
        work.cleanup()
        sys.stdout.flush()
