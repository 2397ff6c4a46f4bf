"""The report of the second study: tables of pipelined programs and of payloads, and the picture."""

from pathlib import Path
from typing import Any

from meshwright.text.units import format_bytes, format_seconds

PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "payloads.svg"

INSIDE = "ReduceScatter inside node; AllReduce across node; AllGather inside node"
SPLIT = "ReduceScatter inside node; ReduceScatter across node; AllGather across node; AllGather inside node"
FEW = "Reduce inside node; AllReduce masters of node; Broadcast inside node"


def page(found: dict[str, Any]) -> str:
    """The whole report."""
    lines = [*_systems(found), *_payloads(found["payloads"])]
    return "\n".join(lines) + "\n"


def _systems(found: dict[str, Any]) -> list[str]:
    """What chunks bring on each system."""
    lines = [
        "# Pipelined programs, measured",
        "",
        "Written by `python -m benchmarks.pipelines`. All-reduces over all devices of emulated clusters, with real",
        "gloo process groups, and the last row with Open MPI: the library's own, the best program step after step, and",
        "the best with the payload cut into chunks that flow through the steps. Both are chosen by the model: for gloo",
        "from the configured rates, with the latency and the rate of messages that were calibrated on other systems,",
        "for Open MPI from the rates alone. The bound is what no schedule on these links can beat, if there were no",
        "latency.",
        "",
        "| system | payload | bound | the library's own | step after step | in chunks | over the bound | gain |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found["systems"]:
        library = ", Open MPI" if row["library"] == "openmpi" else ""
        lines.append(
            f"| {row['system']}{library} | {format_bytes(row['bytes'])} | {format_seconds(row['bound'])} | "
            f"{format_seconds(row['default'])} | {format_seconds(row['unpipelined'])} | "
            f"{format_seconds(row['pipelined'])} | {row['pipelined'] / row['bound']:.3f}x | "
            f"{row['default'] / row['pipelined']:.2f}x |"
        )
    error, mpi = found["error"]["gloo"], found["error"]["openmpi"]
    lines += [
        "",
        "Gain is over the library's own. "
        f"The predicted times of {error['programs']} pipelined programs on gloo are off by {error['median']:.1%} in "
        f"the median and {error['p90']:.1%} at the 90th percentile; of {mpi['programs']} on Open MPI by "
        f"{mpi['median']:.1%} and {mpi['p90']:.1%}. The programs that were chosen:",
        "",
    ]
    for row in found["systems"]:
        library = ", Open MPI" if row["library"] == "openmpi" else ""
        lines.append(f"- {row['system']}{library}: {row['pipelined program']}")
    return lines


def _payloads(payloads_by_system: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Which program is best for small and large payloads."""
    lines = [
        "",
        "## Small and large payloads",
        "",
        "On the second system, with latency and without. Latency is what takes the time of small payloads on a real",
        "cluster: there the program with the fewest messages one after the other is to be chosen. Without it, small",
        "payloads measure how 16 processes take turns on two processors, and programs differ by how many messages all",
        "devices send together. 20 ms are to 50 Mbit/s what 2.5 us are to 400 Gbit/s.",
        "",
        "![Time over payload, predicted and measured](pictures/payloads.svg)",
    ]
    for system, payloads in payloads_by_system.items():
        lines += [
            "",
            f"### {system}",
            "",
            "| payload | chosen | measured | predicted | gloo's own | best measured | of | over best | spread |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for row in payloads:
            same = row["chosen"] == row["best program"]
            lines.append(
                f"| {format_bytes(row['bytes'])} | {row['chosen']} | {format_seconds(row['measured'])} | "
                f"{format_seconds(row['predicted'])} | {format_seconds(row['default'])} | "
                f"{format_seconds(row['best'])}: {'the same' if same else row['best program']} | {row['programs']} | "
                f"{row['over best']:.2f}x | {row['spread']:.0%} |"
            )
        lines += ["", "Where one program overtakes the other:", ""]
        eight = f"{SPLIT}, in 8 chunks"
        for first, second in ((FEW, INSIDE), (INSIDE, "AllReduce all"), (INSIDE, eight)):
            predicted, measured = (_crossing(payloads, first, second, which) for which in (1, 0))
            lines.append(f"- `{second}` over `{first}`: predicted from {predicted}, measured from {measured}")
    lines += [
        "",
        "Of: how many programs were measured, gloo's own not among them. Spread is how far the slowest repetition is",
        "from the fastest, in the median over programs. With latency, the eight best predicted with and without chunks",
        "are among those below 4 MiB. Without, only some other programs were tried, and at 4 and 16 KiB one was faster",
        "than the chosen by as much as repetitions are apart. What was measured stays when the choice changes, so that",
        "some programs in these two tables were measured on other days than the rest.",
    ]
    return lines


def _crossing(payloads: list[dict[str, Any]], first: str, second: str, which: int) -> str:
    """The payload from which on the second program is the faster one, between the sizes that were measured."""
    gaps = [(row["bytes"], row["all"][first][which] - row["all"][second][which]) for row in payloads]
    last_behind = max((k for k, (_, gap) in enumerate(gaps) if gap < 0), default=-1)
    if last_behind + 1 == len(gaps):
        return "nowhere"
    if last_behind < 0:
        return f"{format_bytes(gaps[0][0])} on"
    (low, behind), (high, ahead) = gaps[last_behind], gaps[last_behind + 1]
    return f"about {round((low + (high - low) * behind / (behind - ahead)) / 1024)} KiB"


def picture(found: dict[str, Any]) -> None:
    """Time over payload for the programs that are best somewhere, predicted as lines and measured as dots."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "meshwright"
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(found["payloads"]), figsize=(11, 4.5), sharey=True)
    shown = {"AllReduce all": "AllReduce all", FEW: "Reduce, AllReduce of masters, Broadcast"}
    shown |= {INSIDE: "ReduceScatter, AllReduce, AllGather", SPLIT: "two ReduceScatters, two AllGathers"}
    shown |= {f"{SPLIT}, in 8 chunks": "the same, in 8 chunks"}
    for axes, (system, payloads) in zip(panels, found["payloads"].items(), strict=True):
        sizes = [row["bytes"] for row in payloads]
        for number, (program, label) in enumerate(shown.items()):
            color = f"C{number}"
            axes.plot(sizes, [row["all"][program][1] for row in payloads], color=color, label=label)
            axes.plot(sizes, [row["all"][program][0] for row in payloads], "o", color=color)
        axes.plot(sizes, [row["bound"] for row in payloads], "k:", label="bound")
        axes.plot(sizes, [row["measured"] for row in payloads], "kx", markersize=9, label="chosen, measured")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("payload in bytes")
        axes.set_title(system, fontsize=10)
    panels[0].set_ylabel("seconds (lines: predicted, dots: measured)")
    panels[-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})
