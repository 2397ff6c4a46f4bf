"""Texts of compiled programs: what XLA writes for other backends than the one of the tests, and what is wrong."""

from collections.abc import Iterable
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import MeshwrightError
from meshwright.workload.traces.hlo import hlo_calls
from tests.test_recorded import groups_of

TEXT = (Path(__file__).parent / "files" / "split.hlo").read_text()


def test_operations_that_are_split() -> None:
    calls = {(call.kind, call.ranks, call.bytes): call.count for call in hlo_calls(TEXT, "t").calls}
    assert calls == {
        ("all-gather", (0, 1), 64): 7,
        ("point-to-point", (0, 2), 32): 7,
        ("point-to-point", (1, 3), 32): 7,
        ("all-to-all", (0, 1), 8): 1,
        ("all-reduce", tuple(range(8)), 132): 1,
    }


def test_what_xla_does_not_know_is_noted() -> None:
    unknown = TEXT.replace("known_trip_count", "trips")
    branching = unknown.replace("async-start(%q), calls=%inner", "conditional(%q), branch_computations={%inner, %turn}")
    assert hlo_calls(branching, "t").notes == (
        "1 loops whose number of turns XLA does not know count as one turn",
        "of 1 conditionals every branch counts",
    )


@pytest.mark.parametrize(
    ("form", "group"),
    [
        ("{{0,2},{1,3},{4,6},{5,7}}", (0, 2)),
        ("{}", tuple(range(8))),
        ("[4,2]<=[8]", (0, 1)),
        ("[2,4]<=[4,2]T(1,0)", (0, 2, 4, 6)),
        ("[4,2]<=[2,2,2]T(0,2,1)", (0, 2)),
        ("mesh['x'=4,'y'=2] {'y'}", (0, 1)),
        ("mesh[x=4,y=2] {x}", (0, 2, 4, 6)),
        ("mesh['x'=2,'y'=2,'z'=2] {'x','z'}", (0, 1, 4, 5)),
        ("mesh['x'=8] {'x':(1)2}", (0, 4)),
        ("mesh['x'=8] {'x':(2)2}", (0, 2)),
        ("mesh['x'=8] {'x':(4)2}", (0, 1)),
        ("mesh['x'=8] {'x':(1)2,'x':(4)2}", (0, 1, 4, 5)),
        ("mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'y'}", (0, 2, 4, 6)),
        ("mesh['x'=2,'y'=4], device_ids=(7,1,2,3,4,5,6,0) {'x'}", (0, 3)),
    ],
)
def test_groups_in_all_forms(form: str, group: tuple[int, ...]) -> None:
    text = f"HloModule t, num_partitions=8\nENTRY %m {{\n  %r = f32[1] all-reduce(%x), replica_groups={form}\n}}\n"
    assert hlo_calls(text, "t").calls[0].ranks == group


def listed(numbers: Iterable[object]) -> str:
    return ",".join(map(str, numbers))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda sizes: prod(sizes) <= 64), st.data())
def test_the_forms_agree(sizes: list[int], data: st.DataObject) -> None:
    axes = {f"x{k}": size for k, size in enumerate(sizes)}
    chosen = data.draw(st.lists(st.sampled_from(sorted(axes)), min_size=1, unique=True))
    world, along = prod(sizes), prod(axes[axis] for axis in chosen)
    last = [k for k, axis in enumerate(axes) if axis not in chosen] + [
        k for k, axis in enumerate(axes) if axis in chosen
    ]
    groups = groups_of(axes, tuple(chosen))
    # The same mesh with its devices in another order: its array axes the other way round.
    turned = np.arange(world).reshape(sizes).transpose()
    backwards = ",".join(f"'{axis}'={axes[axis]}" for axis in reversed(axes))
    names = ",".join(f"'{axis}'" for axis in chosen)
    forms = [
        "{" + ",".join("{" + listed(group) + "}" for group in groups) + "}",
        f"[{world // along},{along}]<=[{listed(sizes)}]T({listed(last)})",
        f"mesh[{','.join(f'{axis}={size}' for axis, size in axes.items())}] {{{','.join(chosen)}}}",
        f"mesh[{backwards}], device_ids=([{listed(sizes)}]T({listed(reversed(range(len(sizes))))})) {{{names}}}",
        f"mesh[{backwards}], device_ids=({listed(turned.ravel())}) {{{names}}}",
    ]
    for form in forms:
        text = (
            f"HloModule t, num_partitions={world}\nENTRY m {{\n  r = f32[1] all-reduce(x), replica_groups={form}\n}}\n"
        )
        found = {call.ranks for call in hlo_calls(text, "t").calls}
        assert found == ({groups[0]} if along > 1 else set()), form


def test_groups_that_are_not_alike_are_all_there() -> None:
    text = TEXT.replace("{{0,1},{2,3},{4,5},{6,7}}", "{{0,1},{2,3},{4,6},{5,7}}")
    gathered = {call.ranks for call in hlo_calls(text, "t").calls if call.kind == "all-gather"}
    assert gathered == {(0, 1), (4, 6), (5, 7)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("HloModule", "Module"), "no text of a compiled program"),
        (("ENTRY ", ""), "has no ENTRY; is the text cut off"),
        (("num_partitions=8", "num_partitions=999999999"), "at most 1,048,576 are possible"),
        (("replica_groups=[4,2]<=[8]", "replica_groups=[4,2]<=[9]"), "expected them like"),
        (("replica_groups=[4,2]<=[8]", "replica_groups=[4,2]<=[8]T(1,0)"), "expected them like"),
        (("replica_groups=[4,2]<=[8]", "replica_groups=mesh['x'=8] {'z'}"), "expected them like"),
        (("replica_groups=[4,2]<=[8]", "replica_groups=mesh['x'=8] {'x':(3)2}"), "expected them like"),
        (("{{0,1},{2,3},{4,5},{6,7}}", "{{0,1},{1,3},{4,5},{6,7}}"), "expected them like"),
        (("{{0,1},{2,3},{4,5},{6,7}}", "{{0,1},{2},{4,5},{6,7}}"), "expected them like"),
        (("{{0,1},{2,3},{4,5},{6,7}}", "{{0,1},{2,8}}"), "expected them like"),
        (("source_target_pairs={{0,2}", "source_target_pairs={{0,8}"), "no source_target_pairs of 8 devices"),
        (("s8[100]", "wide[100]"), "values of the type 'wide', whose size is not known"),
    ],
)
def test_texts_that_cannot_be_used(change: tuple[str, str], message: str) -> None:
    with pytest.raises(MeshwrightError, match=f"^t: .*{message}"):
        hlo_calls(TEXT.replace(*change), "t")
