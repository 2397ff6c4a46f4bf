"""The replica groups of a plan's programs, as XLA's HLO writes them: a line for every step."""

from meshwright.errors import SpecError, TooLargeError
from meshwright.export.hosts import MOST_RANKS
from meshwright.export.request import Exported, Request, described
from meshwright.language.program import Collective, device_groups, step_text

OPERATIONS = {
    Collective.ALL_REDUCE: "all-reduce",
    Collective.REDUCE_SCATTER: "reduce-scatter",
    Collective.ALL_GATHER: "all-gather",
    Collective.REDUCE: "all-reduce",
    Collective.BROADCAST: "collective-broadcast",
}
"""HLO has no reduce to one device: all of a group get the sum, and only the first one uses it."""


def replica_groups(request: Request) -> Exported:
    """For every step of every program the operation, and its groups as device ids; devices outside them are alone."""
    plan, lines, reduces = request.plan, [], False
    if plan.placement.system.devices > MOST_RANKS:
        raise TooLargeError(
            f"{plan.placement.system.devices:,} devices are too many to list in groups; at most {MOST_RANKS:,} can be"
        )
    for number, planned in enumerate(plan.reductions):
        if request.reduction not in (None, number):
            continue
        lines.append(f"// reduction {number}: {described(planned)}")
        hierarchy = plan.hierarchy(planned)
        for program, chunks in planned.shares:
            lines += [f"// {chunks} of {planned.chunks} chunks:"] if planned.chunks > 1 else []
            for step in program.steps:
                reduces = reduces or step.collective is Collective.REDUCE
                text = step_text(step, hierarchy.names)
                if step.grouping.masters and step.collective in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER):
                    raise SpecError(
                        f"reduction {number} has the step {text!r}, in which only some devices take part, and HLO "
                        "wants groups of one size for it: plan without such steps (--no-rooted)"
                    )
                groups = [
                    tuple(whole[device] for device in group)
                    for whole in plan.placement.groups(planned.communication.axes)
                    for group in device_groups(step.grouping, hierarchy.radices)
                ]
                inside = {device for group in groups for device in group}
                groups += [(device,) for device in range(plan.placement.system.devices) if device not in inside]
                listed = ",".join("{" + ",".join(map(str, group)) + "}" for group in groups)
                lines.append(
                    f"{OPERATIONS[step.collective]}, replica_groups={{{listed}}}, use_global_device_ids=true // {text}"
                )
    if not lines:
        raise SpecError("the plan has no such reduction with a program, so there are no groups to write")
    notes = ["HLO has no reduce to one device: it is written as all-reduce"] if reduces else []
    return Exported("".join(f"{line}\n" for line in lines), tuple(notes))
