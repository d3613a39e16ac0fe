"""Can the bugs of mutations.py still be planted? Each text that one replaces is in its file exactly once, and is another one
afterwards. Whether the simulated worlds find them is for mutations.py itself, which takes an hour."""

import os
import sys

import mutations

for name, file, text, instead in mutations.MUTATIONS:
    with open(os.path.join(mutations.TOP, file)) as source:
        found = source.read().count(text)
    assert found == 1, f"mutation '{name}': {file} has its text {found} times, not once:\n{text}\nWrite the mutation anew."
    assert text != instead, f"mutation '{name}' changes nothing"
names = {name for name, *_ in mutations.MUTATIONS}
assert len(names) == len(mutations.MUTATIONS) >= 20, "two mutations have one name, or there are too few"
print(f"{len(names)} mutations can be planted")
sys.exit(0)
