"""What libraries expect of their algorithms, beside what NCCL's log says that it takes."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import Collective, Forecast, Level, Link, Seen, SpecError, System, load_library, placements
from meshwright.cost.forecasts import choices
from meshwright.cost.library import Library, library_document, library_of
from meshwright.cost.model import CostModel
from meshwright.language.program import Grouping
from meshwright.placement.layout import layout_of
from meshwright.text.units import parse_bytes

NCCL = load_library("nccl")

# NCCL 2.28.9 with NCCL_DEBUG_SUBSYS=TUNING, one GPU on each host, sockets of 1 Gbit/s, for it 1.2 GB/s: what it takes
# for all-reduces of powers of two from 1 KiB to 64 MiB, each up to a size. See docs/nccl.md.
LOGGED = {
    2: ["ring LL 32KiB", "ring Simple"],
    3: ["tree LL 1KiB", "ring LL 32KiB", "ring Simple"],
    4: ["tree LL 1KiB", "ring LL 64KiB", "ring Simple"],
    8: ["tree LL 4KiB", "ring LL 128KiB", "ring Simple"],
    16: ["tree LL 8KiB", "tree Simple 64KiB", "ring LL 256KiB", "ring Simple"],
}
ROOTED = ["ring LL 8KiB", "ring Simple"]
SIZES = [1 << k for k in range(10, 27)]


def over_sockets() -> Library:
    """NCCL without LL128, which it does not use over sockets."""
    rules = dict(NCCL.rules)
    some = [
        replace(rule, forecasts=tuple(one for one in rule.forecasts if one.call != 14e-6))
        for rule in rules[Collective.ALL_REDUCE]
    ]
    return replace(NCCL, rules=tuple((rules | {Collective.ALL_REDUCE: tuple(some)}).items()))


def at_sizes(rows: list[str]) -> list[str]:
    """For each size what is taken, of rows with a limit behind all but the last."""
    found = []
    for size in SIZES:
        row = next(row for row in rows if row == rows[-1] or size <= parse_bytes(row.split()[-1]))
        found.append(row if row == rows[-1] else row.rpartition(" ")[0])
    return found


@pytest.mark.parametrize("ranks", LOGGED)
def test_nccl_takes_what_its_log_says(ranks: int) -> None:
    library = over_sockets()
    taken = [library.rule(Collective.ALL_REDUCE, size, Seen(ranks, ranks, between=1.2e9)) for size in SIZES]
    assert [rule.algorithms[0] for rule in taken] == [each.split()[0] for each in at_sizes(LOGGED[ranks])]


@pytest.mark.parametrize("ranks", LOGGED)
@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.REDUCE, Collective.BROADCAST])
def test_nccl_takes_the_protocols_of_its_log(ranks: int, collective: Collective) -> None:
    rules = dict(over_sockets().rules)[Collective.ALL_REDUCE]
    names = ["ring LL", "ring Simple", "tree LL", "tree Simple"]
    every = [(rule.algorithms[0], one) for rule in rules[:2] for one in rule.forecasts]
    some = every if collective is Collective.ALL_REDUCE else every[:2]
    found = choices(tuple((k, *each) for k, each in enumerate(some)), collective, Seen(ranks, ranks, between=1.2e9))
    taken = [next(names[k] for limit, k in found if limit is None or size <= limit) for size in SIZES]
    assert taken == at_sizes(LOGGED[ranks] if collective is Collective.ALL_REDUCE else ROOTED)


def test_the_documented_example() -> None:
    seen = Seen(64, 8, 450e9, 200e9)
    ring, tree = (dict(NCCL.rules)[Collective.ALL_REDUCE][k] for k in (0, 1))
    lines = [one.forecasts[1].line(one.algorithms[0], Collective.ALL_REDUCE, seen, 1 << 28) for one in (ring, tree)]
    assert [(round(latency * 1e6), round(1e-9 / slope)) for latency, slope in lines] == [(283, 93), (82, 86)]
    assert NCCL.rule(Collective.ALL_REDUCE, 200e6, seen) == tree
    assert NCCL.rule(Collective.ALL_REDUCE, 250e6, seen) == ring


shares = st.floats(0.01, 1)
latencies = st.sampled_from([0.0, 1e-6, 5e-6, 1e-4])
forecasts = st.builds(
    Forecast,
    call=latencies,
    inside=latencies,
    between=latencies,
    single=st.none() | latencies,
    posting=latencies,
    share=st.tuples(shares, shares, shares),
    inside_share=shares,
    most=st.just(()) | st.tuples(*[st.sampled_from([1e8, 1e9, 1e10])] * 3),
    by_size=st.lists(shares, max_size=12).map(tuple),
    plateau=st.sampled_from([1.0, 1.4]),
)
rates = st.sampled_from([1e8, 1e9, 2e10, inf])


@st.composite
def groups(draw: st.DrawFn) -> Seen:
    nodes, each = draw(st.integers(1, 20)), draw(st.integers(1, 8))
    some = draw(st.sets(st.sampled_from(["switch", "switch-tree"] if nodes > 1 else ["switch"])))
    return Seen(max(nodes * each, 2), nodes, draw(rates), draw(rates), frozenset(some))


@given(
    st.lists(st.tuples(st.sampled_from(["ring", "tree", "switch", "switch-tree"]), forecasts), min_size=1, max_size=6),
    groups(),
    st.sampled_from(list(Collective)),
    st.lists(st.integers(1, 1 << 22), min_size=1, max_size=20),
)
def test_the_least_forecast_is_taken(
    some: list[tuple[str, Forecast]], seen: Seen, collective: Collective, sizes: list[int]
) -> None:
    """At every size, as if all forecasts were computed for it alone."""
    some = [("ring", some[0][1]), *some]
    if collective is not Collective.ALL_REDUCE:
        some = [("ring", one) for _, one in some]
    parts = seen.ranks if collective is Collective.ALL_GATHER else 1
    found = choices(tuple((k, *each) for k, each in enumerate(some)), collective, seen)
    limits = [limit for limit, _ in found]
    assert limits[-1] is None
    assert limits[:-1] == sorted({limit for limit in limits if limit is not None})
    for held in {*sizes, *(side for limit in limits[:-1] if limit for side in (limit, limit + 1))}:
        whole = held * parts
        times = {}
        for k, (name, one) in enumerate(some):
            if name in ("ring", "tree", *seen.switches):
                latency, slope = one.line(name, collective, seen, whole)
                times[k] = latency + whole * slope
        taken = next(k for limit, k in found if limit is None or held <= limit)
        assert times[taken] <= min(times.values()) * (1 + 1e-9)


def test_what_a_library_sees_of_a_group() -> None:
    """Neither other groups that share the links, nor what is beyond the ports of the nodes."""
    node = Link(4e11, per_device=5e10)
    inner = Link(4.5e11, bypass=True, reduces=True)
    system = System("racks", (Level("rack", 2, Link(1e9)), Level("node", 4, node), Level("gpu", 8, inner)))
    (placement,) = placements(system, {"data": 64})
    model = CostModel(layout_of(placement, ["data"]), NCCL, 1)
    assert model._seen(Grouping(1, 2)) == Seen(32, 4, 4.5e11, 4e11, frozenset({"switch-tree"}))
    assert model._seen(Grouping(2, 2)) == Seen(8, 1, 4.5e11, 4e11, frozenset({"switch"}))
    assert model._seen(Grouping(1, 1)) == Seen(4, 4, inf, 5e10)
    assert model._seen(Grouping(0, 0)) == Seen(2, 2, inf, 5e10)
    assert model._seen(Grouping(0, 2)) == Seen(64, 8, 4.5e11, 4e11)  # a rack's own switches do not add up
    pairs = [one for one in placements(system, {"data": 4, "other": 16}) if one.matrix == ((1, 2, 2), (2, 2, 4))]
    model = CostModel(layout_of(pairs[0], ["data"]), NCCL, 1)
    assert model._seen(Grouping(0, 1)) == Seen(4, 2, 4.5e11, 1e11)  # for two GPUs of a node it asks no switch


def test_bad_forecasts_are_refused() -> None:
    for changed, message in (
        ({"call": -1.0}, "expected seconds from 0 to 1 for 'call', not -1"),
        ({"single": 2.0}, "'single', not 2"),
        ({"posting": None}, "'posting', not None"),
        ({"share": (1.0, 0.0, 1.0)}, "a share of the bandwidth is at least 0.001 and at most 1, not 0"),
        ({"share": (1.0, 1.0)}, "expected one share or three"),
        ({"share": 0.5}, "expected a list of numbers for 'share', not 0.5"),
        ({"by_size": (0.5, 1.5)}, "at most 1, not 1.5"),
        ({"by_size": (1.0,) * 41}, "'by_size' has 41 numbers; expected at most 40"),
        ({"most": (1e9,)}, "expected three bandwidths in 'most', for one node, two, and more"),
        ({"plateau": 0.5}, "a plateau is a factor from 1 to 100, not 0.5"),
    ):
        with pytest.raises(SpecError, match=message):
            replace(Forecast(1e-6, 1e-6, 1e-6), **changed)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([{"algorithms": ["ring", "tree"]}], "a rule with forecasts has one algorithm"),
        ([{"algorithms": ["ring"], "up_to": "1kB"}], "neither 'otherwise' nor 'up_to'"),
        ([{"algorithms": ["direct"]}], "unknown algorithm with forecasts 'direct'"),
        ([{"algorithms": ["tree"]}], "one of them for ring"),
    ],
)
def test_bad_rules_with_forecasts_are_refused(rules: list[dict[str, object]], message: str) -> None:
    document = library_document(NCCL)
    some = [rule | {"forecasts": [{"call": "1us", "inside": "1us", "between": "1us"}]} for rule in rules]
    document["collectives"] = document["collectives"] | {"AllReduce": some}
    with pytest.raises(SpecError, match=message):
        library_of(document, "mine")


def test_only_rings_have_forecasts_for_other_collectives() -> None:
    document = library_document(NCCL)
    document["collectives"] = document["collectives"] | {"Reduce": document["collectives"]["AllReduce"]}
    with pytest.raises(SpecError, match="of the algorithms with forecasts, only ring can do Reduce"):
        library_of(document, "mine")
