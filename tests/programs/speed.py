"""Images/s and CPU time of the programs of programs_test.py, changed and as they are in turns: the table of docs/guides/from_torch.md.

    PENSTOCK_PROGRAMS=folder python tests/programs/speed.py --rounds 3 test_timm test_dino test_transformers

With what ctest sets for frameworks.programs_test: PENSTOCK_BUILD, PENSTOCK_SOURCE and PYTHONPATH. The arguments are the tests' own, on
more photos; of a test that runs a program several times the first is measured. A line each: ratios of the whole run's images/s
and of its CPU time, of all processes, changed by as it is, of each round and their medians.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile

arguments = argparse.ArgumentParser()
arguments.add_argument("tests", nargs="+")
arguments.add_argument("--rounds", type=int, default=3)
arguments.add_argument("--photos", type=int, default=400)
asked = arguments.parse_args()
sys.argv[1:] = []

import programs_test  # noqa: E402
from jobs import demo_photos  # noqa: E402


class Measured(Exception):
    """The first run of a test is enough."""


def rate_and_cpu(program, words, ranks, prepare, changed):
    with tempfile.TemporaryDirectory() as top:
        folder = os.path.join(top, "program")
        shutil.copytree(os.path.join(programs_test.PROGRAMS, program.name), folder, ignore=shutil.ignore_patterns("site-packages"))
        if changed:
            programs_test.change(folder, program.name)
        said = [one for one, _ in programs_test.gave(program, folder, words, ranks, prepare)[0]]
        images = sum(len(batch) for rank in said for one in rank["seen"] for batch in one["labels"])
        return images / max(rank["seconds"] for rank in said), sum(rank["cpu_seconds"] for rank in said)


def measure(program, *words, ranks=1, prepare=lambda out, env: None):
    rates, cpu = [], []
    for _ in range(asked.rounds):
        before = rate_and_cpu(program, words, ranks, prepare, changed=False)
        after = rate_and_cpu(program, words, ranks, prepare, changed=True)
        rates.append(after[0] / before[0])
        cpu.append(after[1] / before[1])
    print(f"{program.name}: images/s {statistics.median(rates):.2f} ({', '.join(f'{one:.2f}' for one in rates)}), "
          f"CPU time {statistics.median(cpu):.2f} ({', '.join(f'{one:.2f}' for one in cpu)})", flush=True)
    raise Measured


programs_test.check = measure
programs_test.demo_photos = lambda count, val_count, classes: demo_photos(asked.photos, asked.photos // 4, classes)
for name in asked.tests:
    try:
        getattr(programs_test, name)()
    except Measured:
        pass
