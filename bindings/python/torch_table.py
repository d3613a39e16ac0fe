"""Writes the table "torch's argument, here" of docs/guides/from_torch.md, from the signatures and the docstring of penstock.DataLoader.

    PYTHONPATH=build/release/python python3 -P bindings/python/torch_table.py
"""

import inspect
import os
import re
import textwrap

import penstock


def meanings():
    """{parameter: what the docstring says of it}; of several that share a paragraph the same."""
    text = inspect.getdoc(penstock.DataLoader).partition("Parameters\n----------\n")[2].partition("\nRaises\n")[0]
    found = {}
    for block in re.split(r"\n(?=\S)", text):
        names, _, body = block.partition("\n")
        for name in names.split(", "):
            found[name.strip()] = " ".join(textwrap.dedent(body).split())
    return found


def shown(value):
    return "" if value is inspect.Parameter.empty else f"`{value!r}`"


def table():
    from torch.utils.data import DataLoader
    said, mine = meanings(), inspect.signature(penstock.DataLoader.__init__).parameters
    rows = ["| torch's argument | default in torch | default here | here |", "|---|---|---|---|"]
    for name, one in inspect.signature(DataLoader.__init__).parameters.items():
        if name == "self":
            continue
        here = shown(mine[name].default) if mine[name].default is not one.default else "the same"
        rows.append(f"| `{name}` | {shown(one.default)} | {here} | {said[name]} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "guides", "from_torch.md")
    with open(path) as file:
        before, begin, rest = file.read().partition("<!-- table -->\n")
    assert begin and "<!-- end of table -->" in rest, path
    text = before + begin + table() + "".join(rest.partition("<!-- end of table -->")[1:])
    with open(path, "w") as file:
        file.write(text)
