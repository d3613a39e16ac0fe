"""Results of a benchmark: reading them, medians with confidence, the table and the picture.

    figures.py bench/results/2026-11-21-delivery.jsonl      writes the table and the SVG beside it again

A results file is JSON lines: one object with "kind": "header" (machine, versions, arguments), one "check" a competitor
(how its pixels compare with the reference), one "block" a measurement (round, name, images, seconds, cpu_seconds, ...).
All statistics are over rounds, and ratios are taken within a round, so a machine that slows down for a minute slows
both sides of a ratio. Needs numpy.
"""

import json
import os
import sys

import numpy as np

CONFIDENCE = 0.95


class Results:
    def __init__(self, records):
        self.header = next((record for record in records if record["kind"] == "header"), {})
        self.checks = {record["name"]: record for record in records if record["kind"] == "check"}
        self.blocks = [record for record in records if record["kind"] == "block" and "error" not in record]
        self.failures = [record for record in records if record["kind"] == "block" and "error" in record]

    @property
    def names(self):
        """Competitors that have blocks, in the order of the command line."""
        seen = list(dict.fromkeys(block["name"] for block in self.blocks))
        order = {name: place for place, name in enumerate(self.header.get("names", ()))}
        return sorted(seen, key=lambda name: order.get(name, len(order)))

    @property
    def rounds(self):
        return len({block["round"] for block in self.blocks})

    def by_round(self, name, value):
        """{round: value(block)} of one competitor, leaving out what it could not measure."""
        found = {block["round"]: value(block) for block in self.blocks if block["name"] == name}
        return {number: figure for number, figure in found.items() if figure is not None}

    def ratios(self, name, other, value):
        """value(name) / value(other) for every round that has both."""
        mine, theirs = self.by_round(name, value), self.by_round(other, value)
        return [mine[number] / theirs[number] for number in sorted(mine) if theirs.get(number)]


def load(path):
    with open(path, encoding="utf-8") as lines:
        return Results([json.loads(line) for line in lines if line.strip()])


# ------------------------------------------------------------------ figures


def images_per_s(block):
    return block["images"] / block["seconds"]


def cpu_ms_per_image(block):
    return None if block.get("cpu_seconds") is None else 1000 * block["cpu_seconds"] / block["images"]


def first_batch_s(block):
    return block.get("first_batch_s")


def memory_mb(block):
    """Proportional set of all processes; the largest resident set where the kernel does not tell that."""
    return (block.get("pss") or block.get("max_rss") or 0) / 1e6 or None


def median_with_interval(values, seed=0, resamples=10000):
    """(median, low, high): bootstrap percentile interval; seeded, so a file always gives the same table."""
    values = np.asarray(values, dtype=float)
    if len(values) == 0:
        return None
    drawn = np.random.default_rng(seed).integers(0, len(values), size=(resamples, len(values)))
    medians = np.median(values[drawn], axis=1)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(medians, [tail, 100 - tail])
    return float(np.median(values)), float(low), float(high)


# ------------------------------------------------------------------ table


def _shown(values, digits, interval=False):
    figure = median_with_interval(values)
    if figure is None:
        return "-"
    text = f"{figure[0]:.{digits}f}"
    return f"{text} ({figure[1]:.{digits}f} to {figure[2]:.{digits}f})" if interval else text


def table(results, baseline):
    """Markdown: one line a competitor, ratios of the baseline to it with 95 % intervals."""
    lines = [
        f"| competitor | images/s | {baseline} is faster by | CPU ms/image | {baseline} takes of its CPU time "
        "| first batch, s | memory, MB | pixels against Pillow: max, mean |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in results.names:
        check = results.checks.get(name, {})
        pixels = f"{check['max']:.3g}, {check['mean']:.2g}" if "max" in check else check.get("note", "-")
        own = name == baseline
        lines.append(
            "| "
            + " | ".join(
                [
                    name,
                    _shown(list(results.by_round(name, images_per_s).values()), 0),
                    "" if own else _shown(results.ratios(baseline, name, images_per_s), 2, interval=True),
                    _shown(list(results.by_round(name, cpu_ms_per_image).values()), 2),
                    "" if own else _shown(results.ratios(baseline, name, cpu_ms_per_image), 2, interval=True),
                    _shown(list(results.by_round(name, first_batch_s).values()), 1),
                    _shown(list(results.by_round(name, memory_mb).values()), 0),
                    pixels,
                ]
            )
            + " |"
        )
    machine = results.header.get("machine", {})
    noise = [block["foreign_cpu"] for block in results.blocks if block.get("foreign_cpu") is not None]
    lines += [
        "",
        f"Medians of {results.rounds} rounds, in parentheses the bootstrap 95 % interval of the median. "
        f"{machine.get('cpu', '?')}, {len(machine.get('pinned', []))} logical CPUs, {results.header.get('date', '?')}; "
        f"{results.header.get('data', {}).get('summary', '?')}."
        + (f" CPU taken by other programs meanwhile: median {100 * float(np.median(noise)):.1f} %." if noise else ""),
    ]
    if results.failures:
        failed = ", ".join(sorted({f"{record['name']} ({record['error']})" for record in results.failures}))
        lines += ["", f"Blocks that failed and are not in the table: {failed}."]
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------ picture


def _escape(text):
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _panel(left, width, title, rows, colour_of):
    """Horizontal bars with whiskers. `rows` is (name, (median, low, high) or None)."""
    top, height, gap = 56, 22, 12
    longest = max((figure[2] for _, figure in rows if figure), default=1.0)
    parts = [f'<text x="{left}" y="36" class="title">{_escape(title)}</text>']
    for line, (name, figure) in enumerate(rows):
        y = top + line * (height + gap)
        if figure is None:
            parts.append(f'<text x="{left + 4}" y="{y + 15}" class="value">not measured</text>')
            continue
        bar, low, high = (width - 70) * np.array(figure) / longest
        middle = y + height / 2
        parts.append(f'<rect x="{left}" y="{y}" width="{bar:.1f}" height="{height}" fill="{colour_of(name)}"/>')
        parts.append(
            f'<path d="M{left + low:.1f} {middle}H{left + high:.1f}M{left + low:.1f} {middle - 4}v8'
            f'M{left + high:.1f} {middle - 4}v8" stroke="#222" fill="none"/>'
        )
        digits = 0 if figure[0] >= 100 else 2
        parts.append(f'<text x="{left + high + 7:.1f}" y="{y + 15}" class="value">{figure[0]:.{digits}f}</text>')
    return parts


def svg(results, baseline):
    """Two panels of bars: images/s and CPU ms per image."""
    names = results.names
    height = 56 + len(names) * 34 + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="860" height="{height}" viewBox="0 0 860 {height}">',
        "<style>text{font:13px sans-serif;fill:#222}.title{font-weight:bold}.value{font-size:12px}</style>",
        f'<rect width="860" height="{height}" fill="#fff"/>',
    ]
    for line, name in enumerate(names):
        parts.append(f'<text x="138" y="{71 + line * 34}" text-anchor="end">{_escape(name)}</text>')

    def colour_of(name):
        return "#1b7f79" if name.startswith(baseline) else "#9aa5b1"

    for left, title, value in (
        (150, "images/s, more is better", images_per_s),
        (515, "CPU ms per image, less is better", cpu_ms_per_image),
    ):
        rows = [(name, median_with_interval(list(results.by_round(name, value).values()))) for name in names]
        parts += _panel(left, 335, title, rows, colour_of)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def write_report(path, baseline=None):
    """Writes the table and the picture beside a results file; returns the table."""
    results = load(path)
    baseline = baseline or results.header.get("baseline") or results.names[0]
    stem = os.path.splitext(path)[0]
    text = table(results, baseline)
    with open(stem + ".md", "w", encoding="utf-8") as file:
        file.write(text)
    with open(stem + ".svg", "w", encoding="utf-8") as file:
        file.write(svg(results, baseline))
    return text


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(write_report(sys.argv[1]), end="")
