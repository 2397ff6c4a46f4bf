"""`meshwright workload`: what a training step sends."""

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import click

from meshwright.cli import options
from meshwright.cli.output import print_json, print_table, say
from meshwright.errors import SpecError
from meshwright.placement.placement import parse_axes
from meshwright.text.spec import format_counts
from meshwright.text.units import format_amount, format_seconds
from meshwright.workload.communication import Communication
from meshwright.workload.llm import AXES, DTYPES, Model, Recompute
from meshwright.workload.read import PARSERS, load_workload, parse_share, workload_names, write_workload
from meshwright.workload.sends import GROUPS
from meshwright.workload.workload import Workload, derive


@click.group()
def workload() -> None:
    """Show or derive what a training step sends, for `meshwright plan --workload`."""


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
@click.argument("spec", metavar="WORKLOAD")
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


def _report(made: Workload, out: Path | None, as_json: bool) -> None:
    if out is not None:
        write_workload(made, out)
        say(f"wrote {len(made.lines)} communications to {out}")
    if as_json:
        symbols = made.model.symbols(made.axes) if made.model else {}
        print_json({**made.document(), "symbols": symbols, **needs(made)})
        return
    if made.axes:
        click.echo(f"{made.name}, axes {format_counts(made.axes)}")
    sources = list(dict.fromkeys(line.source for line in made.lines if line.source))
    rows = []
    for line, one in zip(made.lines, made.communications, strict=True):
        source = f" [{sources.index(line.source) + 1}]" if line.source else ""
        rows.append([*described(one), f"{line.formula}{source}"])
    print_table([*DESCRIBED, "formula"], rows)
    if made.model is not None:
        used = {word.strip(",:") for line in made.lines for word in line.formula.split()}
        symbols = made.model.symbols(made.axes)
        click.echo("\nwith " + "; ".join(f"{letter} = {text}" for letter, text in symbols.items() if letter in used))
    for number, text in enumerate(sources, 1):
        click.echo(f"[{number}] {text}")
    print_needs(made)


DESCRIBED = ("communication", "kind", "over", "bytes", "count", "hidden")
"""The columns of what `described` gives."""


def described(one: Communication) -> list[object]:
    """A communication as cells of a table."""
    hidden = f"{one.hidden:.0%}" if one.hidden else ""
    return [one.name, one.goal, "+".join(one.axes), format_amount(one.bytes), one.count, hidden]


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
            limit = f" of {format_amount(made.device_memory)}{over}"
        click.echo(f"memory per device: {format_amount(made.memory)}{limit}")
    if made.compute is not None:
        click.echo(f"computing and waiting in the pipeline: {format_seconds(made.compute)}")
