"""Installs into a folder of its own, builds a separate project against it with the example of docs/guides/cpp.md, and runs both
that program and the installed `penstock`, the latter under mpirun."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

from jobs import FULL, mpirun_words
from leftovers import no_leftovers, run

BUILD = os.environ["PENSTOCK_BUILD"]
SOURCE = os.environ["PENSTOCK_SOURCE"]
# Refuses a version that is not there, then does what docs/guides/cpp.md says.
PROJECT = """cmake_minimum_required(VERSION 3.22)
project(newcomer LANGUAGES CXX)
find_package(penstock 99 QUIET)
if(penstock_FOUND)
  message(FATAL_ERROR "version 99 was asked for and found")
endif()
find_package(penstock {version} REQUIRED)
{guide}
"""


def cached(name):
    """The value of a variable in the build's CMake cache; '' where there is none."""
    with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as lines:
        for line in lines:
            if line.startswith(name + ":"):
                return line.partition("=")[2].strip()
    return ""


def guide_block(page, language):
    with open(os.path.join(SOURCE, "docs", "guides", page), encoding="utf-8") as file:
        found = re.findall(rf"```{language}\n(.*?)```", file.read(), re.S)
    assert len(found) == 1, f"docs/guides/{page} should hold one block of {language}, not {len(found)}"
    return found[0]


def must(command, env, timeout=150, **kwargs):
    result = run(command, timeout, env, **kwargs)
    assert result.returncode == 0, f"{command} -> {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


def build(project, flags, env):
    must(["cmake", "-S", project, "-B", project + "/build", "-G", "Ninja", *flags], env)
    must(["cmake", "--build", project + "/build"], env)


def built(folder, source, component, languages, flags, env):
    """The program that this source of examples/ makes in a project of its own, with one component of the package."""
    os.makedirs(folder)
    shutil.copy(os.path.join(SOURCE, "examples", source), folder)
    name = os.path.splitext(source)[0]
    with open(os.path.join(folder, "CMakeLists.txt"), "w", encoding="utf-8") as file:
        file.write(f"cmake_minimum_required(VERSION 3.22)\nproject({name} LANGUAGES {languages})\n"
                   f"find_package(penstock REQUIRED COMPONENTS {component})\n"
                   f"add_executable({name} {source})\ntarget_link_libraries({name} PRIVATE penstock::{component})\n")
    build(folder, flags, env)
    return os.path.join(folder, "build", name)


def main():
    sanitizers = cached("PENSTOCK_SANITIZE")
    with no_leftovers() as env, tempfile.TemporaryDirectory(prefix="install_test-") as top:
        if sanitizers:
            env["ASAN_OPTIONS"] = "detect_leaks=0"  # Open MPI keeps memory to the end
        # Nothing of the build folder may help: the libraries are found by the paths that were installed.
        env.pop("LD_LIBRARY_PATH", None)
        prefix = os.path.join(top, "prefix")
        must(["cmake", "--install", BUILD, "--prefix", prefix], env)
        # Moved as a whole, it still works.
        moved = os.path.join(top, "elsewhere")
        shutil.move(prefix, moved)
        penstock = os.path.join(moved, "bin", "penstock")

        headers = sorted(os.path.relpath(os.path.join(folder, name), os.path.join(moved, "include"))
                         for folder, _, names in os.walk(os.path.join(moved, "include")) for name in names)
        assert headers == ["penstock/" + header for header in (
            "bindings/c/penstock.h", "bindings/mpi/join.h", "bindings/torch/data_loader.h", "bindings/torch/dataset.h", "runtime/base/arithmetic.h", "runtime/base/error.h", "runtime/base/fields.h",
            "runtime/base/memory.h", "runtime/client/data_loader.h", "runtime/embedded/receiver_host.h", "runtime/pixels/finish.h",
            "runtime/process/placement.h", "runtime/ranks/joined_rank.h", "runtime/serving/preprocessor.h")], headers
        shared = os.path.join(moved, "share")
        pages = os.listdir(os.path.join(shared, "man", "man1"))
        assert sorted(pages) == sorted(os.listdir(os.path.join(SOURCE, "docs", "man"))) and "penstock-run.1" in pages, pages
        assert os.path.exists(os.path.join(shared, "bash-completion", "completions", "penstock"))
        # Each needs nothing but the others that are installed, and MPI's.
        with_mpi = cached("PENSTOCK_MPI") != "OFF"
        flags_of_mpi = subprocess.run(["mpicc", "--showme:compile"], capture_output=True, text=True).stdout.split() if with_mpi else []
        # With --full each by itself; without, all in one file, because most of the time goes into what they include.
        alone = [header for header in headers if not ("/torch/" in header or ("/mpi/" in header and not with_mpi))]  # torch: torch_test.py
        together = os.path.join(top, "together.h")
        with open(together, "w", encoding="utf-8") as file:
            file.writelines(f'#include "{os.path.join(moved, "include", header)}"\n' for header in alone)
        for header in alone if FULL else [together]:
            must([cached("CMAKE_CXX_COMPILER"), "-std=c++20", *flags_of_mpi, "-fsyntax-only", "-x", "c++", "-I",
                  os.path.join(moved, "include", "penstock"), os.path.join(moved, "include", header)], env)

        # A component that there is not is refused by name, before anything is compiled.
        wrong = os.path.join(top, "wrong")
        os.makedirs(wrong)
        with open(os.path.join(wrong, "CMakeLists.txt"), "w", encoding="utf-8") as file:
            file.write("cmake_minimum_required(VERSION 3.22)\nproject(wrong LANGUAGES CXX)\n"
                       "find_package(penstock REQUIRED COMPONENTS torhc)\n")
        refused = run(["cmake", "-S", wrong, "-B", wrong + "/build", f"-DCMAKE_PREFIX_PATH={moved}"], 60, env)
        assert refused.returncode != 0 and "it has no component 'torhc'; there are: c, torch" in refused.stderr, refused

        # Python workers run the script that was installed with the program.
        own = dict(env, PENSTOCK_PYTHON=sys.executable)
        must([penstock, "check", os.path.join(SOURCE, "configs", "python_dataset.yaml")], own)

        version = re.fullmatch(r"penstock (\d+\.\d+)\.\d+\n", must([penstock, "--version"], env).stdout)
        assert version, "penstock --version"

        # A newcomer's project.
        project = os.path.join(top, "project")
        os.makedirs(project)
        with open(os.path.join(project, "CMakeLists.txt"), "w", encoding="utf-8") as file:
            file.write(PROJECT.format(version=version[1], guide=guide_block("cpp.md", "cmake")))
        with open(os.path.join(project, "train.cpp"), "w", encoding="utf-8") as file:
            file.write(guide_block("cpp.md", "cpp"))
        flags = [f"-DCMAKE_CXX_COMPILER={cached('CMAKE_CXX_COMPILER')}", f"-DCMAKE_PREFIX_PATH={moved}"]
        if sanitizers:
            flags.append(f"-DCMAKE_CXX_FLAGS=-fsanitize={sanitizers}")
        build(project, flags, env)
        # The job file that docs/guides/job_file.md shows is one.
        shown = os.path.join(project, "guide.yaml")
        with open(shown, "w", encoding="utf-8") as file:
            file.write(guide_block("job_file.md", "yaml"))
        must([penstock, "config", "show", "--origin", shown], env)

        # Its program, embedded.
        data = os.path.join(top, "data")
        must([penstock, "demo-data", data, "--count", "24", "--val-count", "0", "--classes", "2"], env)
        job = must([penstock, "init", "--data", os.path.join(data, "train")], env).stdout
        with open(os.path.join(project, "job.yaml"), "w", encoding="utf-8") as file:
            file.write(job)
        printed = must([project + "/build/train"], dict(env, PENSTOCK_CFG__SPLITS__TRAIN__BATCH_SIZE="8"), cwd=project).stdout
        lines = printed.splitlines()
        assert len(lines) == 6, f"2 epochs of 24 samples in batches of 8 are 6 lines, not:\n{printed}"
        assert lines[0].startswith("epoch 0: 8 images of 3 x 224 x 224, first label "), printed

        # The C interface alone, from C.
        of_c = [*flags, f"-DCMAKE_C_FLAGS=-fsanitize={sanitizers}"] if sanitizers else flags
        preprocess = built(os.path.join(top, "in_c"), "preprocess.c", "c", "C CXX", of_c, env)
        first = os.path.join(data, "train", sorted(os.listdir(os.path.join(data, "train")))[0])
        picture = os.path.join(first, sorted(os.listdir(first))[0])
        resized = "[{Resize: {size: [32, 32]}}, {ToDtype: {dtype: float32, scale: true}}]"
        made = must([preprocess, os.path.join(project, "job.yaml"), "train", picture],
                    dict(env, PENSTOCK_CFG__SPLITS__TRAIN__PIPELINE=resized))
        assert "[3, 32, 32], mean 0." in made.stdout, made.stdout

        # The installed program, one trainer and one loader.
        if not with_mpi:
            print("built without MPI: the rank under mpirun is left out")
            return 0
        if FULL:  # join_test has such a program always, and the header of this component was compiled above
            # A program that is an MPI rank itself.
            mpi_sgd = built(os.path.join(top, "in_mpi"), "mpi_sgd.cpp", "mpi", "CXX", flags, env)
            joined = must([*mpirun_words(2), mpi_sgd, os.path.join(project, "job.yaml"), "roles.trainers=1",
                           "splits.train.batch_size=8"], env)
            assert joined.stdout.count("loss") == 3, joined.stdout
            launched = must([penstock, "launch", "--run", "--json", "--quiet", "-n", "2", os.path.join(project, "job.yaml"),
                             "roles.trainers=1", "splits.train.batch_size=8"], env)
            assert '"images":24' in launched.stdout.replace(" ", ""), launched.stdout
        # And the newcomer's program as a trainer's.
        trained = must([penstock, "launch", "--run", "--quiet", "-n", "2", "job.yaml", "roles.trainers=1",
                        "splits.train.batch_size=8", "--", project + "/build/train"],
                       dict(env, PENSTOCK_CFG__SPLITS__TRAIN__BATCH_SIZE="8"), cwd=project).stdout
        assert trained.splitlines()[:6] == lines, f"under mpirun:\n{trained}\nembedded:\n{printed}"
    print(f"{len(headers)} headers, a project of its own, 6 batches embedded and the same 6 under mpirun:\n{printed}")
    return 0


if __name__ == "__main__":
    if subprocess.run(["sh", "-c", "command -v cmake ninja"], stdout=subprocess.DEVNULL, check=False).returncode != 0:
        print("SKIP: cmake or ninja is not in PATH")
        sys.exit(77)
    sys.exit(main())
