"""Guarded members are touched under their lock alone: clang's thread-safety analysis is on, as an error, in every compilation.

The analysis itself is part of the build (cmake/flags.cmake). Here a planted fault, compiled as the library's sources are,
must be refused, and the same source without the fault must not.
"""
import json
import os
import shlex
import subprocess
import sys
import tempfile

BUILD = os.environ["PENSTOCK_BUILD"]
SOURCE = os.environ["PENSTOCK_SOURCE"]
COUNTER = """
#include "runtime/base/thread_annotations.h"
struct Counter {
  penstock::Mutex mutex;
  int value PENSTOCK_GUARDED_BY(mutex) = 0;
  void count() { %s++value; }
};
"""
FOLDERS = ("runtime", "sampler", "transport", "launch", "bindings")


def flags(command):
    """(the compiler, how it warns of locks, and what changes all warnings)"""
    words = shlex.split(command)
    compiler = next(word for word in words if os.path.basename(word).startswith(("clang", "c++", "g++", "gcc", "cc")))
    return compiler, [word for word in words if word in ("-w", "-Wno-error", "-Weverything", "-Wno-everything") or "thread-safety" in word]


def compiles(compiler, warnings, body, folder):
    path = os.path.join(folder, "planted.cpp")
    with open(path, "w", encoding="utf-8") as file:
        file.write(COUNTER % body)
    done = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-I" + SOURCE, *warnings, path], capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stderr


def main():
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as file:
        commands = [one for one in json.load(file) if one["file"].endswith((".cpp", ".cxx"))]
    ours = [one for one in commands if os.path.relpath(os.path.join(one["directory"], one["file"]).replace(BUILD, SOURCE), SOURCE).split(os.sep)[0] in FOLDERS]
    ways = {(compiler, tuple(warnings)) for compiler, warnings in (flags(one["command"]) for one in ours)}
    if any("clang" not in os.path.basename(compiler) for compiler, _ in ways):
        print("SKIP: this build is not made by clang")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        for compiler, warnings in ways:
            right, said = compiles(compiler, warnings, "penstock::MutexLock lock(mutex); ", folder)
            assert right, said
            wrong, said = compiles(compiler, warnings, "", folder)
            assert not wrong and "requires holding mutex" in said, (warnings, said)
    print(f"{len(ours)} compilations in {len(ways)} ways, each refuses the planted fault")
    return 0 if len(ours) >= 20 else 1


if __name__ == "__main__":
    sys.exit(main())
