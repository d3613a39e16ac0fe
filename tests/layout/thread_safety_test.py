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


def locks(path):
    """Does the source, or its own header, mention a lock?"""
    text = ""
    for file in (path, path[: -len(".cpp")] + ".h"):
        if os.path.exists(file):
            with open(file, encoding="utf-8") as opened:
                text += opened.read()
    return re.search(r"\bMutex\b", text) is not None


def compiled_by(path):
    """The sources that a compilation is of: itself, or those that are compiled at once (cmake/unity.cmake)."""
    if os.sep + "Unity" + os.sep not in path:
        return [path]
    with open(path, encoding="utf-8") as file:
        return re.findall(r'^#include "(.+\.cpp)"', file.read(), re.MULTILINE)


def sources():
    """(the library's and program's sources that mention a lock, compiler arguments that suit all of them)."""
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as file:
        commands = json.load(file)
    paths, arguments = set(), {}
    for command in commands:
        path = os.path.realpath(os.path.join(command["directory"], command["file"]))
        chosen = [
            part
            for part in map(os.path.realpath, compiled_by(path))
            if os.path.relpath(part, SOURCE).split(os.sep)[0] in ("runtime", "sampler", "transport", "launch") and locks(part)
        ]
        if not set(chosen) - paths:  # tests compile some of them once more
            continue
        paths.update(chosen)
        words = shlex.split(command["command"])
        for word, following in zip(words, words[1:] + [""]):
            if word == "-isystem":
                arguments[word, following] = True
            elif re.match(r"-(I|D|std=)", word):
                arguments[word,] = True
    return sorted(paths), [word for one in arguments for word in one]


def precompiled(folder):
    """The headers that most sources read, precompiled for clang: half of the analysis' time is reading them."""
    headers = os.path.join(folder, "headers.h")
    with open(headers, "w", encoding="utf-8") as file:
        file.write("".join(f"#include <{name}>\n" for name in HEADERS))
    result = headers + ".pch"
    command = ["clang++", "-std=c++20", "-Wthread-safety", "-x", "c++-header", headers, "-o", result]
    subprocess.run(command, capture_output=True, text=True, check=True)
    return ["-include-pch", result]


def analyse(paths, arguments):
    """[(sources, exit code, what clang says)]. They are compiled at once, because reading headers takes most of the time, and in
    halves where they cannot be: two of them have a name for themselves that is the same."""
    text = "".join(f'#include "{path}"\n' for path in paths)
    command = ["clang++", *FLAGS, *arguments, "-x", "c++", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0 and len(paths) > 1 and "-Werror,-Wthread-safety" not in done.stderr:
        middle = len(paths) // 2
        return analyse(paths[:middle], arguments) + analyse(paths[middle:], arguments)
    return [(paths, done.returncode, done.stderr)]


def main():
    if shutil.which("clang++") is None:
        print("SKIP: clang++ is not installed")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        headers = precompiled(folder)
        planted = os.path.join(folder, "planted.cpp")
        with open(planted, "w", encoding="utf-8") as file:
            file.write(PLANTED)
        [(_, code, text)] = analyse([planted], ["-std=c++20", "-I" + SOURCE, *headers])
        if code == 0 or "requires holding mutex" not in text:
            print(f"FAIL: the analysis did not notice the planted fault\n{text[-3000:]}")
            return 1
        paths, arguments = sources()
        third = -(-len(paths) // 3)
        groups = [paths[first:first + third] for first in range(0, len(paths), third)]
        failed = compilations = 0
        with ThreadPoolExecutor(2) as pool:
            for found in pool.map(lambda group: analyse(group, [*arguments, *headers]), groups):
                for part, code, text in found:
                    compilations += 1
                    if code != 0:
                        failed += 1
                        print(f"FAIL: {', '.join(os.path.relpath(path, SOURCE) for path in part)}\n{text[-3000:]}")
    print(f"{len(paths)} sources that lock, in {compilations} compilations, {failed} with complaints")
    return 1 if failed or len(paths) < 5 else 0


if __name__ == "__main__":
    sys.exit(main())
