#!/usr/bin/env python3
"""Writes the pages of docs/reference, the man pages and the bash completion, from the built program and package.

    PENSTOCK_BUILD=build/release build/venv/bin/python docs/generate.py

tests/docs/docs_test.py compares what is committed with what this writes. `files()` gives all of it as {path in docs/: text}.
What else lies in docs/reference, docs/man and docs/completion is deleted.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import textwrap

DOCS = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(DOCS)
FOLDERS = ("reference", "man", "completion")
WIDTH = 120

# (code, what it means, where to look). The codes 1 to 5 are those of ErrorKind in runtime/base/error.h.
EXIT_CODES = [
    ("0", "The command did what it was asked to do.", ""),
    ("1", "A failure at run time: I/O (a file that cannot be read), memory, or the training program.",
     "Read the message: it names rank, host and status."),
    ("2", "The command line is wrong.", "Read `penstock COMMAND --help`."),
    ("3", "The job file or an override is wrong.", "Read the lines that the message quotes."),
    ("4", "The data set is missing or empty, or a sample is unreadable with `on_error: fail`.",
     "Look at the file that the message names; `penstock check --decode` finds all of them."),
    ("5", "A rank, a receiver or mpirun was lost, or did not come.", "Look at the rank that the message names."),
    ("6", "`plan` only: no fleet of the cluster reaches the target.", "The message gives the bound, its cause and what to change."),
    ("129", "`launch --run` was ended by the end of its terminal.", ""),
    ("130", "`launch --run`, `pack`, `unpack`, or `run` in one process, was ended by Ctrl-C.", ""),
    ("143", "The same commands were ended by SIGTERM.", ""),
]


def wrapped(text, first="", rest=None):
    """A paragraph of Markdown in lines of WIDTH; a code span stays on one line."""
    spans = []

    def hide(match):
        spans.append(match.group(0))
        return f"\ue000{len(spans) - 1:03d}".ljust(len(match.group(0)), "\ue001")

    hidden = re.sub(r"`[^`\n]{1,60}`", hide, " ".join(text.split()))
    lines = textwrap.fill(hidden, WIDTH, initial_indent=first, subsequent_indent=first if rest is None else rest,
                          break_long_words=False, break_on_hyphens=False)
    return re.sub("\ue000(\\d{3})\ue001*", lambda match: spans[int(match.group(1))], lines)


def head_of(title, intro):
    return [f"<!-- docs/generate.py writes this page. -->\n# {title}\n", wrapped(intro) + "\n"]


# ---- the program's --help -------------------------------------------------------------------------------------------


class Command:
    """One command as its --help describes it."""

    def __init__(self, words, text):
        self.words = words                       # ("penstock", "bench", "decode")
        head, _, rest = text.partition("\nUsage: ")
        self.summary = head.removeprefix("penstock: ").strip()
        self.usage, _, rest = rest.partition("\n")
        self.positionals, self.options, self.subcommands, self.notes = [], [], [], []
        known = {"Positionals:": self.positionals, "Options:": self.options, "Subcommands:": self.subcommands}
        lines, entries = rest.rstrip("\n").split("\n"), None
        for at, line in enumerate(lines):
            if line in known:
                entries = known[line]
            elif entries is not None and line.startswith(" " * 30):
                entries[-1][1] = (entries[-1][1] + " " + line.strip()).strip()
            elif entries is not None and re.match(r"  \S", line):
                alone = at + 1 < len(lines) and lines[at + 1].startswith(" " * 30)
                entries.append([line.strip(), ""] if alone else [line[:30].strip(), line[30:].strip()])
            elif line:
                entries = None
                self.notes.append(line)
            elif entries is None:
                self.notes.append(line)
        self.notes = "\n".join(self.notes).strip("\n")
        self.children = []

    @property
    def name(self):
        return " ".join(self.words)


class Option:
    """One entry of "Options:" or "Positionals:"."""

    def __init__(self, entry):
        names, self.meaning = entry
        relations = r" (Excludes|Needs):((?: -\S+)+)"  # an option may have both
        said = [("not with " if kind == "Excludes" else "with ") + ", ".join(others.split())
                for kind, others in re.findall(relations, names)]
        self.meaning += f" ({'; '.join(said)})" if said else ""
        names = re.sub(relations, "", names)
        self.required = " REQUIRED" in names
        names = names.replace(" REQUIRED", "")
        self.several = names.endswith(" ...")
        flags, _, value = names.removesuffix(" ...").partition(" ")
        self.flags = flags.split(",")
        value, _, self.default = re.sub(r":INT in \[(\S+) - (\S+)\]", "", value).partition("=")
        kind, _, choices = value.partition(":{")
        self.choices = choices.rstrip("}").split(",") if choices else []
        self.value = "|".join(self.choices) if self.choices else kind

    @property
    def title(self):
        return ", ".join(self.flags) + (f" {self.value}" if self.value else "") + (" ..." if self.several else "")

    @property
    def text(self):
        said = [self.meaning] if self.meaning else []
        if self.default:
            said.append(f"default: {self.default}")
        if self.required and self.flags[0].startswith("-"):
            said.append("required")
        return "; ".join(said)


def help_of(program, words=("penstock",), general=""):
    """The command and, in `children`, all below it. Notes that repeat the program's own are left out."""
    text = subprocess.run([program, *words[1:], "--help"], capture_output=True, text=True, check=True).stdout
    command = Command(words, text)
    own = command.notes
    command.notes = "" if own == general else "\n".join(textwrap.fill(line, WIDTH) for line in own.split("\n"))
    command.children = [help_of(program, (*words, name), general or own) for name, _ in command.subcommands]
    return command


def every(command):
    yield command
    for child in command.children:
        yield from every(child)


def is_flag_of_all(entry):
    return entry[0].startswith("-h,--help")


def commands_page(root):
    lines = head_of("Commands", "[Which command does what](../guides/commands.md) is a shorter table. [Exit codes](exit_codes.md) "
                    "are the same for all commands. Every command has `-h, --help`. Once installed, `man penstock-run` shows the same; in a "
                    "clone `man -l docs/man/penstock-run.1`.")
    for command in every(root):
        lines.append(f"## {command.name}\n")
        lines.append(wrapped(command.summary[0].upper() + command.summary[1:] + ("" if command.summary[-1] in ".?" else ".")) + "\n")
        lines.append(f"```\n{command.usage}\n```\n")
        entries = [Option(entry) for entry in command.positionals + command.options if not is_flag_of_all(entry)]
        lines += [wrapped(f"`{one.title}`: {one.text}", "- ", "  ") for one in entries]
        if command.subcommands:
            lines += [wrapped(f"`{name}`: {what}", "- ", "  ") for name, what in command.subcommands]
        if entries or command.subcommands:
            lines.append("")
        if command.notes:
            lines.append(f"```\n{command.notes}\n```\n")
    return "\n".join(lines)


# ---- man pages and completion ---------------------------------------------------------------------------------------


def roff(text):
    """Text with roff's special characters escaped."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line for line in text.split("\n"))


def man_page(command, version):
    def section(one, title):
        lines = [f".SH {title}", roff(one.summary)]
        for entry in one.positionals + one.options:
            option = Option(entry)
            lines += [".TP", f".B {roff(option.title)}", roff(option.text)]
        for child in one.subcommands:
            lines += [".TP", f".B {roff(child[0])}", roff(child[1])]
        return lines

    name = "-".join(command.words)
    alone = len(command.words) == 1
    lines = [f'.TH {name.upper()} 1 "" "penstock {version}" "penstock"', ".SH NAME", f"{roff(name)} \\- {roff(command.summary)}",
             ".SH SYNOPSIS", f".B {roff(command.usage)}", *section(command, "DESCRIPTION")]
    for child in () if alone else command.children:
        lines += section(child, child.words[-1].upper()) + [".PP", f"Usage: {roff(child.usage)}"]
    if command.notes:
        lines += [".SH NOTES", ".nf", roff(command.notes), ".fi"]
    lines.append(".SH EXIT STATUS")
    for code, meaning, _ in EXIT_CODES:
        lines += [".TP", f".B {code}", roff(meaning)]
    others = [f"penstock\\-{roff(one.words[1])}(1)" for one in command.children] if alone else ["penstock(1)"]
    lines += [".SH SEE ALSO", ",\n".join(others)]
    return "\n".join(lines) + "\n"


def completion(root):
    cases, values = [], {}
    for command in every(root):
        options = [Option(entry) for entry in command.options]
        flags = " ".join(flag for option in options for flag in option.flags)
        children = " ".join(name for name, _ in command.subcommands)
        words = textwrap.fill(f"{children} {flags}".strip(), WIDTH - 6, subsequent_indent=" " * 6, break_on_hyphens=False)
        cases.append(f'    "{" ".join(command.words[1:])}") words="{words}" ;;')
        for option in options:
            if option.choices:
                values["|".join(option.flags)] = " ".join(option.choices)
    parents = "|".join(" ".join(one.words[1:]) for one in every(root) if one.children and len(one.words) > 1)
    choices = [f'    {flags}) mapfile -t COMPREPLY < <(compgen -W "{words}" -- "$word"); return ;;'
               for flags, words in sorted(values.items())]
    return "\n".join([
        "# bash completion of penstock; docs/generate.py writes this file.",
        "_penstock() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" command="" words="" at',
        '  for ((at = 1; at < COMP_CWORD; ++at)); do',
        '    [[ "${COMP_WORDS[at]}" == -- ]] && { compopt -o default; return; }   # what follows is the program',
        '    [[ "${COMP_WORDS[at]}" == -* ]] && continue',
        '    case "$command" in',
        '      "") command="${COMP_WORDS[at]}" ;;',
        f'      {parents})',
        '        [[ " $(_penstock_below "$command") " == *" ${COMP_WORDS[at]} "* ]] && command+=" ${COMP_WORDS[at]}" ;;',
        '    esac',
        '  done',
        '  case "$before" in',
        *choices,
        '  esac',
        '  case "$command" in',
        *cases,
        '  esac',
        '  if [[ "$word" == -* || -z "$command" ]]; then',
        '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")',
        '  else',
        '    mapfile -t COMPREPLY < <(compgen -W "$(_penstock_below "$command")" -- "$word"; compgen -f -- "$word")',
        '    compopt -o filenames',
        '  fi',
        "}",
        "_penstock_below() {",
        '  case "$1" in',
        *[f'    "{" ".join(one.words[1:])}") echo "{" ".join(name for name, _ in one.subcommands)}" ;;'
          for one in every(root) if one.children and len(one.words) > 1],
        '  esac',
        "}",
        "complete -F _penstock penstock", ""])


# ---- job and cluster files ------------------------------------------------------------------------------------------


def kind_of(node):
    """A schema's type in words: "integer, 1 to 64", "`cpu` or `gpu`"."""
    if "enum" in node:
        return " or ".join(f"`{one}`" for one in node["enum"])
    if "anyOf" in node:
        return " or ".join(dict.fromkeys(kind_of(one) for one in node["anyOf"]))
    kind = node.get("type", "any")
    kind = next(one for one in kind if one != "null") if isinstance(kind, list) else kind
    if kind == "array" and isinstance(node.get("items"), dict) and "type" in node["items"]:
        return f"list of {node['items']['type']}s"
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        return f"{kind}, {low} to {high}"
    return f"{kind}, at least {low}" if low is not None else {"null": "null", "array": "list", "object": "mapping"}.get(kind, kind)


def key_line(name, node, schema_default=True):
    default = f"; default `{json.dumps(node['default'])}`" if schema_default and "default" in node else ""
    what = node.get("description", "")
    return wrapped(f"`{name}` ({kind_of(node)}{default}){': ' + what if what else ''}", "- ", "  ")


def keys_below(prefix, node, skip=()):
    lines = []
    for name, child in node.get("properties", {}).items():
        if name in skip:
            continue
        if child.get("properties"):
            lines.append(wrapped(f"`{prefix}{name}`: {child.get('description', '')}", "- ", "  "))
            lines += ["  " + line for line in "\n".join(keys_below(prefix + name + ".", child)).split("\n")]
        else:
            lines.append(key_line(prefix + name, child))
    return lines


def keys_page(program):
    schema = json.loads(subprocess.run([program, "schema"], capture_output=True, text=True, check=True).stdout)
    split = schema["definitions"]["split"]
    lines = head_of("Job keys", "Every key of a job file, with type, default and meaning. [The job file](../guides/job_file.md) "
                    "explains it; `penstock schema` prints the same as a JSON Schema for editors.")
    lines.append("## At the top\n")
    sections = {name: node for name, node in schema["properties"].items() if node.get("properties")}
    lines += [key_line(name, node) for name, node in schema["properties"].items() if name not in sections and name != "splits"]
    for name, node in sections.items():
        lines += ["", f"## {name}\n", node["description"] + "\n", *keys_below(name + ".", node)]
    lines += ["", "## splits\n", wrapped("`splits` has a section for each split, by name, such as `train` and `val`. "
              "These are the keys of one section.") + "\n"]
    lines += keys_below("", split, skip=("dataset", "sampler", "pipeline", "gpu_pipeline"))
    lines += [wrapped(f"`{name}`: {split['properties'][name]['description']} See [Transforms](transforms.md).", "- ", "  ")
              for name in ("pipeline", "gpu_pipeline")]
    for name in ("dataset", "sampler"):
        node = split["properties"][name]
        lines += ["", f"## splits.NAME.{name}\n", node["description"] + "\n", *keys_below("", node)]
    return "\n".join(lines) + "\n", split["properties"]["pipeline"]["items"]["anyOf"]


def cluster_page(program):
    schema = json.loads(subprocess.run([program, "schema", "--cluster"], capture_output=True, text=True, check=True).stdout)
    lines = head_of("Cluster keys", "Every key of the cluster file that `penstock plan` and `simulate` read. "
                    "[Planning](../guides/planning.md) explains it; `penstock schema --cluster` prints the same as a JSON Schema. "
                    "Of all keys `nodes` alone is required.")
    for name, node in schema["properties"].items():
        below = node.get("additionalProperties")
        if isinstance(below, dict):
            node = dict(node, properties=below.get("properties", {}))
            name += ".NAME"
            node.setdefault("description", "The machines of a kind, by a name of your choice.")
        if node.get("properties"):
            lines += [wrapped(f"`{name}`: {node.get('description', '')}", "- ", "  ")]
            lines += ["  " + line for line in "\n".join(keys_below(name + ".", node)).split("\n")]
        else:
            lines.append(key_line(name, node))
    return "\n".join(lines) + "\n"


# ---- the Python package ---------------------------------------------------------------------------------------------


def signature_of(one, name):
    """`name(…)` without annotations, in lines of WIDTH."""
    try:
        signature = inspect.signature(one)
    except (TypeError, ValueError):
        return name
    bare = []
    for parameter in signature.parameters.values():
        default = parameter.default
        if default is not inspect.Parameter.empty and type(default).__module__ != "builtins":
            default = ...  # "1, or the job's": the text below says what it is
        if parameter.name != "self":
            bare.append(parameter.replace(annotation=inspect.Parameter.empty, default=default))
    text = name + str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)).replace("Ellipsis", "...")
    return textwrap.fill(text, WIDTH, subsequent_indent=" " * (len(name) + 1), break_long_words=False, break_on_hyphens=False)


def doc_to_markdown(text):
    """A docstring's paragraphs; "Parameters" and its like become bold words, and what they list becomes a list."""
    out, rest, listing = [], inspect.cleandoc(text or "").split("\n"), False
    at = 0
    while at < len(rest):
        line = rest[at]
        if at + 1 < len(rest) and line and re.fullmatch(r"-{4,}", rest[at + 1]):
            listing = line in ("Parameters", "Attributes")
            out += ["", f"**{line}**", ""]
            at += 2
        elif line and not line.startswith(" ") and (listing or at + 1 < len(rest) and rest[at + 1].startswith("    ")
                                                    and re.fullmatch(r"\w+(, \w+)*", line)):
            names, body = line, []
            at += 1
            while at < len(rest) and (not rest[at] or rest[at].startswith(" ")):
                body.append(rest[at].strip())
                at += 1
            names = ", ".join(f"`{one.strip()}`" for one in names.split(","))
            out.append(wrapped(f"{names}: {' '.join(body)}", "- ", "  "))
        elif line.startswith("    "):
            block = []
            while at < len(rest) and (rest[at].startswith("    ") or not rest[at]):
                block.append(rest[at][4:])
                at += 1
            out += ["", "```python", *"\n".join(block).rstrip().split("\n"), "```", ""]
        elif not line:
            out.append("")
            at += 1
        else:
            block = []
            while at < len(rest) and rest[at] and not rest[at].startswith("    ") \
                    and not (at + 1 < len(rest) and re.fullmatch(r"-{4,}", rest[at + 1])):
                block.append(rest[at])
                at += 1
            out.append(wrapped(" ".join(block)))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip("\n")


def own_doc(one):
    """Its own docstring, not one that it inherits."""
    return one.__dict__.get("__doc__") if inspect.isclass(one) else one.__doc__


PYTHON_GROUPS = [
    ("Loaders", ["DataLoader", "Preprocessor", "wrap", "WrappedLoader", "collate_bytes", "describe_transforms", "show"]),
    ("Batches", ["TupleBatch", "ListBatch", "DictBatch"]),
    ("Data sets", ["ImageFolder", "PairedFolders", "WebDataset", "CIFAR10", "CIFAR100", "MNIST", "CSVDataset", "FileList", "MDS",
                   "TFRecord", "Parquet", "PackedDataset"]),
    ("Samplers", ["DistributedSampler", "RandomSampler", "SequentialSampler", "BatchSampler", "WeightedRandomSampler"]),
    ("States", ["save_state", "load_state"]),
    ("Planning", ["plan", "simulate"]),
    ("Errors", ["Error", "ConfigError", "DatasetError", "PeerLostError", "RunError", "UsageError", "UnpicklableDataset"]),
]
FRAMEWORKS = {"lightning": "penstock.lightning", "accelerate": "penstock.accelerate", "timm": "penstock.timm", "mpi": "penstock.mpi"}


def members_of(one):
    """The documented methods and properties that a class defines itself, or has from a private one."""
    found = []
    bases = [base for base in one.__mro__ if base is one or base.__name__.startswith("_")]
    for name, member in [item for base in bases for item in vars(base).items()]:
        doc = inspect.getdoc(member)
        if (name.startswith("_") and name != "__call__") or not doc or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        title = f"{name}: {' '.join(doc.split())}" if isinstance(member, property) else None
        found.append((name, member, doc) if title is None else (name, None, doc))
    return found


def module_doc(name):
    """The docstring of a module of the package that may not be importable here, as of Lightning's."""
    with open(os.path.join(SOURCE, "bindings", "python", "penstock", f"{name}.py"), encoding="utf-8") as file:
        return re.match(r'"""(.*?)"""', file.read(), re.DOTALL).group(1)


def python_page():
    import penstock
    named = [name for _, names in PYTHON_GROUPS for name in names]
    left = set(penstock.__all__) - set(named) - {"errors", "transforms"}
    assert not left, f"a group of PYTHON_GROUPS must have {sorted(left)}"
    lines = head_of("Python API", "`help(penstock.DataLoader)` shows the same. [Python](../guides/python.md) is the guide, and "
                    "[Transforms](transforms.md) has `penstock.transforms`.")
    for title, names in PYTHON_GROUPS:
        lines.append(f"## {title}\n")
        shown = set()
        for name in names:
            one = getattr(penstock, name)
            lines.append(f"### penstock.{name}\n")
            if not inspect.isclass(one) or not issubclass(one, (Exception, tuple, list, dict)):
                lines.append(f"```python\n{signature_of(one, 'penstock.' + name)}\n```\n")
            lines.append(doc_to_markdown(own_doc(one)) + "\n")
            if inspect.isclass(one) and not issubclass(one, Exception):
                for member, function, doc in members_of(one):
                    if member not in vars(one) and (member, doc) in shown:  # relatives have it from the same class
                        continue
                    shown.add((member, doc))
                    call = f"`{member}`" if function is None else "`" + " ".join(signature_of(function, member).split()) + "`"
                    lines.append(wrapped(f"{call}: {' '.join(doc.split())}", "- ", "  "))
                lines.append("")
    lines.append("## Frameworks\n")
    for name, title in FRAMEWORKS.items():
        lines += [f"### {title}\n", doc_to_markdown(module_doc(name)) + "\n"]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip("\n") + "\n"


# torchvision's class -> what it is here, where it is not the class of the same name.
ELSEWHERE = {
    "Compose": "`Compose`, or a list",
    "ToTensor": "`ToDtype(\"float32\", scale=True)`",
    "ConvertImageDtype": "`ToDtype(dtype, scale=True)`",
    "PILToTensor": "nothing: pictures are tensors already",
    "ToImage": "nothing: pictures are tensors already",
    "ToPureTensor": "nothing: pictures are tensors already",
    "Lambda": "torchvision's own is taken: it, and all steps behind it, run in Python. Quicker: `Python(function)`, where a module has `function(array, generator)`",
}


def transforms_page(catalogue):
    from penstock import _transform_notes, transforms
    from penstock._torch_sequences import STEPS
    nodes = {next(iter(one["properties"])): next(iter(one["properties"].values())) for one in catalogue if "properties" in one}
    names = [name for name in transforms.__all__ if name not in ("Compose", "Transform")]
    assert sorted(nodes) == sorted(names), set(nodes) ^ set(names)
    same = [name for name in names if name in STEPS]
    lines = head_of("Transforms", "A job's `pipeline` is a list of these; `penstock.transforms` has a class for each, with the same "
                    "parameters. Objects of torchvision.transforms (v1 and v2) are taken in their place. "
                    "`penstock.describe_transforms(loader)` says of each step where it runs and how near its pixels are to torchvision's.")
    lines += ["## torchvision's names\n",
              wrapped(f"These {len(same)} have torchvision's name and parameters, and some have `mask_fill` besides: "
                      + ", ".join(f"`{name}`" for name in same) + ".") + "\n",
              "| torchvision.transforms | here |", "|---|---|"]
    lines += [f"| `{name}` | {here} |" for name, here in ELSEWHERE.items()]
    lines.append("")
    lines.append(wrapped("torchvision has none of " + ", ".join(f"`{name}`" for name in names if name not in STEPS) + ".") + "\n")
    for name in sorted(names):
        node, one = nodes[name], getattr(transforms, name)
        lines.append(f"## {name}\n")
        lines.append(f"```python\n{signature_of(one, name)}\n```\n")
        said = own_doc(one) or node["description"][0].upper() + node["description"][1:] + "."
        lines.append(doc_to_markdown(said) + "\n")
        _, _, exact, pixels = _transform_notes.of_spec({name: {}})
        if name in STEPS and not exact:
            lines.append(wrapped(f"Pixels beside torchvision's, on PIL pictures: {pixels.removeprefix('near: ')}.") + "\n")
        rows = [key_line(key, child) for key, child in node.get("properties", {}).items()]
        lines += rows + ([""] if rows else [])
    return "\n".join(lines).rstrip("\n") + "\n"


# ---- C++ ------------------------------------------------------------------------------------------------------------


def public_headers():
    with open(os.path.join(SOURCE, "cmake", "install.cmake"), encoding="utf-8") as file:
        block = re.search(r"set\(PENSTOCK_PUBLIC_HEADERS\n(.*?)\)", file.read(), re.DOTALL).group(1)
    return [line.strip() for line in block.split("\n") if line.strip() and not line.strip().startswith("#")]


def comment_to_markdown(lines):
    """A header's opening comment: indented lines are code, "Topic: …" with a hanging indent is an item of a list."""
    topic = re.compile(r"[A-Z][\w ,*()-]{2,40}: ")
    parts, at = [], 0  # (is it an item, its text)
    while at < len(lines):
        block = []
        if not lines[at]:
            at += 1
        elif lines[at].startswith("  "):
            while at < len(lines) and (lines[at].startswith("  ") or not lines[at]):
                block.append(lines[at])
                at += 1
            text = textwrap.dedent("\n".join(block)).strip("\n")
            parts.append((False, f"```\n{text}\n```"))
        else:
            item = bool(parts) and bool(topic.match(lines[at]))
            block.append(lines[at])
            at += 1
            while at < len(lines) and lines[at] and (lines[at].startswith("  ") if item else not topic.match(lines[at])):
                block.append(lines[at].strip())
                at += 1
            parts.append((item, wrapped(" ".join(block), "- " if item else "", "  " if item else "")))
    out = ""
    for at, (item, text) in enumerate(parts):
        out += text + ("\n" if item and at + 1 < len(parts) and parts[at + 1][0] else "\n\n")
    return out.strip("\n")


def cpp_page():
    lines = head_of("C++ API", "The installed headers, each with its opening comment. [C++](../guides/cpp.md) is the guide. "
                    "Include paths are rooted as in the repository: `#include \"runtime/client/data_loader.h\"`.")
    first = ["runtime/client/data_loader.h", "runtime/serving/preprocessor.h", "runtime/pixels/finish.h", "runtime/base/fields.h",
             "runtime/base/error.h", "bindings/torch/data_loader.h", "bindings/torch/dataset.h", "bindings/mpi/join.h",
             "bindings/c/penstock.h"]
    headers = public_headers()
    assert set(first) <= set(headers), set(first) - set(headers)
    for header in first:
        with open(os.path.join(SOURCE, header), encoding="utf-8") as file:
            text = file.read()
        if text.startswith("/*"):
            comment = [re.sub(r"^(/\*| \*)? ?", "", line, count=1) for line in text[:text.index("*/")].rstrip().split("\n")]
        else:
            comment = [line[3:] for line in re.match(r"(?://.*\n)+", text).group(0).rstrip("\n").split("\n")]
        found = (re.findall(r"^(?:class|struct|enum class) (\w+)[^;]*?\{", text, re.MULTILINE)
                 or re.findall(r"^\w[\w ]*\*? ?(penstock_\w+)\(", text, re.MULTILINE))
        lines.append(f"## {header}\n")
        lines.append(comment_to_markdown(comment) + "\n")
        declared = ", ".join(f"`{name}`" for name in dict.fromkeys(found))
        lines.append(wrapped(f"It declares {declared}: [{header}](../../{header}).") + "\n")
    lines.append("## What these include\n")
    others = ", ".join(f"[{one}](../../{one})" for one in headers if one not in first)
    lines.append(wrapped(f"Programs need not name these headers: {others}."))
    return "\n".join(lines) + "\n"


# ---- everything -----------------------------------------------------------------------------------------------------


def exit_codes_page():
    with open(os.path.join(SOURCE, "runtime", "base", "error.h"), encoding="utf-8") as file:
        kinds = re.findall(r"^  (\w+) = (\d),", file.read(), re.MULTILINE)
    assert [code for _, code in kinds] == [code for code, _, _ in EXIT_CODES[1:6]], kinds
    rows = [f"| {code} | {meaning} | {look} |" for code, meaning, look in EXIT_CODES]
    names = ["RunError", "UsageError", "ConfigError", "DatasetError", "PeerLostError"]
    lines = head_of("Exit codes", "[Troubleshooting](../guides/troubleshooting.md) goes by message. In Python an error has the same number "
                    "as `exit_code`: " + ", ".join(f"{name} has {code}" for code, name in enumerate(names, 1)) + ".")
    return "\n".join([*lines, "| code | what it means | what to look at |", "|---|---|---|", *rows]) + "\n"


def files(build):
    """{path in docs/: text} of everything that is generated."""
    program = os.path.join(build, "penstock")
    root = help_of(program)
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    keys, catalogue = keys_page(program)
    found = {"reference/commands.md": commands_page(root), "reference/exit_codes.md": exit_codes_page(),
             "reference/job_keys.md": keys, "reference/cluster_keys.md": cluster_page(program),
             "reference/transforms.md": transforms_page(catalogue), "reference/python_api.md": python_page(),
             "reference/cpp_api.md": cpp_page(), "completion/penstock.bash": completion(root), "man/penstock.1": man_page(root, version)}
    for command in root.children:
        found[f"man/{'-'.join(command.words)}.1"] = man_page(command, version)
    return {path: re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE) for path, text in found.items()}


def main():
    build = os.environ.get("PENSTOCK_BUILD", os.path.join(SOURCE, "build", "release"))
    sys.path.insert(0, os.path.join(build, "python"))
    made = files(build)
    for folder in FOLDERS:
        os.makedirs(os.path.join(DOCS, folder), exist_ok=True)
        for name in os.listdir(os.path.join(DOCS, folder)):
            if f"{folder}/{name}" not in made:
                os.remove(os.path.join(DOCS, folder, name))
    for path, text in made.items():
        with open(os.path.join(DOCS, path), "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
