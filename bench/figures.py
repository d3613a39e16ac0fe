"""Results of a benchmark: reading them, medians with confidence, the table and the picture.

    figures.py bench/results/2026-11-21-delivery.jsonl      writes the table and the SVG beside it again

A results file is JSON lines: one object with "kind": "header" (machine, versions, arguments), one "prepare" a format
(what writing it took), one "check" a competitor (how its pixels compare with the reference), one "block" a measurement
(round, name, images, seconds, cpu_seconds, ...), and "stages" (round, name, CPU time of a sample by stage).
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
        self.preparations = [record for record in records if record["kind"] == "prepare"]
        self.blocks = [record for record in records if record["kind"] == "block" and "error" not in record]
        self.stages = [record for record in records if record["kind"] == "stages" and "error" not in record]
        self.failures = [record for record in records if record["kind"] in ("block", "stages") and "error" in record]

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


def memory_growth_mb(block):
    """Within the window: a loader whose memory is flat has about 0."""
    if not block.get("pss") or not block.get("pss_at_open"):
        return None
    return (block["pss"] - block["pss_at_open"]) / 1e6


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


def _markdown(titles, rows):
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _main_table(results, baseline):
    """One line a competitor, ratios of the baseline to it with 95 % intervals."""
    rows = []
    for name in results.names:
        check = results.checks.get(name, {})
        pixels = f"{check['max']:.3g}, {check['mean']:.2g}" if "max" in check else check.get("note", "-")
        if "originals" in check:
            pixels += f"; of the photos themselves {check['originals']['mean']:.2g}"
        own = name == baseline
        growth = _shown(list(results.by_round(name, memory_growth_mb).values()), 0)
        rows.append(
            [
                name,
                _shown(list(results.by_round(name, images_per_s).values()), 0),
                "" if own else _shown(results.ratios(baseline, name, images_per_s), 2, interval=True),
                _shown(list(results.by_round(name, cpu_ms_per_image).values()), 2),
                "" if own else _shown(results.ratios(baseline, name, cpu_ms_per_image), 2, interval=True),
                _shown(list(results.by_round(name, first_batch_s).values()), 1),
                _shown(list(results.by_round(name, memory_mb).values()), 0) + (f" ({growth})" if growth != "-" else ""),
                pixels,
            ]
        )
    titles = ["competitor", "images/s", f"{baseline} is faster by", "CPU ms/image"]
    titles += [f"{baseline} takes of its CPU time", "first batch, s", "memory, MB (growth)"]
    return _markdown(titles + ["pixels against Pillow: max, mean"], rows)


def ours(name):
    return name.startswith("penstock")


def _goals_table(results):
    """Speed of each penstock over each peer, and what it shall be where there is a goal."""
    goals = results.header.get("goals", {})
    mine = [name for name in results.names if name in goals or (ours(name) and "avx2" in name and "@" not in name)]
    peers = [name for name in results.names if not ours(name) and "@" not in name]
    rows = []
    for peer in peers:
        row = [peer]
        for name in mine:
            ratio = _shown(results.ratios(name, peer, images_per_s), 2, interval=True)
            goal = goals.get(name, {}).get(peer)
            row.append(ratio if goal is None or ratio == "-" else f"{ratio}; goal {goal}")
        rows.append(row)
    if not rows or not mine:
        return []
    return ["", *_markdown(["faster than", *mine], rows)]


def epochs_to_pay(results, preparation, name, reference):
    """How many epochs a preparation must serve until it has paid, against reading the plain folder with `reference`:
    None where it never does, or where one of them was not measured."""
    rates = [list(results.by_round(who, images_per_s).values()) for who in (name, reference)]
    if not all(rates):
        return None
    mine, theirs = (float(np.median(rate)) for rate in rates)
    saved = preparation["images"] / theirs - preparation["images"] / mine
    return preparation["seconds"] / saved if saved > 0 else None


def _preparations_table(results):
    before = 1e3 * results.header.get("data", {}).get("kb", {}).get("mean", 0)
    rows = []
    for record in results.preparations:
        if not record.get("ok"):
            continue
        encoded = record.get("encoded_bytes")
        for name in record["used_by"]:
            if name not in results.names or "@" in name:
                continue
            pays = []
            for reference in ("penstock", "torch"):
                epochs = epochs_to_pay(results, record, name, reference)
                missing = "never" if reference in results.names else "-"
                pays.append(missing if epochs is None else f"{epochs:.{0 if epochs >= 10 else 1}f}")
            rows.append(
                [
                    name,
                    record["note"],
                    f"{record['seconds']:.1f}",
                    f"{1000 * record['seconds'] / record['images']:.2f}",
                    f"{1000 * record['cpu_seconds'] / record['images']:.2f}",
                    f"{record['bytes'] / record['images'] / 1e3:.1f}",
                    f"{encoded / record['images'] / 1e3:.1f}" if encoded else f"{before / 1e3:.1f}, as they are",
                    *pays,
                ]
            )
    if not rows:
        return []
    titles = ["competitor", "what is prepared", "s", "ms/image", "CPU ms/image", "KB/image on the disk"]
    titles += ["KB/image decoded", "pays after epochs, against penstock on the folder", "against torch on the folder"]
    said = f"Formats of their own; the photos have {before / 1e3:.1f} KB in the mean."
    return ["", said, "", *_markdown(titles, rows)]


STAGES = (
    ("read", "read_ms"),
    ("header, draws", "header_ms"),
    ("entropy (Huffman)", "entropy_ms"),
    ("IDCT to colour", "pixels_ms"),
    ("resample", "resample_ms"),
    ("finish", "finish_ms"),
    ("other", "other_ms"),
    ("all", "whole_ms"),
)


def _stages_table(results):
    names = list(dict.fromkeys(record["name"] for record in results.stages))
    rows = []
    for name in names:
        mine = [record for record in results.stages if record["name"] == name]
        medians = [float(np.median([record[key] for record in mine])) for _, key in STAGES]
        whole, entropy = medians[-1], medians[2]
        limit = f"{1000 / entropy:.0f} ({whole / entropy:.1f})" if entropy > 0 else "-"
        skipped = sum(record.get("left_out", 0) for record in mine)
        share = 100 * skipped / max(1, skipped + sum(record["images"] for record in mine))
        rows.append([name, *(f"{value:.3f}" for value in medians), limit, mine[0]["vectors"], f"{share:.1f} %"])
    if not rows:
        return []
    titles = ["CPU ms/image and thread", *(title for title, _ in STAGES)]
    titles += ["the limit: entropy alone, images/s and core (times faster)", "vectors", "files not counted"]
    return ["", *_markdown(titles, rows)]


def _scaling_table(results):
    """What further threads bring: the rate with the main count over that with another."""
    main = results.header.get("arguments", {}).get("threads", ["?"])
    main = main[0] if isinstance(main, list) else main
    rows = []
    for name in results.names:
        base, at, threads = name.partition("@")
        if at and base in results.names:
            ratio = _shown(results.ratios(base, name, images_per_s), 2, interval=True)
            rate = _shown(list(results.by_round(name, images_per_s).values()), 0)
            rows.append([base, threads, rate, f"{main} threads are {ratio} times as fast"])
    return ["", *_markdown(["competitor", "threads", "images/s", "scaling"], rows)] if rows else []


def _handover_line(results):
    found = []
    for name in results.names:
        base = name.replace("_embedded", "")
        if name == base:
            continue
        for delivered in (base, base + "_mpi"):
            if delivered in results.names:
                found.append(f"{delivered} {_shown(results.ratios(delivered, name, images_per_s), 3, interval=True)}")
    return ["", "Delivered over embedded, images/s: " + "; ".join(found) + "."] if found else []


def table(results, baseline):
    """Markdown: the competitors, the goals, the formats, the stages, the threads; and how it was measured."""
    lines = _main_table(results, baseline)
    lines += _goals_table(results) + _preparations_table(results) + _stages_table(results)
    lines += _scaling_table(results) + _handover_line(results)
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


STAGE_COLOURS = ("#9aa5b1", "#c9d1d9", "#1b7f79", "#4db6ac", "#b5651d", "#e0b15e", "#e8e8e8")


def _stage_bars(results, names, top, left, width):
    """A bar a name, put together of its stages, and the legend."""
    medians = {
        name: [
            max(0.0, float(np.median([record[key] for record in results.stages if record["name"] == name])))
            for _, key in STAGES[:-1]
        ]
        for name in names
    }
    longest = max(sum(values) for values in medians.values()) or 1.0
    parts = [f'<text x="{left}" y="{top}" class="title">CPU ms per image by stage, one thread</text>']
    for line, (name, values) in enumerate(medians.items()):
        y, x = top + 20 + line * 34, float(left)
        parts.append(f'<text x="{left - 12}" y="{y + 15}" text-anchor="end">{_escape(name)}</text>')
        for colour, value in zip(STAGE_COLOURS, values):
            extent = (width - 70) * value / longest
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="{extent:.1f}" height="22" fill="{colour}"/>')
            x += extent
        parts.append(f'<text x="{x + 7:.1f}" y="{y + 15}" class="value">{sum(values):.2f}</text>')
    y, x = top + 20 + len(names) * 34 + 4, left
    for (title, _), colour in zip(STAGES[:-1], STAGE_COLOURS):
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16}" y="{y + 11}" class="value">{_escape(title)}</text>')
        x += 30 + 7 * len(title)
    return parts


def svg(results, baseline):
    """Two panels of bars, images/s and CPU ms per image; below them penstock's stages, where they were measured."""
    names = results.names
    staged = list(dict.fromkeys(record["name"] for record in results.stages))
    bottom = 56 + len(names) * 34 + 24
    height = bottom + (len(staged) * 34 + 70 if staged else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="920" height="{height}" viewBox="0 0 920 {height}">',
        "<style>text{font:13px sans-serif;fill:#222}.title{font-weight:bold}.value{font-size:12px}</style>",
        f'<rect width="920" height="{height}" fill="#fff"/>',
    ]
    for line, name in enumerate(names):
        parts.append(f'<text x="198" y="{71 + line * 34}" text-anchor="end">{_escape(name)}</text>')

    def colour_of(name):
        return "#1b7f79" if ours(name) or name == baseline else "#9aa5b1"

    for left, title, value in (
        (210, "images/s, more is better", images_per_s),
        (575, "CPU ms per image, less is better", cpu_ms_per_image),
    ):
        rows = [(name, median_with_interval(list(results.by_round(name, value).values()))) for name in names]
        parts += _panel(left, 335, title, rows, colour_of)
    if staged:
        parts += _stage_bars(results, staged, bottom, 210, 700)
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
