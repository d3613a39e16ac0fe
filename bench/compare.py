#!/usr/bin/python3
"""Compares two results files and fails when the second is worse: exit 1, with the figures that got worse.

    bench/compare.py OLD.jsonl NEW.jsonl [--tolerance 0.05] [--names penstock,penstock_mpi]

Better is never a failure. Speed and CPU time are compared relative to the competitors that both runs have, so that a
slower machine, or the same machine on a bad day, does not look like a slower penstock; with no competitor in common
(or --absolute) the plain figures are compared. A figure is worse when its median changed for the worse by more than
the tolerance and the 95 % intervals of old and new do not overlap: noise alone does not fail. A competitor of the old
run that the new one was asked for and could not measure is worse. Intervals need rounds: runs of fewer than five are
refused (exit 2), and so are files that cannot be read.
"""

import argparse
import sys

import numpy as np
import figures as bench

# (title, value of a block, +1 when more is better, relative to the peers, tolerance is multiplied by)
FIGURES = (
    ("images/s", bench.images_per_s, +1, True, 1),
    ("CPU ms/image", bench.cpu_ms_per_image, -1, True, 1),
    ("first batch, s", bench.first_batch_s, -1, True, 4),  # start-up: interpreters, mpirun, page cache
    ("memory, MB", bench.memory_mb, -1, False, 2),
)


def series(results, name, value, peers):
    """The figure of each round; relative to the geometric mean of the peers in that round when there are any."""
    own = results.by_round(name, value)
    if not peers:
        return [own[number] for number in sorted(own)]
    others = [results.by_round(peer, value) for peer in peers]
    return [
        own[number] / float(np.exp(np.mean([np.log(other[number]) for other in others])))
        for number in sorted(own)
        if all(other.get(number) for other in others)
    ]


def peers_of(name, old, new):
    """Who both runs have besides penstock: with as many threads where there is such a one, else with the main count."""
    both = [peer for peer in old.names if peer in new.names and not bench.ours(peer) and peer != name]
    threads = name.partition("@")[2]
    alike = [peer for peer in both if peer.partition("@")[2] == threads]
    return alike or [peer for peer in both if "@" not in peer]


def compare(old, new, names, tolerance, absolute=False):
    """Yields (name, title, old figure, new figure, change for the better as a fraction, worse)."""
    for name in names:
        common = peers_of(name, old, new)
        for title, value, direction, relative, factor in FIGURES:
            peers = common if relative and not absolute else []
            before = bench.median_with_interval(series(old, name, value, peers))
            after = bench.median_with_interval(series(new, name, value, peers))
            if before is None or after is None:
                continue
            change = direction * (after[0] / before[0] - 1)
            apart = after[2] < before[1] if direction > 0 else after[1] > before[2]
            yield name, title + (" / peers" if peers else ""), before, after, change, (
                change < -tolerance * factor and apart
            )


def read(path):
    """The results; exit 2 where there are none, because 1 says that the new run is worse."""
    try:
        return bench.load(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"compare.py: {path} is no results file of bench/run.py: {error}", file=sys.stderr)
        sys.exit(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--tolerance", type=float, default=0.05, help="fraction that may be lost (default 0.05)")
    parser.add_argument("--names", help="competitors to judge; default: those starting with 'penstock', or all")
    parser.add_argument("--absolute", action="store_true", help="do not divide by the peers")
    options = parser.parse_args()
    old, new = read(options.old), read(options.new)
    for path, run in ((options.old, old), (options.new, new)):
        if run.rounds < 5:
            print(f"compare.py: {path} has {run.rounds} rounds; at least 5 are needed to tell noise", file=sys.stderr)
            sys.exit(2)
    for key in ("workload", "label"):
        if old.header.get(key, "") != new.header.get(key, ""):
            both = f"'{old.header.get(key, '')}' and '{new.header.get(key, '')}'"
            print(f"compare.py: the files are of different runs: {key} {both}", file=sys.stderr)
            sys.exit(2)
    both = [name for name in old.names if name in new.names]
    # Whose pixels were wrong, or who ended, has no blocks.
    asked = [name for name in old.names if name in new.names or name in new.header.get("names", ())]
    judged = options.names.split(",") if options.names else [n for n in asked if bench.ours(n)] or asked
    missing = [name for name in judged if name not in new.names]
    rows = list(compare(old, new, [name for name in judged if name in both], options.tolerance, options.absolute))
    for name, title, before, after, change, worse in rows:
        outcome = "WORSE" if worse else "better" if change > 0 else "same"
        print(f"{name:20} {title:22} {before[0]:10.3f} -> {after[0]:10.3f}  {100 * change:+6.1f} %  {outcome}")
    lost = [f"{name} {title}" for name, title, _, _, _, worse in rows if worse]
    lost += [f"{name} is missing in the new run" for name in missing]
    if not rows and not lost:
        print("compare.py: the files have no competitor in common", file=sys.stderr)
        sys.exit(2)
    if lost:
        print("worse: " + "; ".join(lost))
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
