"""Draws clusters, placements, programs and chunks as SVG, for README and docs/ideas.md. docs/pictures.py calls it.

Everything in the drawings comes from the package or from the committed measurements.
"""

import json
from pathlib import Path
from statistics import median

from meshwright import Goal, Placement, parse_program, parse_reduction, parse_system, plan
from meshwright.language.program import step_text
from meshwright.language.semantics import State, apply_step, state_of
from meshwright.placement.hierarchy import parse_hierarchy
from meshwright.show.timeline import Timeline, timeline
from meshwright.text.units import format_seconds

COLORS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1")
INK, FAINT, PALE = "#1f2933", "#6b7785", "#eef1f5"
STUDY = Path(__file__).parents[1] / "benchmarks" / "results" / "study-4x4.jsonl"


def text(x: float, y: float, words: str, size: int = 14, color: str = INK, anchor: str = "middle", **more: str) -> str:
    """Words, centred at x unless told otherwise."""
    given = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{color}" text-anchor="{anchor}"{given}>{words}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, line: str = "none", round_: float = 6) -> str:
    """A box with round corners."""
    size = f'width="{width}" height="{height}" rx="{round_}"'
    return f'<rect x="{x}" y="{y}" {size} fill="{fill}" stroke="{line}" stroke-width="1.5"/>'


def svg(width: int, height: int, title: str, parts: list[str]) -> str:
    """A whole picture. Its ground is white, so that it can be read on dark pages too."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    font = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"'
    shown = "\n".join([f"<title>{title}</title>", box(0, 0, width, height, "#ffffff", round_=10), *parts])
    return f'{head} {font} role="img">\n{shown}\n</svg>\n'


def measured(matrix: list[list[int]]) -> tuple[float, int]:
    """What the study measured for gloo's own all-reduce over data: seconds, and bytes at the busiest node's port."""
    for line in STUDY.read_text().splitlines():
        found = json.loads(line)
        if (found.get("matrix"), found.get("over"), found.get("program")) == (matrix, ["data"], "default"):
            return median(found["seconds"]), found["links"]["node"]
        if (found.get("matrix"), found.get("over"), found.get("program")) == (matrix[::-1], ["shard"], "default"):
            return median(found["seconds"]), found["links"]["node"]  # the same groups under the other name
    raise ValueError(f"{STUDY} has no placement {matrix}")


def cluster() -> str:
    """Two placements of four groups on four nodes of four devices, with what the study measured."""
    system = parse_system("node=4@20Mbit/s,gpu=4@200Mbit/s")
    parts = []
    cases = (
        (((4, 1), (1, 4)), "Groups spread over the nodes", "every sum crosses the network"),
        (((1, 4), (4, 1)), "Groups inside the nodes", "the network stays free"),
    )
    times = []
    for number, (matrix, title, why) in enumerate(cases):
        left = 24 + 400 * number
        placement = Placement(system, ("data", "shard"), matrix)
        seconds, sent = measured([list(row) for row in matrix])
        times.append(seconds)
        busy = sent > 1e6
        parts.append(text(left + 176, 38, title, 18, font_weight="600"))
        parts.append(box(left, 56, 352, 10, "#d1495b" if busy else "#d5dbe3", round_=5))
        parts.append(text(left + 176, 82, "network" + (": full" if busy else ": idle"), 12, FAINT))
        for node in range(4):
            x = left + 90 * node
            parts.append(box(x + 36, 64, 10, 32, "#d1495b" if busy else "#d5dbe3", round_=0))
            parts.append(box(x, 94, 82, 112, PALE, "#b8c2cc"))
            for gpu in range(4):
                shard = placement.coordinates(4 * node + gpu)["shard"]
                parts.append(box(x + 10 + 33 * (gpu % 2), 104 + 33 * (gpu // 2), 29, 29, COLORS[shard], round_=4))
            parts.append(text(x + 41, 194, f"node {node}", 12, FAINT))
        parts.append(text(left + 176, 244, f"{seconds:.3g} s", 26, font_weight="700"))
        parts.append(text(left + 176, 266, why, 13, FAINT))
    parts.append(text(400, 250, f"{times[0] / times[1]:.0f}x", 22, "#2f7d4f", font_weight="700"))
    said = "Devices of one colour add up 512 KiB with each other. Measured: gloo on 16 emulated devices."
    parts.append(text(400, 300, said, 12, FAINT))
    return svg(800, 316, "Two placements of the same four groups on four nodes", parts)


def matrix() -> str:
    """A placement as a matrix, and the coordinates that it gives to devices."""
    axes, rows = ("data", "shard"), ((1, 2), (2, 2))
    placement = Placement(parse_system("node=2@1GB/s,gpu=4@8GB/s"), axes, rows)
    parts = [text(86, 34, "the matrix", 14, FAINT), text(480, 34, "what it does with the devices", 14, FAINT)]
    for column, level in enumerate(("node 2", "gpu 4")):
        parts.append(text(112 + 56 * column, 66, level, 12, FAINT))
    for row, axis in enumerate(axes):
        parts.append(text(72, 101 + 44 * row, f"{axis} {placement.sizes[axis]}", 13, anchor="end"))
        for column in range(2):
            parts.append(box(90 + 56 * column, 78 + 44 * row, 44, 36, PALE, "#b8c2cc"))
            parts.append(text(112 + 56 * column, 102 + 44 * row, str(rows[row][column]), 16, font_weight="600"))
    for node in range(2):
        x = 230 + 266 * node
        parts.append(box(x, 48, 254, 130, PALE, "#b8c2cc"))
        parts.append(text(x + 127, 168, f"node {node}", 12, FAINT))
        for gpu in range(4):
            found = placement.coordinates(4 * node + gpu)
            parts.append(box(x + 10 + 60 * gpu, 60, 54, 88, COLORS[found["data"]]))
            for line, words in enumerate(
                (f"rank {4 * node + gpu}", f"data {found['data']}", f"shard {found['shard']}")
            ):
                parts.append(text(x + 37 + 60 * gpu, 84 + 24 * line, words, 12, "#ffffff"))
    return svg(780, 194, "A placement as a matrix", parts)


def program() -> str:
    """What four devices hold after each step of a program, by the exact semantics."""
    hierarchy = parse_hierarchy("node=2,gpu=2")
    steps = parse_program("ReduceScatter inside node; AllReduce across node; AllGather inside node", hierarchy)
    states: list[tuple[str, State]] = [("start", state_of(Goal.ALL_REDUCE.start, 4))]
    for step in steps.steps:
        states.append((step_text(step, hierarchy.names), apply_step(states[-1][1], step, hierarchy.radices)))
    parts = []
    for number, (name, state) in enumerate(states):
        left = 20 + 196 * number
        parts.append(text(left + 84, 30, name, 12, font_weight="600"))
        for device, held in enumerate(state):
            x = left + 42 * device + (6 if device > 1 else 0)
            parts.append(text(x + 18, 54, str(device), 11, FAINT))
            for part, contributors in enumerate(held):
                y = 62 + 26 * part
                parts.append(box(x, y, 36, 22, "#ffffff", "#d5dbe3", 3))
                filled = 36 * contributors.bit_count() / 4
                if filled:
                    parts.append(box(x, y, filled, 22, COLORS[part], round_=3))
    parts.append(text(400, 188, "columns: devices 0 to 3, two nodes; rows: the parts of the payload", 12, FAINT))
    parts.append(text(400, 206, "filled: how many of the four contributions are in it", 12, FAINT))
    return svg(800, 220, "What devices hold after each step", parts)


def chunks() -> str:
    """The same program step after step, and with the payload in chunks that flow through its steps."""
    system, sent = parse_system("rack=2@20Mbit/s,node=2@50Mbit/s,gpu=4@200Mbit/s"), [parse_reduction("data=4MiB")]
    lines: list[Timeline] = []
    for most in (1, 16):
        best = plan(system, {"data": 16}, sent, library="gloo", max_chunks=most, ranges=False).candidates[0]
        lines.append(timeline(best, best.reductions[0]))
    longest = max(line.seconds for line in lines)
    parts, top = [], 20.0
    for line, title in zip(lines, ("step after step", "in chunks"), strict=True):
        names = line.flows[0].names
        words = f"{title}: {format_seconds(line.seconds)}" + (f", {len(line.order)} chunks" * (len(line.order) > 1))
        parts.append(text(20, top + 16, words, 14, anchor="start", font_weight="600"))
        for row, name in enumerate(names):
            parts.append(text(266, top + 44 + 26 * row, name, 12, FAINT, "end"))
        for span in line.spans():
            x, y = 276 + 500 * span.start / longest, top + 29 + 26 * span.step
            width = max(1.0, 500 * (span.end - span.start) / longest - 1)
            parts.append(box(round(x, 1), y, round(width, 1), 20, COLORS[span.chunk % len(COLORS)], round_=2))
        top += 44 + 26 * len(names)
    return svg(800, int(top) + 8, "A program step after step, and in chunks", parts)


DRAWINGS = {"cluster": cluster, "matrix": matrix, "program": program, "chunks": chunks}


def draw(folder: Path) -> None:
    """Draw them all."""
    for name, make in DRAWINGS.items():
        (folder / f"{name}.svg").write_text(make())
