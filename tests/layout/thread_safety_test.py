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
    """The library's and program's sources that mention a lock: (files, compiler arguments), a folder's files at once."""
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as file:
        commands = json.load(file)
    chosen = {}
    seen = set()  # tests compile some of them once more
    for command in commands:
        path = os.path.realpath(os.path.join(command["directory"], command["file"]))
        paths = [
            part
            for part in map(os.path.realpath, compiled_by(path))
            if os.path.relpath(part, SOURCE).split(os.sep)[0] in ("runtime", "sampler", "transport", "launch") and locks(part)
        ]
        words = shlex.split(command["command"])
        kept = []
        for word, following in zip(words, words[1:] + [""]):
            if word == "-isystem":
                kept += [word, following]
            elif re.match(r"-(I|D|std=)", word):
                kept.append(word)
        for part in [path for path in paths if path not in seen]:
            seen.add(part)
            chosen.setdefault((os.path.dirname(part), tuple(kept)), []).append(part)
    return [(paths, kept) for (_, kept), paths in chosen.items()]


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
    text = "".join(f'#include "{path}"\n' for path in paths)
    command = ["clang++", *FLAGS, *arguments, "-x", "c++", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return paths, done.returncode, done.stderr


def main():
    if shutil.which("clang++") is None:
        print("SKIP: clang++ is not installed")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        headers = precompiled(folder)
        planted = os.path.join(folder, "planted.cpp")
        with open(planted, "w", encoding="utf-8") as file:
            file.write(PLANTED)
        _, code, text = analyse([planted], ["-std=c++20", "-I" + SOURCE, *headers])
        if code == 0 or "requires holding mutex" not in text:
            print(f"FAIL: the analysis did not notice the planted fault\n{text[-3000:]}")
            return 1
        groups = sources()
        failed = 0
        with ThreadPoolExecutor(2) as pool:
            for paths, code, text in pool.map(lambda group: analyse(group[0], [*group[1], *headers]), groups):
                if code != 0:
                    failed += 1
                    print(f"FAIL: {', '.join(os.path.relpath(path, SOURCE) for path in paths)}\n{text[-3000:]}")
    files = {path for paths, _ in groups for path in paths}
    print(f"{len(files)} sources that lock, in {len(groups)} compilations, {failed} with complaints")
    return 1 if failed or len(files) < 5 else 0


if __name__ == "__main__":
    sys.exit(main())
