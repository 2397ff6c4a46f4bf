"""Draws the pictures of the docs from the model. Needs the extra `report`.

python docs/pictures.py
"""

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
from drawings import draw

from meshwright import parse_reduction, plan, preset

PICTURES = Path(__file__).parent / "pictures"

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "meshwright"  # the same picture is the same file


def placements() -> None:
    """Three placements of the same two reductions: the library's own collectives, and the best programs."""
    system = preset("gcp-a100:4")
    axes = {"data": 4, "shard": 16}
    reductions = [parse_reduction("data=2GiB"), parse_reduction("shard=64MiB*80")]
    candidates = plan(system, axes, reductions).candidates
    words = {
        ((4, 1), (1, 16)): "data across nodes,\nshard inside a node\n(what frameworks do)",
        ((1, 4), (4, 4)): "data inside a node,\nshard across",
        ((2, 2), (2, 8)): "both split over\nnodes and GPUs",
    }
    figure, chart = plt.subplots(figsize=(8, 3.6), layout="constrained")
    colors = {"data": ("#9ecae1", "#2171b5"), "shard": ("#fdd0a2", "#d94801")}
    for place, candidate in enumerate(reversed(candidates)):
        for offset, kind in ((-0.2, "default_seconds"), (0.2, "seconds")):
            bottom = 0.0
            for planned in candidate.reductions:
                height = getattr(planned, kind) * planned.communication.count
                axis = planned.communication.axes[0]
                chart.bar(place + offset, height, 0.36, bottom, color=colors[axis][kind == "seconds"])
                bottom += height
            chart.text(place + offset, bottom + 0.08, f"{bottom:.2f} s", ha="center", fontsize=9)
        bound = candidate.bound_seconds
        chart.plot([place - 0.42, place + 0.42], [bound, bound], color="black", linewidth=1, linestyle=":")
    labels = [f"{words[c.placement.matrix]}\n{[list(row) for row in c.placement.matrix]}" for c in reversed(candidates)]
    chart.set_xticks(range(len(candidates)), labels, fontsize=9)
    chart.set_ylabel("predicted seconds per step")
    chart.set_ylim(0, 8.2)
    chart.spines[["top", "right"]].set_visible(False)
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=colors[axis][best])
        for axis, best in (("data", 0), ("data", 1), ("shard", 0), ("shard", 1))
    ]
    handles.append(plt.Line2D([], [], color="black", linewidth=1, linestyle=":"))
    names = [
        "data 2 GiB: AllReduce",
        "data: best program",
        "shard 80 x 64 MiB: AllReduce",
        "shard: best program",
        "bound",
    ]
    chart.legend(handles, names, ncols=3, fontsize=8, frameon=False, loc="upper right")
    figure.savefig(PICTURES / "placements.svg", metadata={"Date": None})


def main() -> None:
    """Draw them all."""
    PICTURES.mkdir(exist_ok=True)
    placements()
    draw(PICTURES)


if __name__ == "__main__":
    main()
