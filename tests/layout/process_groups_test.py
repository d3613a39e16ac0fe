"""Every program that makes a process group ends it: examples, tests, programs in tests' strings, code in documents.

A thread of torch's gloo that lives on while Python ends may drop a tensor then: it takes the GIL, is ended by
pthread_exit, and the whole process by "terminate called without an active exception" (torch 1.13 with Python 3.11: once
in some 200 pairs of processes; never with destroy_process_group() at the end)."""

import ast
import os
import re
import subprocess
import sys
import textwrap

SOURCE = os.environ["PENSTOCK_SOURCE"]
MAKES, ENDS = "init_process_group", "destroy_process_group"


def called(tree, name):
    return any(isinstance(node, ast.Call) and name in (getattr(node.func, "attr", None), getattr(node.func, "id", None))
               for node in ast.walk(tree))


def own_statements(body):
    """Without the functions and classes in it, whose statements run at another time."""
    return [one for one in body if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]


def complaints(text):
    """(how many process groups, [what is wrong]) of one program. A scope that makes one ends it in its last statement."""
    made, wrong = 0, []
    tree = ast.parse(text)
    scopes = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef))]
    for scope in scopes:
        statements = own_statements(scope.body)
        makers = [one for one in statements if called(one, MAKES)]
        made += len(makers)
        if makers and not called(statements[-1], ENDS):
            wrong.append((makers[0].lineno, f"makes a process group and does not end with {ENDS}()"))
    return made, wrong


def programs(path, text):
    """(line that it begins behind, text) of each program in a file."""
    if path.endswith(".md"):
        for block in re.finditer(r"^( *)```(?:python|py)\n(.*?)^ *```", text, flags=re.M | re.S):
            yield text.count("\n", 0, block.start(2)), textwrap.dedent(block[2])
        return
    yield 0, text
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value and MAKES + "(" in node.value:
            yield node.lineno - 1, textwrap.dedent(node.value)


def files():
    listed = subprocess.run(["git", "-C", SOURCE, "ls-files", "-co", "--exclude-standard", "*.py", "*.md"],
                            capture_output=True, text=True)
    if listed.returncode == 0:
        yield from listed.stdout.splitlines()
        return
    for folder, below, names in os.walk(SOURCE):  # unpacked, without git
        below[:] = sorted(name for name in below if name != "build" and not name.startswith("."))
        yield from (os.path.relpath(os.path.join(folder, name), SOURCE) for name in names if name.endswith((".py", ".md")))


def main():
    looked, made, wrong = 0, 0, []
    for path in sorted(files()):
        if os.path.basename(path) == os.path.basename(__file__) or not os.path.exists(os.path.join(SOURCE, path)):
            continue
        with open(os.path.join(SOURCE, path), encoding="utf-8") as file:
            text = file.read()
        looked += 1
        if MAKES not in text:
            continue
        for before, program in programs(path, text):
            groups, found = complaints(program)
            made += groups
            wrong += [f"{path}:{before + line}: {what}" for line, what in found]
    for line in wrong:
        print(line)
    assert looked > 100 and made >= 4, f"only {looked} files with {made} process groups were found"
    # The rule can be broken.
    good = "def main():\n    dist.init_process_group('gloo')\n    if many:\n        dist.destroy_process_group()\nmain()"
    assert complaints(good) == (1, [])
    for bad in (good.replace("destroy", "forget"), good.replace("\nmain()", "\n    train()\nmain()"),
                good + "\ndist.init_process_group('gloo')"):
        assert len(complaints(bad)[1]) == 1, bad
    block = "text\n  ```python\n  init_process_group()\n  ```\n"
    assert [complaints(program) for _, program in programs("x.md", block)][0][1], "a block in a document"
    print(f"{looked} files, {made} process groups, {len(wrong)} that are not ended")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
