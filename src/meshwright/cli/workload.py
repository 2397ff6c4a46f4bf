"""`meshwright workload`: what a training step sends."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import click

from meshwright.cli import options
from meshwright.cli.output import print_json, print_parts, print_table, print_text, say
from meshwright.errors import SpecError
from meshwright.placement.placement import parse_axes
from meshwright.text.spec import format_counts
from meshwright.text.units import format_amount, format_seconds, format_sizes
from meshwright.workload.communication import Communication
from meshwright.workload.llm import AXES, DTYPES, Model, Recompute
from meshwright.workload.read import PARSERS, load_workload, parse_share, workload_names, write_workload
from meshwright.workload.sends import GROUPS
from meshwright.workload.traces.read import workload_of_traces
from meshwright.workload.workload import Workload, derive


@click.group()
def workload() -> None:
    """Show, derive or record what a training step sends, for `meshwright plan --workload`."""


@workload.command("list")
@options.json
def list_workloads(as_json: bool) -> None:
    """List the workloads that ship with the package."""
    found = [load_workload(name) for name in workload_names()]
    if as_json:
        print_json({"workloads": [{"name": one.name, "axes": dict(one.axes)} for one in found]})
        return
    rows = ([one.name, format_counts(one.axes), prod(one.axes.values()), len(one.workload().lines)] for one in found)
    print_table(["workload", "axes", "devices", "communications"], rows)


_AXES_HELP = f"The axes and their sizes, like data=4,shard=8,tensor=8; of {', '.join(AXES)}."


@workload.command()
@click.argument("spec", metavar="WORKLOAD", shell_complete=options.WORKLOADS)
@click.option("--axes", "axes_spec", metavar="AXES", help="Other sizes, for a workload that describes its model.")
@options.out("Write the communications to this file.")
@options.json
def show(spec: str, axes_spec: str | None, out: Path | None, as_json: bool) -> None:
    """Show a workload: one that ships with the package, or the path of a .yaml file."""
    _report(load_workload(spec).workload(parse_axes(axes_spec) if axes_spec else None), out, as_json)


def _option(name: str, text: str, required: bool = False) -> Callable[[Any], Any]:
    flag = "--" + name.replace("_", "-")

    def value(_ctx: click.Context, _parameter: click.Parameter, given: str | None) -> Any:
        try:
            return None if given is None else PARSERS[name](given)
        except SpecError as error:
            raise SpecError(f"{flag}: {error}") from None

    return click.option(flag, name, callback=value, metavar=name.upper(), required=required, help=text)


@workload.command()
@_option("params", "All parameters, like 70B; those of experts included.", required=True)
@_option("layers", "Transformer layers.", required=True)
@_option("hidden", "The width of the model.", required=True)
@_option("seq", "Tokens in a sequence.", required=True)
@_option("micro_batch", "Sequences in a micro-batch.", required=True)
@_option("global_batch", "Sequences in a step, of all devices.", required=True)
@_option("dtype", f"The type of weights and activations: {', '.join(DTYPES)} [default: bf16].")
@_option("gradients", "The type in which gradients are reduced [default: fp32].")
@_option("heads", "Attention heads [default: of 128 each].")
@_option("kv_heads", "Heads of keys and values [default: as many].")
@_option("experts", "Experts in a layer [default: none].")
@_option("top_k", "Experts that a token goes to [default: 1].")
@_option("expert_params", "The parameters of all experts, like 135B.")
@click.option("--sequence-parallel", is_flag=True, help="Gather and scatter activations instead of all-reducing them.")
@_option("recompute", f"What is computed again: {', '.join(Recompute)} [default: selective].")
@_option("device_memory", "What a device has, like 80GB: a hard limit.")
@_option("flops", "What a device reaches, like 400TFLOP/s: computing and the pipeline's bubble count too.")
@click.option("--axes", "axes_spec", required=True, metavar="AXES", help=_AXES_HELP)
@click.option(
    "--hide",
    multiple=True,
    metavar="GROUP=SHARE",
    help="The share of a group's time that is hidden behind computation, like gradients=0.8; groups: "
    f"{', '.join(GROUPS)}. May be given several times.",
)
@click.option("--name", default="llm", help="What the workload is called.")
@options.out("Write the communications to this file.")
@options.json
def llm(axes_spec: str, hide: tuple[str, ...], name: str, out: Path | None, as_json: bool, **values: Any) -> None:
    """Derive the communications of one training step of a language model, each with its formula and source."""
    model = Model(**{key: value for key, value in values.items() if value is not None})
    _report(derive(name, model, parse_axes(axes_spec), _overlap(hide)), out, as_json)


def _overlap(hide: tuple[str, ...]) -> dict[str, float]:
    shares = {}
    for text in hide:
        group, equals, share = (word.strip() for word in text.partition("="))
        if not equals or group not in GROUPS:
            raise SpecError(f"--hide {text!r} is not GROUP=SHARE, like gradients=0.8; groups: {', '.join(GROUPS)}")
        if group in shares:
            raise SpecError(f"--hide {group} is given twice")
        shares[group] = parse_share(share)
    return shares


@workload.command("from-trace")
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=options.FILE)
@click.option(
    "--axes",
    "axes_spec",
    metavar="AXES",
    help="The program's axes in row-major order of its ranks, like data=4,tensor=2 [default: the fewest that fit].",
)
@click.option("--steps", type=click.IntRange(1), help="How many steps the files have [default: their ProfilerStep#].")
@click.option("--name", default="recorded", help="What the workload is called.")
@options.out("Write the communications to this file.")
@options.json
def from_trace(
    files: tuple[Path, ...], axes_spec: str | None, steps: int | None, name: str, out: Path | None, as_json: bool
) -> None:
    """Find out what a training step sends from traces of its ranks.

    A FILE is a trace that torch.profiler wrote with record_shapes=True (.json or .json.gz), or a dump of PyTorch's
    Flight Recorder (its pickle or its JSON). One rank tells its own calls; where ranks differ, give a file of each.
    Or it is the text of a program that XLA compiled, which tells the calls of all.

    \b
    meshwright workload from-trace trace.json.gz --out step.yaml
    meshwright workload from-trace nccl_trace_rank_0 nccl_trace_rank_1 --steps 10 --axes data=4,tensor=2
    """
    found = workload_of_traces(files, parse_axes(axes_spec) if axes_spec else None, steps, name)
    for note in found.notes:
        say(f"note: {note}")
    for one in found.left_out:
        say(f"left out: {one}")
    more = {"left_out": [one.document() for one in found.left_out], "notes": list(found.notes)}
    _report(found.workload, out, as_json, more)


def _report(made: Workload, out: Path | None, as_json: bool, more: Mapping[str, Any] | None = None) -> None:
    if out is not None:
        write_workload(made, out)
        say(f"wrote {len(made.lines)} communications to {out}")
    if as_json:
        symbols = made.model.symbols(made.axes) if made.model else {}
        print_json({**made.document(), "axes": dict(made.axes), "symbols": symbols, **needs(made), **(more or {})})
        return
    if made.axes:
        click.echo(f"{made.name}, axes {format_counts(made.axes)}")
    sources = list(dict.fromkeys(line.source for line in made.lines if line.source))
    print_table(DESCRIBED, described(made.communications))
    if any(line.formula for line in made.lines):
        click.echo("\nHow many bytes, and how often:")
    for line, one in zip(made.lines, made.communications, strict=True):
        source = f" [{sources.index(line.source) + 1}]" if line.source else ""
        if line.formula:
            print_text(f"  {one.name}: {line.formula}{source}")
    if made.model is not None:
        used = {word.strip(",:") for line in made.lines for word in line.formula.split()}
        symbols = made.model.symbols(made.axes)
        click.echo()
        print_parts("with " + "; ".join(f"{letter} = {text}" for letter, text in symbols.items() if letter in used))
    for number, text in enumerate(sources, 1):
        print_text(f"[{number}] {text}")
    print_needs(made)


DESCRIBED = ("communication", "kind", "over", "bytes", "count", "hidden")
"""The columns of what `described` gives."""


def described(communications: Sequence[Communication]) -> list[list[object]]:
    """Communications as rows of a table."""
    sizes = format_sizes([one.bytes for one in communications])
    return [
        [one.name, one.goal, "+".join(one.axes), size, one.count, f"{one.hidden:.0%}" if one.hidden else ""]
        for one, size in zip(communications, sizes, strict=True)
    ]


def needs(made: Workload) -> dict[str, float | None]:
    """What a device needs for a workload, as plain data."""
    memory = {"memory_bytes": made.memory, "device_memory_bytes": made.device_memory}
    return {**memory, "compute_seconds": made.compute}


def print_needs(made: Workload) -> None:
    """What a device needs for a workload, as far as it is known."""
    if made.memory is not None:
        limit = ""
        if made.device_memory is not None:
            over = ", which is too much" if made.memory > made.device_memory else ""
            limit = f" of {format_amount(made.device_memory, made.device_memory)}{over}"
        click.echo(f"memory per device: {format_amount(made.memory, made.device_memory or 0)}{limit}")
    if made.compute is not None:
        click.echo(f"computing and waiting in the pipeline: {format_seconds(made.compute)}")
