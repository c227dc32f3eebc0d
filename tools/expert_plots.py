#!/usr/bin/env python3
"""Draws what `althing moe-sweep --json` and `althing load-table --json` printed, for docs/expert-control.md.

    tools/expert_plots.py SWEEP.jsonl LOAD.jsonl FOLDER

Writes FOLDER/moe-sweep.svg (divergence from the dropless model and equal most likely tokens, by capacity factor, at the largest batch of the sweep) and
FOLDER/load-table.svg (sigma over mean and waste by batch). Readable on light and on dark ground.
"""
import argparse
import json
import math
from html import escape
from pathlib import Path

PANEL, HEIGHT, LEFT, BOTTOM, TOP = 360, 260, 56, 40, 34
STYLE = """<style>
text { font: 12px sans-serif; fill: darkslategray } .title { font-weight: bold } .axis { stroke: gray; stroke-width: 1 } .grid { stroke: gray; stroke-opacity: 0.3; stroke-width: 1 }
.a { stroke: #1668b5; fill: #1668b5 } .b { stroke: #c2541c; fill: #c2541c } .line { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) { text { fill: gainsboro } .a { stroke: #6db3f2; fill: #6db3f2 } .b { stroke: #f2995e; fill: #f2995e } }
</style>"""


def panel(left, title, x_label, ticks, top, series, percent=False):
    """One diagram: series are (class, name, [(x, y)]); ticks are [(x, text)]; y runs from 0 to `top`."""
    low, high = min(x for x, _ in ticks), max(x for x, _ in ticks)

    def x_of(x):
        return left + LEFT + (x - low) / (high - low) * (PANEL - LEFT - 20)

    def y_of(y):
        return HEIGHT - BOTTOM - y / top * (HEIGHT - BOTTOM - TOP)

    parts = [f'<text class="title" x="{left + LEFT}" y="16">{escape(title)}</text>']
    for i in range(5):
        y = top * i / 4
        parts.append(f'<line class="grid" x1="{x_of(low):.1f}" x2="{x_of(high):.1f}" y1="{y_of(y):.1f}" y2="{y_of(y):.1f}"/>')
        parts.append(f'<text text-anchor="end" x="{x_of(low) - 6:.1f}" y="{y_of(y) + 4:.1f}">{f"{100 * y:.0f} %" if percent else f"{y:g}"}</text>')
    parts.append(f'<line class="axis" x1="{x_of(low):.1f}" x2="{x_of(high):.1f}" y1="{y_of(0):.1f}" y2="{y_of(0):.1f}"/>')
    parts += [f'<text text-anchor="middle" x="{x_of(x):.1f}" y="{HEIGHT - BOTTOM + 16}">{escape(text)}</text>' for x, text in ticks]
    parts.append(f'<text text-anchor="middle" x="{(x_of(low) + x_of(high)) / 2:.1f}" y="{HEIGHT - 6}">{escape(x_label)}</text>')
    for i, (kind, name, points) in enumerate(series):
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        parts.append(f'<polyline class="line {kind}" points="{path}"/>')
        parts += [f'<circle class="{kind}" cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3"/>' for x, y in points]
        y = (HEIGHT - BOTTOM - 36 if percent else TOP) + 16 * i  # shares stay high, other figures fall
        parts.append(f'<rect class="{kind}" x="{x_of(high) - 80:.1f}" y="{y - 6}" width="10" height="4"/><text x="{x_of(high) - 65:.1f}" y="{y}">{escape(name)}</text>')
    return "\n".join(parts)


def svg(panels, what):
    width = PANEL * len(panels)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" role="img" aria-label="{escape(what)}">\n'
            f"{STYLE}\n" + "\n".join(panels) + "\n</svg>\n")


def sweep_plot(rows):
    batch = max(row["batch"] for row in rows)
    limited = [row for row in rows if row["batch"] == batch and row["capacity_factor"] is not None and row["temperature"] == 1]
    factors = sorted({row["capacity_factor"] for row in limited})
    policies = [policy for policy in ("reroute", "drop") if any(row["policy"] == policy for row in limited)]

    def lines(figure):
        return [(kind, policy, sorted((row["capacity_factor"], row[figure]) for row in limited if row["policy"] == policy)) for kind, policy in zip("ab", policies)]

    ticks = [(factor, f"{factor:g}") for factor in factors]
    most = max(row["divergence_nats"] for row in limited)
    return svg([panel(0, f"KL from the dropless model (nats), {batch} rows", "capacity factor", ticks, math.ceil(most) or 1, lines("divergence_nats")),
                panel(PANEL, "same most likely token", "capacity factor", ticks, 1, lines("match"), percent=True)],
               "Divergence from the dropless model and equal tokens, by capacity factor")


def load_plot(rows):
    ticks = [(math.log2(row["batch"]), str(row["batch"])) for row in rows]
    spread = [(math.log2(row["batch"]), row["sigma_over_mean"]) for row in rows]
    waste = [(math.log2(row["batch"]), row["waste_mean"]) for row in rows]
    return svg([panel(0, "sigma / mean of tokens an expert", "rows of a step", ticks, 2, [("a", "sigma/mean", spread)]),
                panel(PANEL, "waste if padded to the hottest", "rows of a step", ticks, 1, [("b", "waste", waste)], percent=True)],
               "How evenly batches load experts")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("load", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    for source, name, plot in ((options.sweep, "moe-sweep.svg", sweep_plot), (options.load, "load-table.svg", load_plot)):
        rows = [json.loads(line) for line in source.read_text().splitlines() if line.strip()]
        if not rows:
            parser.error(f"{source} has no lines; make them with --json")
        (options.folder / name).write_text(plot(rows))


if __name__ == "__main__":
    main()
