"""Clang's thread-safety analysis over every source that locks: guarded members are only touched under their lock.

Reads compile_commands.json of the build for the flags, compiles with clang++ -fsyntax-only, and turns the analysis'
warnings into errors. A planted fault shows that the analysis is on.
"""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

BUILD = os.environ["PENSTOCK_BUILD"]
SOURCE = os.environ["PENSTOCK_SOURCE"]
FLAGS = ["-fsyntax-only", "-Wthread-safety", "-Werror=thread-safety", "-Wno-unknown-warning-option"]
HEADERS = (
    *("algorithm", "array", "atomic", "chrono", "condition_variable", "deque", "filesystem", "functional", "map", "memory"),
    *("mutex", "optional", "set", "span", "string", "thread", "variant", "vector", "nlohmann/json.hpp"),
)
PLANTED = """
#include "runtime/base/thread_annotations.h"
struct Counter {
  penstock::Mutex mutex;
  int value PENSTOCK_GUARDED_BY(mutex) = 0;
  void wrong() { ++value; }
};
"""


def sources():
    """(file, compiler arguments) of the library and program sources that mention a lock."""
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as file:
        commands = json.load(file)
    chosen = {}
    for command in commands:
        path = os.path.realpath(os.path.join(command["directory"], command["file"]))
        inside = os.path.relpath(path, SOURCE)
        if inside.split(os.sep)[0] not in ("runtime", "sampler", "transport", "launch"):
            continue
        with open(path, encoding="utf-8") as file:
            text = file.read()
        own_header = path[: -len(".cpp")] + ".h"
        if os.path.exists(own_header):
            with open(own_header, encoding="utf-8") as file:
                text += file.read()
        if not re.search(r"\bMutex\b", text):
            continue
        words = shlex.split(command["command"])
        kept = []
        for word, following in zip(words, words[1:] + [""]):
            if word == "-isystem":
                kept += [word, following]
            elif re.match(r"-(I|D|std=)", word):
                kept.append(word)
        chosen[path] = kept
    return chosen


def precompiled(folder):
    """The headers that most sources read, precompiled for clang: half of the analysis' time is reading them."""
    headers = os.path.join(folder, "headers.h")
    with open(headers, "w", encoding="utf-8") as file:
        file.write("".join(f"#include <{name}>\n" for name in HEADERS))
    result = headers + ".pch"
    command = ["clang++", "-std=c++20", "-Wthread-safety", "-x", "c++-header", headers, "-o", result]
    subprocess.run(command, capture_output=True, text=True, check=True)
    return ["-include-pch", result]


def analyse(path, arguments):
    done = subprocess.run(["clang++", *FLAGS, *arguments, path], capture_output=True, text=True, check=False)
    return path, done.returncode, done.stderr


def main():
    if shutil.which("clang++") is None:
        print("SKIP: clang++ is not installed")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        headers = precompiled(folder)
        planted = os.path.join(folder, "planted.cpp")
        with open(planted, "w", encoding="utf-8") as file:
            file.write(PLANTED)
        _, code, text = analyse(planted, ["-std=c++20", "-I" + SOURCE, *headers])
        if code == 0 or "requires holding mutex" not in text:
            print(f"FAIL: the analysis did not notice the planted fault\n{text[-3000:]}")
            return 1
        files = sources()
        failed = 0
        with ThreadPoolExecutor(2) as pool:
            for path, code, text in pool.map(lambda item: analyse(item[0], item[1] + headers), files.items()):
                if code != 0:
                    failed += 1
                    print(f"FAIL: {os.path.relpath(path, SOURCE)}\n{text[-3000:]}")
    print(f"{len(files)} sources that lock, {failed} with complaints")
    return 1 if failed or len(files) < 5 else 0


if __name__ == "__main__":
    sys.exit(main())
