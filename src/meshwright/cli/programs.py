"""`meshwright programs`: every valid reduction program of a hierarchy."""

from itertools import groupby

import click

from meshwright.cli import options
from meshwright.cli.output import print_count, print_json, print_parts
from meshwright.cli.progress import counted, listed, progress
from meshwright.errors import TooLargeError
from meshwright.language.goals import Goal
from meshwright.language.synthesis import program_graph

LIST_LIMIT = 250_000


@click.command()
@options.hierarchy
@options.max_steps
@options.goal
@options.count
@options.json
def programs(hierarchy_spec: str, max_steps: int, goal: str, count_only: bool, as_json: bool) -> None:
    """List or count the valid reduction programs of a hierarchy, the shortest first."""
    hierarchy = options.given_hierarchy(hierarchy_spec)
    with progress("looking for programs"):
        graph = program_graph(len(hierarchy.radices), Goal(goal), max_steps)
        count = graph.count()
    if count_only:
        print_count(count, as_json)
        return
    if count > LIST_LIMIT:
        raise TooLargeError(
            f"{hierarchy} has {count:,} valid programs of at most {max_steps} steps, more than the {LIST_LIMIT:,} that "
            "can be listed; use --count for the number, a smaller --max-steps, or in Python the k best of "
            "program_graph(…).ranked(cost)"
        )
    if as_json:
        texts = [program.text(hierarchy) for program in counted(graph.programs(), "programs", count)]
        print_json({"count": count, "goal": goal, "max_steps": max_steps, "programs": texts})
        return
    limit = f"{max_steps} step{'s' if max_steps > 1 else ''}"
    click.echo(f"{count} valid {goal} program{'s' if count != 1 else ''} of at most {limit} on {hierarchy}")
    every = listed(graph.programs(), "programs", count)
    for length, alike in groupby(every, key=lambda program: len(program.steps)):
        click.echo(f"\n{length} step{'s' if length != 1 else ''}")
        for program in alike:
            print_parts(f"  {program.text(hierarchy)}")
