"""The documents: generated pages are what docs/generate.py writes, links lead somewhere, blocks marked `<!-- run -->` run.

Blocks of one page run in order, in a folder of their own that has `photos/train`, `photos/val` and a `job.yaml` for them. Blocks marked
`<!-- job -->` are job files.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

from jobs import BUILD, PENSTOCK, demo_photos, run_tests, write_job
from leftovers import run

try:
    import penstock  # noqa: F401
except ImportError as problem:
    print(f"SKIP: {problem}")
    sys.exit(77)

SOURCE = os.environ["PENSTOCK_SOURCE"]
DOCS = os.path.join(SOURCE, "docs")
sys.path.insert(0, DOCS)
sys.dont_write_bytecode = True

import generate  # noqa: E402
import hooks  # noqa: E402

MARKED = re.compile(r"<!-- (run|job) -->\n```(\w+)\n(.*?)```", re.DOTALL)


def read(path):
    with open(os.path.join(SOURCE, path), encoding="utf-8") as file:
        return file.read()


def anchors_of(text):
    """The anchors that a code host makes of a page's headings."""
    found, times = set(), {}
    for _, line in hooks.lines_outside_code(text):
        heading = re.match(r"#{1,6} +(.*?) *#*$", line)
        if heading:
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1))
            anchor = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            times[anchor] = times.get(anchor, -1) + 1
            found.add(f"{anchor}-{times[anchor]}" if times[anchor] else anchor)
    return found


def broken_links():
    pages = {path: read(path) for path in hooks.pages()}
    anchors = {path: anchors_of(text) for path, text in pages.items()}
    count, broken = 0, []
    for page, text in pages.items():
        for line, target in hooks.links_of(text):
            path, _, anchor = target.partition("#")
            to = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            count += 1
            if not os.path.exists(os.path.join(SOURCE, to)):
                broken.append(f"{page}:{line}: {target}: there is no {to}")
            elif anchor and anchor not in anchors.get(to, ()):
                broken.append(f"{page}:{line}: {target}: {to} has no such heading")
    return count, broken


def test_links_and_anchors():
    count, broken = broken_links()
    assert count > 200, count
    assert not broken, "\n".join(broken)


def test_that_broken_links_are_seen():
    text = "# One `thing`, two\n\n[a](b.md#c) `[no](no.md)`\n```\n[no](no.md)\n```\n[over two\nlines](d.md) [out](https://e)\n"
    assert [target for _, target in hooks.links_of(text)] == ["b.md#c", "d.md"]
    assert anchors_of(text + "# One thing two\n") == {"one-thing-two", "one-thing-two-1"}


def test_what_an_option_needs_and_excludes():
    option = generate.Option(["--raw Needs: --dump Excludes: --serve --idle", "passed on"])
    assert (option.title, option.text) == ("--raw", "passed on (with --dump; not with --serve, --idle)"), (option.title, option.text)
    assert generate.Option(["--dump DIR", "passed on"]).text == "passed on"


def test_generated_pages():
    made = generate.files(BUILD)
    there = {f"{folder}/{name}" for folder in generate.FOLDERS for name in os.listdir(os.path.join(DOCS, folder))}
    assert there == set(made), f"only on one side: {sorted(there ^ set(made))}"
    other = [path for path, text in made.items() if read(f"docs/{path}") != text]
    assert not other, f"write them anew with docs/generate.py: {', '.join(other)}"
    assert len(made) > 25, len(made)


def test_every_page_is_in_the_site():
    listed = set(re.findall(r": (\S+\.md)$", read("mkdocs.yml"), re.MULTILINE))
    own = {path for path in hooks.pages() if path.startswith("docs/")} | {"README.md", "CHANGELOG.md", "CONTRIBUTING.md"}
    assert own <= listed, f"mkdocs.yml does not have {sorted(own - listed)}"
    assert all(os.path.exists(os.path.join(SOURCE, path)) for path in listed), listed
    index = read("docs/index.md")
    missing = [path for path in own if path.startswith("docs/") and path != "docs/index.md" and f"({path[5:]})" not in index]
    assert not missing, f"docs/index.md does not lead to {missing}"


def test_no_page_of_the_site_stands_in_anothers_way():
    # mkdocs makes a folder's page of either, and refuses both.
    with tempfile.TemporaryDirectory(prefix="docs_test-") as folder:
        hooks.stage(folder)
        both = [path for path, _, names in os.walk(folder) if {"index.md", "README.md"} <= set(names)]
        assert not both and os.path.exists(os.path.join(folder, "docs", "index.md")), both


def test_lengths():
    assert read("README.md").count("\n") <= 150
    pages = [path for path in hooks.pages() if path.startswith("docs/") or path in ("README.md", "CHANGELOG.md", "bench/README.md")]
    long = [f"{path}:{number}" for path in pages
            for number, line in enumerate(read(path).split("\n"), 1) if len(line) > 140 and not line.startswith("|")]
    assert not long, f"longer than 140 characters: {', '.join(long)}"


def test_messages_of_the_troubleshooting_page():
    """Each message that is quoted there is one of the sources, but for what a run puts into it."""
    sources = []
    for top in ("runtime", "launch", "sampler", "transport", "bindings"):
        for folder, _, names in os.walk(os.path.join(SOURCE, top)):
            for name in names:
                if name.endswith((".cpp", ".h", ".py")):
                    with open(os.path.join(folder, name), encoding="utf-8") as file:
                        sources.append(file.read())
    text = re.sub(r'"\s*\n\s*"', "", "\n".join(sources))
    quoted = re.findall(r"^\| `([^`]+)` \|", read("docs/guides/troubleshooting.md"), re.MULTILINE)
    pieces = [(message, piece.strip(" :,")) for message in quoted for piece in re.split(r"…|\d+|job\.yaml", message)]
    missing = [f"{message}: '{piece}'" for message, piece in pieces if len(piece) >= 9 and piece not in text]
    assert len(quoted) > 20, quoted
    assert not missing, "no source says so: " + "; ".join(missing)


def test_man_pages():
    if shutil.which("man") is None:
        print("no man here: the pages are not formatted")
        return
    for name in sorted(os.listdir(os.path.join(DOCS, "man"))):
        done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", os.path.join(DOCS, "man", name)], check=False, capture_output=True,
                              text=True, env=dict(os.environ, LC_ALL="C.UTF-8"))  # a locale that is not installed is complained of
        assert done.returncode == 0 and not done.stderr, (name, done.stderr)
        assert "EXIT STATUS" in done.stdout, (name, done.stdout[:500])


def test_completion():
    wanted = [("penstock la", "launch"), ("penstock launch --sl", "--slurm"), ("penstock bench dec", "decode"),
              ("penstock bench decode --device g", "gpu"), ("penstock run --epochs 2 job.yaml --j", "--json")]
    script = f"""source {DOCS}/completion/penstock.bash
while read -r -a COMP_WORDS; do
  COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=(); _penstock 2>/dev/null; echo "${{COMPREPLY[*]}}"
done"""
    lines = "".join(line + "\n" for line, _ in wanted)
    done = subprocess.run(["bash", "-c", script], input=lines, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == [word for _, word in wanted], done.stdout


def run_block(page, language, code, folder):
    if language == "python":
        # In this process, which has imported torch already; each block has names of its own.
        exec(compile(code, page, "exec"), {"__name__": "__main__"})  # noqa: S102
    else:
        assert language == "sh", f"{page}: who runs a block of {language}?"
        done = run(["bash", "-euo", "pipefail", "-c", code], 60, cwd=folder, env=dict(os.environ, PATH=BUILD + ":" + os.environ["PATH"]))
        assert done.returncode == 0, f"{page}:\n{code}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"


def run_blocks(page, blocks, photos):
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="docs_test-") as folder:
        os.symlink(photos, os.path.join(folder, "photos"))
        write_job(folder, photos, trainers=1)
        os.chdir(folder)
        try:
            for kind, language, code in blocks:
                if kind == "run":
                    run_block(page, language, code, folder)
                    continue
                with open("shown.yaml", "w", encoding="utf-8") as file:
                    file.write(code)
                shown = run([PENSTOCK, "config", "show", "shown.yaml"], 30)
                assert shown.returncode == 0, f"{page}: {shown.stderr}"
        finally:
            os.chdir(before)


def test_marked_blocks():
    photos = demo_photos()
    blocks = {page: MARKED.findall(read(page)) for page in hooks.pages()}
    for page, found in blocks.items():
        if found:
            run_blocks(page, found, photos)
    assert sum(map(len, blocks.values())) >= 8, blocks


if __name__ == "__main__":
    run_tests(globals())
