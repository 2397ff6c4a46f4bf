"""`meshwright check`: is a program valid, and what does every device hold after each step?"""

import sys
from math import prod
from typing import Any

import click

from meshwright.cli import options
from meshwright.cli.output import print_json, print_table, print_text, say
from meshwright.errors import InvalidProgramError
from meshwright.language.goals import Goal
from meshwright.language.parse import parse_pipelined
from meshwright.language.program import Program, step_text
from meshwright.language.semantics import check_program
from meshwright.language.symbolic import NOTHING, State, device_kinds, reduced, run_symbolically, scattered
from meshwright.placement.hierarchy import Hierarchy


@click.command()
@click.argument("program_text", metavar="PROGRAM")
@options.hierarchy
@options.goal
@options.json
def check(program_text: str, hierarchy_spec: str, goal: str, as_json: bool) -> None:
    """Check that PROGRAM is valid, and show what the devices hold after each step.

    PROGRAM is, for example, "ReduceScatter inside node; AllReduce across node; AllGather inside node", or whatever
    `plan` prints, with chunks as well. Exit code 0: it is valid. 1: it is not, and the message says which step, which
    group and which rule. 2: it cannot be read.
    """
    hierarchy = options.given_hierarchy(hierarchy_spec)
    pipelined = parse_pipelined(program_text, hierarchy)
    for program, _ in pipelined.shares:
        try:
            check_program(program, hierarchy, Goal(goal))
        except InvalidProgramError as error:
            whose = f"in '{program.text(hierarchy)}': " if len(pipelined.shares) > 1 else ""
            message = f"{whose}{error}"
            if as_json:
                fault = {"step": error.step, "group": error.group, "rule": error.rule, "message": message}
                print_json({"valid": False, **fault})
            else:
                say(f"invalid: {message}")
            sys.exit(1)
    shares: list[dict[str, Any]] = [
        {"program": program.text(hierarchy), "chunks": chunks, "states": _states(program, hierarchy, Goal(goal))}
        for program, chunks in pipelined.shares
    ]
    text = pipelined.text(hierarchy)
    if as_json:
        # A program that is not pipelined has no shares, only its states.
        found = {"shares": shares} if pipelined.chunks > 1 else {"states": shares[0]["states"]}
        print_json({"valid": True, "program": text, "goal": goal, "hierarchy": str(hierarchy), **found})
        return
    print_text(f"valid: {text}")
    for title, share in zip(text.split(" | "), shares, strict=True):
        click.echo()
        if len(shares) > 1:
            print_text(f"{title}:")
        _print_states(share["states"])


def _print_states(states: list[dict[str, Any]]) -> None:
    rows = []
    for state in states:
        for number, kind in enumerate(state["devices"]):
            levels = [", ".join(kind[key]) or "-" for key in ("scattered", "reduced")]
            rows.append([state["after"] if number == 0 else "", kind["which"], kind["holds"], *levels])
    print_table(["after", "devices", "hold", "scattered along", "reduced over"], rows)


def _states(program: Program, hierarchy: Hierarchy, goal: Goal) -> list[dict[str, Any]]:
    """The start and the state after each step, each as kinds of devices that hold alike."""
    names = ["start", *(f"{n} {step_text(step, hierarchy.names)}" for n, step in enumerate(program.steps, 1))]
    states = run_symbolically(program, len(hierarchy.names), goal)
    return [{"after": name, "devices": _kinds(state, hierarchy)} for name, state in zip(names, states, strict=True)]


def _kinds(state: State, hierarchy: Hierarchy) -> list[dict[str, Any]]:
    levels = len(hierarchy.names)
    found = [
        (", ".join(f"{hierarchy.names[k]}{'=0' if is_zero else '>0'}" for k, is_zero in zero.items()), held)
        for zero, held in device_kinds(state, levels)
    ]
    # The most common kind is not split up: it is all others.
    entries = [held for _, held in found]
    common = max(entries, key=entries.count)
    if entries.count(common) > 1:
        found = [kind for kind in found if kind[1] != common] + [("others", common)]
    kinds = []
    for which, held in found:
        bits = (0, 0) if held == NOTHING else (scattered(held, levels), reduced(held, levels))
        along, over = ([name for k, name in enumerate(hierarchy.names) if each >> k & 1] for each in bits)
        cut = prod(radix for k, radix in enumerate(hierarchy.radices) if bits[0] >> k & 1)
        holds = "nothing" if held == NOTHING else f"1/{cut}" if cut > 1 else "everything"
        kinds.append({"which": which or "all", "holds": holds, "scattered": along, "reduced": over})
    return kinds
