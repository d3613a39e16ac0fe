"""Runs the build's pipeline_tool; shared by this folder's tests. Everything they need from outside is looked up here,
so that what is missing becomes a skip with its name."""
import json
import os
import subprocess
import sys


def tool():
    build = os.environ.get("PENSTOCK_BUILD", "build/release")
    path = os.path.abspath(os.path.join(build, "tests", "transforms", "pipeline_tool"))
    if not os.path.exists(path):
        sys.exit(f"{path} is not built")
    return path


def request(**fields):
    """The lines of draws: a list of {position: values} per sample."""
    done = subprocess.run([tool()], input=json.dumps(fields), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return [{position: values for position, values in json.loads(line)} for line in done.stdout.splitlines()]


def need(*modules):
    import importlib
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(f"SKIP: {error}")
            sys.exit(77)
