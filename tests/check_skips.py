"""Fails when a test skipped itself without being listed.

    check_skips.py JUNIT.xml EXPECTED_SKIPS.txt

Each line of the list is `test name | condition`; '*' in a name stands for anything, '#' begins a comment. A listed test may run as well: the condition
says when it does not.
"""
import fnmatch
import sys
import xml.etree.ElementTree as ElementTree


def main(junit: str, expected: str) -> int:
    with open(expected, encoding="utf-8") as lines:
        allowed = [line.split("|")[0].strip() for line in lines if line.strip() and not line.startswith("#")]
    skipped = [case.get("name") for case in ElementTree.parse(junit).getroot().iter("testcase")
               if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled")]
    unexpected = [name for name in skipped if not any(fnmatch.fnmatchcase(name, one) for one in allowed)]
    for name in skipped:
        print(f"skipped{' UNEXPECTEDLY' if name in unexpected else ''}: {name}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
