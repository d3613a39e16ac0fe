"""What a wheel holds: no MPI, no CUDA, no torch needed; import, load, and the program comes with it.

By default the build folder's parts are laid out as a wheel has them. With PENSTOCK_FULL=1 it is `pip install .` itself,
in a clean virtual environment: everything is compiled once more. And then launch/wheel.sh's wheel for other machines: what
auditwheel says of it, what its libraries need, and that it gives the same stream (tests/wheel_in_bare_root.sh: on such a machine).
"""

import glob
import json
import os
import re
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


# What PEP 600 lets a wheel count on, as far as penstock has use for it: no libstdc++, no MPI, no CUDA.
MACHINE = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libz.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"}


def test_wheel_for_other_machines():
    if not FULL:
        return
    # The same as by `pip install .`, by the same Python.
    job = os.path.join(work.name, "job.yaml")
    words = ["run", job, "--json", "--quiet", "splits.train.batch_size=8", "roles.trainers=1"]
    expected = json.loads(run([os.path.join(venv, "bin", "penstock"), *words], 60, env=clean_environment()).stdout)["splits"]

    done = subprocess.run([os.path.join(SOURCE, "launch", "wheel.sh"), "--out", work.name], env=clean_environment(),
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    wheel = done.stdout.strip()
    print(done.stderr.strip().splitlines()[-1])
    assert os.path.getsize(wheel) < 12_000_000, os.path.getsize(wheel)

    tools = glob.glob(os.path.join(SOURCE, "build", "wheel", "python3.*", "bin", "auditwheel"))
    said = json.loads(subprocess.run([tools[0], "show", "--json", wheel], check=True, capture_output=True, text=True).stdout)
    tag = re.fullmatch(r"manylinux_2_(\d+)_x86_64", said["overall_tag"])
    assert tag and int(tag[1]) <= 34 and said["overall_tag"] in wheel and said["external_libs"] == {}, said

    other = os.path.join(work.name, "other")
    subprocess.run(["/usr/bin/python3", "-m", "venv", other], check=True)
    subprocess.run([os.path.join(other, "bin", "pip"), "install", "--disable-pip-version-check", "-q", wheel], check=True,
                   env=clean_environment())
    site = glob.glob(os.path.join(other, "lib", "python3*", "site-packages"))[0]
    parts = [os.path.join(site, "penstock", "bin", "penstock"), *glob.glob(os.path.join(site, "penstock", "*.so*")),
             *glob.glob(os.path.join(site, "penstock.libs", "*"))]
    names = {os.path.basename(part) for part in parts}
    assert {"libpenstock.so.0", "libpenstock_mpi.so"} <= names and "libpenstock_opencv.so" not in names, names
    for part in parts:
        text = subprocess.run(["readelf", "-d", part], check=True, capture_output=True, text=True).stdout
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", text))
        assert needed and needed <= names | MACHINE, (part, needed - names - MACHINE)
        # Each has its own libstdc++, which another must not see (cmake/portable.cmake).
        shown = subprocess.run(["nm", "-D", "--defined-only", part], check=True, capture_output=True, text=True).stdout
        shared = re.findall(r"\b_Z(?:Z?NK?St|St|T[ISV]St)\w*", shown) if "bin/penstock" not in part else []
        assert not shared, (part, shared[:5])
    licences = os.listdir(glob.glob(os.path.join(site, "penstock-*.dist-info", "licenses"))[0])
    assert len(licences) >= len(glob.glob(os.path.join(site, "penstock.libs", "*"))), licences

    program = os.path.join(other, "bin", "penstock")
    with no_leftovers() as env:
        env = {name: value for name, value in env.items() if name not in ("PYTHONPATH", "PENSTOCK_BUILD")}
        for line in ([program, *words], [program, "launch", "--run", "-n", "3", *words[1:], "transport=mpi"]):
            done = run(line, 90, env=env)
            assert done.returncode == 0, done.stderr
            found = json.loads(done.stdout.strip().splitlines()[-1])["splits"]
            for name, split in expected.items():
                for what in ("order_hash", "pixel_hash"):
                    assert found[name][what] == split[what], (line, name, found, expected)


if __name__ == "__main__":
    try:
        run_tests(globals())
    finally:
        work.cleanup()
        sys.stdout.flush()
