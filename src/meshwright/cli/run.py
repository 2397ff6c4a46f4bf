"""`meshwright run`: run a plan for real, check what comes out, and time it beside the library's default."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from meshwright.cli import options
from meshwright.cli.output import print_json, print_table, say, stdout_kept
from meshwright.cost.model import CostModel
from meshwright.errors import SpecError
from meshwright.measure.trials.runners import ENGINES, make_runner, start_locally
from meshwright.measure.trials.trial import DTYPES, Payload, Trial, check_memory, payloads, run_trials
from meshwright.placement.layout import layout_of
from meshwright.planning.plan import Plan, predict, ratio
from meshwright.planning.planfile import read_plan, where_document
from meshwright.runtime.calls import describe
from meshwright.runtime.launch import check_local
from meshwright.runtime.role import program_at
from meshwright.runtime.signals import end_at_once
from meshwright.text.units import format_seconds, format_size, parse_bytes

ONE_MACHINE = (
    "note: all ranks are on this machine, whose links are not the plan's: what counts is that results are right, not "
    "how long they take"
)


@click.command()
@options.plan
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    required=True,
    help="What to run it on. torch is started by torchrun, mpi by mpirun, jax on its devices, numpy anywhere.",
)
@click.option("--local", is_flag=True, help="Start all ranks on this machine: torchrun, mpirun, or JAX's host devices.")
@click.option(
    "--bytes", "size", metavar="BYTES", help="The payload of every reduction, like 4MiB, instead of the plan's."
)
@click.option("--dtype", type=click.Choice(DTYPES), default="float32")
@options.number("--repeat", 5, "How often to time each.", most=10_000)
@options.time("--timeout", "60s", "How long a rank waits for the others.")
@options.device
@options.json
def run(
    plan_path: Path,
    engine: str,
    local: bool,
    size: str | None,
    dtype: str,
    repeat: int,
    timeout: float,
    device: str | None,
    as_json: bool,
) -> None:
    """Run the plan file PLAN on made-up data, check every rank's result, and time it beside the library's default.

    Examples:

    \b
      torchrun --nproc-per-node=8 -m meshwright run plan.json --engine torch
      mpirun -n 8 python -m meshwright run plan.json --engine mpi
      meshwright run plan.json --engine torch --local

    Exit code 0: every result is right. 1: one is not. 2: bad input. 3: the processes do not fit the plan, or one of
    them died or did not come in time. Launchers may turn all but 0 into a code of their own.
    """
    plan = read_plan(plan_path)
    if not plan.reductions:
        raise SpecError(
            f"there is nothing to run: {plan_path} has no reductions, only transfers, which need no program"
        )
    devices = plan.placement.system.devices
    wanted = payloads(plan, dtype, None if size is None else parse_bytes(size))
    if local and engine in ("torch", "mpi"):
        given = {"--dtype": dtype, "--repeat": repeat, "--timeout": timeout, "--bytes": size, "--device": device}
        words = [str(word) for option in given.items() if option[1] is not None for word in option]
        arguments = ["run", str(plan_path), "--engine", engine, *words, *(["--json"] if as_json else [])]
        ended = start_locally(engine, devices, arguments)
        say(ONE_MACHINE)
        sys.exit(ended)
    if engine in ("jax", "numpy"):
        for payload in wanted:
            check_memory(payload, interpreted=engine == "numpy")
    if local and engine == "jax":
        check_local(devices)
    trials = []
    end_at_once()
    with stdout_kept():
        runner = make_runner(engine, timeout, device, devices if local else None)
        runner.load(plan)
        leads = 0 in runner.ranks
        for trial in run_trials(runner, wanted, repeat):
            trials.append(trial)
            if leads and not as_json:
                say(f"{len(trials)} of {len(wanted)}: {describe(plan.reductions[trial.number])}")
        runner.close()
    if leads:
        _report(plan, engine, trials, wanted, as_json)
    if engine == "numpy" or local:
        say(ONE_MACHINE)
    if any(trial.faults for trial in trials):
        sys.exit(1)


def _report(plan: Plan, engine: str, trials: list[Trial], wanted: list[Payload], as_json: bool) -> None:
    rows: list[dict[str, Any]] = []
    for trial, payload in zip(trials, wanted, strict=True):
        planned = plan.reductions[trial.number]
        called = program_at(planned, payload.bytes)
        layout = layout_of(plan.placement, planned.communication.axes)
        one = replace(planned.communication, bytes=payload.bytes)
        predicted = predict(CostModel(layout, plan.library, payload.bytes), one, called)
        tuned = planned.tuned_at(payload.bytes)
        rows.append(
            {
                "reduction": describe(planned),
                "program": called.text(plan.hierarchy(planned)),
                "bytes": payload.bytes,
                "predicted_seconds": predicted.seconds,
                "predicted_default_seconds": predicted.default_seconds,
                "seconds": trial.seconds,
                "default_seconds": trial.default_seconds,
                **({"tuned_bytes": tuned.bytes, "tuned_seconds": tuned.chosen.seconds} if tuned else {}),
                "speedup": ratio(trial.default_seconds, trial.seconds),
                "correct": not trial.faults,
                "faults": list(trial.faults),
            }
        )
    if as_json:
        print_json({"engine": engine, **where_document(plan), "reductions": rows})
        return
    cells = []
    for row in rows:
        times = [format_seconds(row[key]) for key in ("seconds", "predicted_seconds", "default_seconds")]
        result = "right" if row["correct"] else "WRONG"
        bytes_text, speedup = format_size(row["bytes"]), f"{row['speedup']:.2f}x"
        cells.append([row["reduction"], bytes_text, *times, speedup, result, row["program"]])
    print_table(["reduction", "bytes", "time", "predicted", "default", "speedup", "result", "program"], cells)
    for row in rows:
        if "tuned_seconds" in row:
            time = f"{format_seconds(row['tuned_seconds'])} for {format_size(row['tuned_bytes'])}"
            say(f"{row['reduction']}, {format_size(row['bytes'])}: tuned, when it took {time}")
        for fault in row["faults"][:10]:
            say(f"{row['reduction']}: {fault}")
