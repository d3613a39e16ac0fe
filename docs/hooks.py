"""What mkdocs needs besides the pages, which are written for code hosts.

    python3 docs/hooks.py build/docs_pages       # stages the repository's pages and all that they link to

Pages link to each other, to sources and to folders by relative paths, across the repository. `stage` copies them to one folder with the
same paths, so the links hold; folders become pages that list what is in them. `on_page_markdown` adds the blank lines and the indentation
that Python-Markdown wants around lists, and code hosts do not.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LINK = re.compile(r"(?<!`)\[(?:[^\[\]]|`[^`]*`)*\]\(([^()\s]+)\)")
_ITEM = re.compile(r"( *)(?:[-*]|\d+\.) ")


def lines_outside_code(text):
    """(number from 1, line) of the lines that are not in a fenced block."""
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def links_of(text):
    """(line's number, target) of each link to a file or an anchor. A link may begin on one line and end on the next."""
    plain = [""] * (text.count("\n") + 1)
    for number, line in lines_outside_code(text):
        plain[number - 1] = re.sub(r"`[^`]*`", lambda match: "`" + "x" * (len(match.group(0)) - 2) + "`", line)
    joined = "\n".join(plain)
    for match in _LINK.finditer(joined):
        target = match.group(1)
        if not re.match(r"[a-z]+:", target):
            yield joined.count("\n", 0, match.end()) + 1, target


def pages():
    """The repository's pages, relative to it."""
    found = []
    for folder, folders, names in os.walk(SOURCE):
        folders[:] = [name for name in folders if not name.startswith((".", "build")) and not os.path.islink(os.path.join(folder, name))
                      and name not in ("__pycache__", "node_modules", "shared")]
        found += [os.path.relpath(os.path.join(folder, name), SOURCE) for name in names if name.endswith(".md")]
    return sorted(found)


def stage(folder):
    shutil.rmtree(folder, ignore_errors=True)
    wanted, listings = set(pages()), set()
    for page in sorted(wanted):
        with open(os.path.join(SOURCE, page), encoding="utf-8") as file:
            for _, target in links_of(file.read()):
                if target.startswith("#"):
                    continue
                path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target.partition("#")[0]))
                if os.path.isdir(os.path.join(SOURCE, path)):
                    listings.add(path)
                elif target.partition("#")[0] and os.path.exists(os.path.join(SOURCE, path)):
                    wanted.add(path)

    def copy(path):
        to = os.path.join(folder, path)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copyfile(os.path.join(SOURCE, path), to)

    for path in wanted:
        copy(path)
    for path in listings - {posixpath.dirname(page) for page in wanted if page.endswith("README.md")}:
        names = subprocess.run(["git", "-C", SOURCE, "ls-files", path], capture_output=True, text=True, check=True).stdout.split()
        os.makedirs(os.path.join(folder, path), exist_ok=True)
        with open(os.path.join(folder, path, "README.md"), "w", encoding="utf-8") as file:
            file.write(f"# {path}\n\n")
            file.writelines(f"- [{posixpath.relpath(name, path)}]({posixpath.relpath(name, path)})\n" for name in names)
        for name in names:
            copy(name)


def on_page_markdown(markdown, page, config, files):
    """Lists as Python-Markdown wants them; links to folders lead to the folder's page."""
    out, fenced, before = [], False, ""
    for line in markdown.split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            item, was = _ITEM.match(line), _ITEM.match(before)
            if item and before.strip() and not was and not before.startswith(" "):
                out.append("")
            if line.startswith("|") and before.strip() and not before.startswith("|"):
                out.append("")
            if item and item.group(1) and len(item.group(1)) < 4:
                line = "    " + line.lstrip()
        out.append(line)
        before = line
    base = posixpath.dirname(page.file.src_uri)

    def to_page(match):
        target = match.group(1)
        path = posixpath.normpath(posixpath.join(base, target))
        if os.path.isdir(os.path.join(config["docs_dir"], path)):
            return match.group(0).replace(f"({target})", f"({posixpath.join(target, 'README.md')})")
        return match.group(0)

    return _LINK.sub(to_page, "\n".join(out))


if __name__ == "__main__":
    stage(os.path.join(SOURCE, sys.argv[1]))
