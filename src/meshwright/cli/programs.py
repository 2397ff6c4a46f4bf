"""`meshwright programs`: every valid reduction program of a hierarchy."""

from itertools import groupby

import click

from meshwright.cli.common import (
    count_option,
    given_hierarchy,
    goal_option,
    hierarchy_option,
    json_option,
    max_steps_option,
    print_count,
    print_json,
)
from meshwright.errors import TooLargeError
from meshwright.language.goals import Goal
from meshwright.language.synthesis import program_graph

LIST_LIMIT = 250_000


@click.command()
@hierarchy_option
@max_steps_option
@goal_option
@count_option
@json_option
def programs(hierarchy_spec: str, max_steps: int, goal: str, count_only: bool, as_json: bool) -> None:
    """List or count the valid reduction programs of a hierarchy, the shortest first."""
    hierarchy = given_hierarchy(hierarchy_spec)
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
        texts = [program.text(hierarchy) for program in graph.programs()]
        print_json({"count": count, "goal": goal, "max_steps": max_steps, "programs": texts})
        return
    limit = f"{max_steps} step{'s' if max_steps > 1 else ''}"
    click.echo(f"{count} valid {goal} program{'s' if count != 1 else ''} of at most {limit} on {hierarchy}")
    for length, listed in groupby(graph.programs(), key=lambda program: len(program.steps)):
        click.echo(f"\n{length} step{'s' if length != 1 else ''}")
        for program in listed:
            click.echo(f"  {program.text(hierarchy)}")
