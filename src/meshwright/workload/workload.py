"""Workloads: all that the devices of a training program send each other in one step."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from meshwright.errors import PlacementError, SpecError
from meshwright.placement.placement import AXES_EXAMPLE
from meshwright.text.spec import (
    as_tuple,
    check_count,
    check_names,
    check_title,
    check_type,
    format_counts,
    is_number,
    one_of,
    shown,
    unknown,
)
from meshwright.text.units import format_bytes
from meshwright.workload.communication import Communication, Line
from meshwright.workload.llm import Model
from meshwright.workload.sends import GROUPS, step_lines


@dataclass(frozen=True)
class Workload:
    """The communications of one step.

    axes: the sizes that the amounts are for; empty if they hold for any. overlap: for each group of communications
    that may overlap with computation, the share of its time that is hidden. memory: what a device needs, in bytes, and
    what it has; compute: the seconds that a device computes or waits for other stages, both None if not known.
    """

    name: str
    lines: tuple[Line, ...]
    axes: Mapping[str, int] = field(default_factory=dict)
    overlap: Mapping[str, float] = field(default_factory=dict)
    memory: float | None = None
    device_memory: float | None = None
    compute: float | None = None
    model: Model | None = None

    def __post_init__(self) -> None:
        check_title(self.name, "the name of a workload")
        what = "Lines, each with a communication: Line(Reduction(…))"
        object.__setattr__(self, "lines", as_tuple(self.lines, Line, what))
        if not self.lines:
            raise SpecError(f"the workload {shown(self.name)} has no communications")
        check_type(self.axes, Mapping, "axes with their sizes, like {'data': 4, 'shard': 16}")
        for axis, size in self.axes.items():
            check_count(size, f"axis {shown(axis)}", AXES_EXAMPLE)
        check_names(list(self.axes), "axes", AXES_EXAMPLE)
        check_type(self.overlap, Mapping, "groups with the share of their time that is hidden, like {'backward': 0.9}")
        for group, share in self.overlap.items():
            check_title(group, "the name of a group that overlaps")
            if not is_number(share) or not 0 <= share <= 1:
                raise SpecError(
                    f"overlap {shown(group)} hides {shown(share)} of the time; expected a share from 0 to 1"
                )
        for name in ("memory", "device_memory", "compute"):
            value = getattr(self, name)
            if value is not None and (not is_number(value) or value < 0):
                raise SpecError(f"a workload has {name}={shown(value)}; expected zero or more, or None")
        check_type(self.model, Model | None, "a Model")
        known = {line.overlap for line in self.lines if line.overlap}
        for line in self.lines:
            if self.model is None and line.overlap and line.overlap not in self.overlap:
                raise SpecError(f"{line.communication.name!r}: {unknown('overlap', line.overlap, self.overlap)}")
        for group in self.overlap:
            if self.model is not None:
                one_of(GROUPS, "overlap", group)
            elif group not in known:
                raise SpecError(
                    f"overlap {group!r} is in no communication; those named are {', '.join(known) or 'none'}"
                )
        for line in self.lines:
            for axis in line.communication.axes:
                if self.axes and axis not in self.axes:
                    raise PlacementError(f"{line.communication.name!r}: {unknown('axis', axis, self.axes)}")

    @property
    def communications(self) -> tuple[Communication, ...]:
        """The communications, with the share of their time that is hidden."""
        return tuple(
            replace(line.communication, hidden=self.overlap.get(line.overlap, line.communication.hidden))
            for line in self.lines
        )

    def document(self) -> dict[str, Any]:
        """As plain data; what a workload file holds."""
        entries = []
        for line in self.lines:
            one, grouped = line.communication, line.overlap in self.overlap
            entry: dict[str, Any] = {"name": one.name, "kind": str(one.goal), "axes": "+".join(one.axes)}
            entry |= {"bytes": format_bytes(one.bytes), "count": one.count, "overlap": line.overlap if grouped else ""}
            entry |= {"formula": line.formula, "source": line.source, "hidden": 0 if grouped else one.hidden}
            entries.append({key: value for key, value in entry.items() if value})
        named = {line.overlap for line in self.lines}
        overlap = {group: share for group, share in self.overlap.items() if group in named}
        memory = {"memory": self.memory, "device_memory": self.device_memory}
        return {
            "name": self.name,
            **({"axes": format_counts(self.axes)} if self.axes else {}),
            **({"overlap": overlap} if overlap else {}),
            **{key: f"{ceil(value)}B" for key, value in memory.items() if value is not None},
            **({"compute": f"{self.compute!r}s"} if self.compute is not None else {}),
            "communications": entries,
        }


def derive(name: str, model: Model, axes: Mapping[str, int], overlap: Mapping[str, float] | None = None) -> Workload:
    """The workload of a model whose axes have the given sizes."""
    lines = tuple(step_lines(model, axes))
    if not lines:
        raise SpecError(
            f"the model communicates nothing with the axes {format_counts(axes)}: every axis has the size 1"
        )
    needs = (model.memory(axes), model.device_memory, model.compute(axes))
    return Workload(name, lines, dict(axes), dict(overlap or {}), *needs, model)
