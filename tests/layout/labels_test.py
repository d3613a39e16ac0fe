"""A Python test that takes more with PENSTOCK_FULL=1 has the label `full`, or `tests/run.sh --full` would never run it so."""

import json
import os
import re
import subprocess
import sys

BUILD, SOURCE = os.environ["PENSTOCK_BUILD"], os.environ["PENSTOCK_SOURCE"]
READS = re.compile(r"^from jobs import .*\bFULL\b|\bjobs\.FULL\b|environ.*PENSTOCK" r"_FULL", re.MULTILINE)


def without_label(tests):
    """(number of tests that read it, names of those without the label)"""
    readers, offenders = 0, []
    for test in tests:
        labels = next((one["value"] for one in test["properties"] if one["name"] == "LABELS"), [])
        for word in test.get("command", []):
            if word.startswith(SOURCE) and word.endswith("_test.py"):
                with open(word, encoding="utf-8") as file:
                    if READS.search(file.read()):
                        readers += 1
                        if "full" not in labels:
                            offenders.append(test["name"])
    return readers, offenders


def main():
    listed = subprocess.run(["ctest", "--test-dir", BUILD, "--show-only=json-v1"], capture_output=True, text=True, timeout=60, check=True)
    readers, offenders = without_label(json.loads(listed.stdout)["tests"])
    print(f"{readers} tests take more with PENSTOCK_FULL=1; without the label: {', '.join(offenders) or 'none'}")
    planted = [{"name": "planted", "command": ["python3", os.path.join(SOURCE, "tests/multirank/endings_test.py")], "properties": []}]
    assert readers > 20 and without_label(planted) == (1, ["planted"])
    return 1 if offenders else 0


if __name__ == "__main__":
    sys.exit(main())
