"""Who may include whom, as the table in runtime/README.md says it, and what library code keeps away from. A permission that
nobody uses fails, too: it would hide the day when somebody does.

The table is read from the document, so the two cannot drift apart. Offenders are printed as file:line."""

import os
import re
import sys

SOURCE = os.environ["PENSTOCK_SOURCE"]
LIBRARY = ("runtime", "sampler", "transport")
GPUS = r"cuda[\w/]*\.h|cuda_runtime.*|nvjpeg.*|nccl.*|torch/.*|ATen/.*|c10/.*|Python\.h|pybind11/.*|nanobind/.*"


def sources(top):
    for folder, below, names in os.walk(os.path.join(SOURCE, top)):
        below[:] = sorted(name for name in below if not name.startswith("."))  # bench/.venv holds others' code
        for name in sorted(names):
            if name.endswith((".h", ".cpp", ".cu")):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as file:
                    yield os.path.relpath(path, SOURCE), file.read()


def allowed():
    """{folder: folders it may include} from the table whose rows read | `folder` | `a`, `b` | why |."""
    rules = {}
    with open(os.path.join(SOURCE, "runtime", "README.md"), encoding="utf-8") as file:
        table = file.read().partition("## Who may include whom")[2].partition("\n## ")[0]
    for row in table.splitlines():
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        if len(cells) == 3 and cells[0].startswith("`"):
            rules[cells[0].strip("`")] = re.findall(r"`([^`]+)`", cells[1])
    assert len(rules) >= 15, f"the table of runtime/README.md was not found: {rules}"
    return rules


def check_order(rules):
    """Rows stand from the ground up: each folder includes only what stands above its row in the table, its own subfolders and
    its folder excepted, whose headers it names one by one. So there is no circle."""
    place = {folder: number for number, folder in enumerate(rules)}
    for folder, wanted in rules.items():
        for one in wanted:
            other = one if one in place else os.path.dirname(one)
            if other not in place:
                yield f"the table's row of {folder} names {one}, whose folder has no row"
            elif place[other] > place[folder] and not other.startswith(folder + "/"):
                yield f"the table's row of {folder} names {one}, which stands above it"


def without_comments(text):
    """Comments and string contents blanked, lines kept; included names stay."""
    def blank(found):
        piece = found[0]
        return re.sub(r"[^\n]", " ", piece) if piece[0] == "/" else '"' + re.sub(r"[^\n]", " ", piece[1:-1]) + '"'
    lines = text.split("\n")
    includes = {i: line for i, line in enumerate(lines) if line.startswith("#include")}
    raw = re.sub(r'R"\((.*?)\)"', lambda m: re.sub(r"[^\n]", " ", m[0]), "\n".join(lines), flags=re.S)
    stripped = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', blank, raw, flags=re.S).split("\n")
    return [includes.get(i, line) for i, line in enumerate(stripped)]


def included(lines):
    """(line number, header) of what is included of the repository."""
    for number, line in enumerate(lines, 1):
        if found := re.match(r'#include "([^"]+)"', line):
            yield number, found[1]


def check_includes(path, lines, rules):
    own = os.path.dirname(path)
    if own not in rules:
        yield 1, f"folder {own} is not in the table of runtime/README.md"
        return
    for number, header in included(lines):
        if not os.path.exists(os.path.join(SOURCE, header)):
            yield number, f'"{header}" is not rooted at the repository'
            continue
        folder = os.path.dirname(header)
        # A rule names a folder or a single header.
        if folder != own and folder not in rules[own] and header not in rules[own]:
            yield number, f"{own} must not include {header}"


def check_used(rules, headers):
    """What a row permits somebody includes. `headers`: {folder: what its files include}."""
    for folder, wanted in rules.items():
        used = headers.get(folder, set())
        used = used | {os.path.dirname(header) for header in used}
        for one in wanted:
            if one not in used:
                yield f"the table's row of {folder} permits {one}, which nothing there includes"


# (folders, but not these, what is looked for, why not)
BANS = [
    (("",), ("transport/mpi", "bindings/mpi"), r"#include <mpi\.h>", "mpi.h is seen in transport/mpi and bindings/mpi only"),
    (("",), ("runtime/gpu/cuda", "runtime/gpu/nvjpeg", "runtime/gpu/nccl", "bindings", "bench/gpu", "examples/classifier_cpp"), rf"#include <(?:{GPUS})>", "no header of a GPU or of torch"),
    (("",), ("runtime/pixels/opencv",), r"#include <opencv2?/", "OpenCV's headers are seen in runtime/pixels/opencv only"),
    (("runtime/balancer",), (), r"#include <(?:thread|chrono|random|mutex|atomic|ctime|time\.h|sys/.*)>",
     "the balancer has no clock, threads or random numbers of its own"),
    (("sampler",), (), r"#include <(?:thread|chrono|mutex|atomic|ctime|future)>|\brandom_device\b",
     "the sampler is pure functions"),
    (("runtime/transforms", "runtime/pixels", "runtime/decode"), (), r"#include <random>|\bs?rand\s*\(", "draws come from transforms/draw.h"),
    (LIBRARY, (), r"(?<![\w.>])(?:f|v|vf|d)?printf\s*\(|\bf?put(?:s|c|char)\s*\(|\bperror\s*\(|\bstd::(?:cout|cerr|clog)\b"
                  r"|#include <iostream>", "library code does not print"),
    (LIBRARY, (), r"(?<![\w.>])(?:std::)?(?:abort|exit|quick_exit|terminate)\s*\(|#include <cassert>|(?<![\w_])assert\s*\(",
     "library code does not end the process"),
    (LIBRARY, ("runtime/process",), r"\b(?:sigaction|sigprocmask)\s*\(|\bstd::signal\s*\(|\b_exit\s*\(|\bfork\s*\(",
     "signals and processes are runtime/process's affair"),
    (LIBRARY, ("runtime/base",), r"\bgetenv\s*\(", "base/switches.h reads the environment"),
    (LIBRARY, ("runtime/base", "runtime/process"), r"\benviron\b", "base/switches.h reads the environment"),
]


def inside(path, folders):
    return any(folder == "" or path.startswith(folder + "/") for folder in folders)


def main():
    rules = allowed()
    offenders = []
    files = 0
    circles = list(check_order(rules))
    headers = {}
    for top in LIBRARY + ("launch", "bindings", "examples", "bench"):
        for path, text in sources(top):
            files += 1
            lines = without_comments(text)
            if top in LIBRARY or top in ("launch", "bindings"):
                offenders += [(path, number, why) for number, why in check_includes(path, lines, rules)]
                headers.setdefault(os.path.dirname(path), set()).update(header for _, header in included(lines))
            for folders, but_not, pattern, why in BANS:
                if inside(path, folders) and not inside(path, but_not):
                    offenders += [(path, number, f"{why}: {line.strip()}") for number, line in enumerate(lines, 1)
                                  if re.search(pattern, line)]
            if path.endswith(".h"):
                if not text.startswith(("//", "/*")):
                    offenders.append((path, 1, "a header opens with its purpose"))
                if "#pragma once" not in text and not path.startswith("bindings/c/"):  # C has no such promise
                    offenders.append((path, 1, "no #pragma once"))
    for path, number, why in offenders:
        print(f"{path}:{number}: {why}")
    unused = list(check_used(rules, headers))
    for why in circles + unused:
        print(f"runtime/README.md: {why}")
    assert files > 100, f"only {files} files were found"
    assert {os.path.dirname(path) for top in LIBRARY for path, _ in sources(top)} <= set(rules)
    # The rules can be broken: else this test would pass on anything.
    wrong = ["#include <mpi.h>", "#include <thread>", '#include "runtime/receiver/receiver.h"', 'printf("x");']
    lines = without_comments("\n".join(wrong + ['// printf("fine");', 'const char* s = "exit(1)";']))
    caught = sum(bool(re.search(pattern, line)) for line in lines for folders, but_not, pattern, _ in BANS
                 if inside("runtime/balancer/x.cpp", folders) and not inside("runtime/balancer/x.cpp", but_not))
    caught += len(list(check_includes("runtime/balancer/x.cpp", lines, rules)))
    assert caught == len(wrong), f"{caught} of {len(wrong)} planted offences were found"
    assert list(check_order({**rules, "runtime/base": ["runtime/client"]})), "a circle in the table was not found"
    wider = {**rules, "sampler": rules["sampler"] + ["runtime/client"]}
    assert list(check_used(wider, headers))[len(unused):], "a permission that nobody uses was not found"
    print(f"{files} files, {len(rules)} folders, {len(offenders)} offenders, {len(circles)} arrows upwards, "
          f"{len(unused)} permissions that nobody uses")
    return 1 if offenders or circles or unused else 0


if __name__ == "__main__":
    sys.exit(main())
