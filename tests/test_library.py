import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import (
    Collective,
    Goal,
    Placement,
    Reduction,
    SpecError,
    parse_pipelined,
    parse_program,
    parse_reduction,
    parse_system,
    placements,
    plan,
)
from meshwright.cost.forecasts import Seen
from meshwright.cost.library import (
    LibraryRule,
    library_document,
    library_names,
    library_of,
    load_library,
    parse_library_yaml,
)
from meshwright.cost.model import CostModel
from meshwright.cost.pipeline import Pipeline
from meshwright.language.goals import PROGRAM_GOALS, flat_program
from meshwright.placement.layout import layout_of
from meshwright.planning.ranges import rule_ends
from tests.strategies import A100, AXES
from tests.test_cost import cases

RULES = "{{AllReduce: {0}, ReduceScatter: {0}, AllGather: {0}, Reduce: {0}, Broadcast: {0}}}"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("[]", "must be a list that is not empty"),
        ("[{algorithms: [rings]}]", "unknown algorithm 'rings'; did you mean 'ring'"),
        ("[{algorithms: [ring], up_to: 1kB}]", "the last rule must have no 'up_to'"),
        ("[{algorithms: [ring], per_rank: true}]", "a rule per rank needs 'up_to'"),
        (
            "[{algorithms: [ring], up_to: 1B, per_rank: true}, {algorithms: [ring], up_to: 2B}, {algorithms: [ring]}]",
            "either all rules with 'up_to' are per rank, or none is",
        ),
        ("[{algorithms: [ring]}, {algorithms: [ring]}]", "the last rule must have no 'up_to'"),
        ("[{algorithms: [ring], efficiency: 2}]", "at most 1"),
        ("[{algorithms: [ring], efficiency: x}]", "at most 1"),
        ("[{efficiency: 1}]", "needs 'algorithms'"),
        ("[{algorithms: [ring], piece: 0B}]", "a piece has at least one byte, not 0"),
        ("[{algorithms: [ring], piece: some}]", "some"),
        ("[{algorithms: [ring], ranks: 0}, {algorithms: [ring]}]", "expected a whole number from 1 to"),
        ("[{algorithms: [ring], ranks: few}]", "'ranks' in the rule has the count 'few'"),
        ("[{algorithms: [ring], ranks: 3}, {algorithms: [ring]}]", "a rule with 'ranks' needs 'up_to'"),
        ("[{algorithms: [ring], posted: 1}]", "expected true or false, not '1'"),
        (
            "[{algorithms: [ring], posted: true}]",
            "mine.yaml line 1: a rule of AllReduce has 'posted', which needs a library with 'handshake'",
        ),
    ],
)
def test_malformed_libraries_are_refused(rule: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_library_yaml(f"collectives: {RULES.format(rule)}", "mine.yaml")


def test_a_library_of_ones_own_needs_no_code(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"collectives: {RULES.format('[{algorithms: [ring], efficiency: 0.5}]')}")
    reduction = [parse_reduction("data=1GiB")]
    half = plan(A100, AXES, reduction, library=str(path)).candidates[0]
    assert half.seconds == pytest.approx(2 * plan(A100, AXES, reduction, library="ring").candidates[0].seconds)
    assert half.library.name == "mine"


def test_limits_per_rank_grow_with_the_group() -> None:
    text = "[{algorithms: [tree], up_to: 1kB, per_rank: true}, {algorithms: [ring]}]"
    library = parse_library_yaml(f"collectives: {RULES.format(text)}", "mine.yaml")
    taken = [
        library.rule(Collective.ALL_REDUCE, held, Seen(ranks)).algorithms
        for ranks, held in ((2, 2000), (2, 2001), (16, 2001), (16, 16_000), (16, 16_001))
    ]
    ring, tree = ("ring",), ("tree",)
    assert taken == [tree, ring, tree, tree, ring]
    assert library_of(library_document(library), "again") == library
    (at,) = placements(parse_system("node=2@1kB/s,gpu=3@4kB/s"), {"a": 6})
    model = CostModel(layout_of(at, ("a",)), library, 1)
    assert rule_ends(model) == sorted({n * k * 1000 for n in (2, 3, 6) for k in (1, 3, 6)})


def test_a_rule_may_be_for_large_groups_only() -> None:
    text = "[{algorithms: [direct], ranks: 3, up_to: 1kB}, {algorithms: [ring]}]"
    library = parse_library_yaml(f"collectives: {RULES.format(text)}", "mine.yaml")
    assert library_of(library_document(library), "again") == library
    taken = [
        library.rule(Collective.ALL_GATHER, held, Seen(ranks)).algorithms[0]
        for ranks, held in ((2, 1), (2, 1001), (3, 1000), (3, 1001), (16, 1000))
    ]
    assert taken == ["ring", "ring", "direct", "ring", "direct"]
    (at,) = placements(parse_system("node=2@1kB/s,gpu=3@4kB/s"), {"a": 6})
    assert rule_ends(CostModel(layout_of(at, ("a",)), library, 1)) == [1000, 3000, 6000]
    for few in (0, 10**100, "3"):
        with pytest.raises(SpecError, match="'ranks' in the rule has the count"):
            LibraryRule(("ring",), up_to=1, ranks=few)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "held", "messages"),
    [
        ("{algorithms: [ring]}", 102_400, 60),  # 30 turns, each in two halves
        ("{algorithms: [ring], posted: true}", 102_400, 30),
        ("{algorithms: [direct]}", 102_400, 30),  # 15 others, there and back
        ("{algorithms: [doubling]}", 102_400, 4),  # rounds
        ("{algorithms: [ring]}", 1_024, 60),  # as many, however small
    ],
)
def test_every_message_has_headers(rule: str, held: int, messages: int) -> None:
    text = f"{{headers: 320B, handshake: true, collectives: {RULES.format(f'[{rule}]')}}}"
    library = parse_library_yaml(text, "mine.yaml")
    assert library_of(library_document(library), "again") == library
    (at,) = placements(parse_system("gpu=16@1MB/s"), {"a": 16})
    data = 4 * held if "doubling" in rule else 2 * held * 15 / 16
    with_headers = data + messages * 320
    for each, sent in ((library, with_headers), (replace(library, headers=0), data)):
        model = CostModel(layout_of(at, ("a",)), each, held)
        (cost,) = model.steps(flat_program(Goal.ALL_REDUCE, 1))
        assert sum(load.bytes for phase in cost.phases for load in phase.loads) == pytest.approx(sent)
        assert cost.seconds == pytest.approx(sent / 1e6)
        assert model.seconds(flat_program(Goal.ALL_REDUCE, 1)) == pytest.approx(sent / 1e6)


def test_headers_weigh_more_in_chunks() -> None:
    """Also of the first chunk, and where steps use different links."""
    text = f"{{headers: 100B, adapts: true, collectives: {RULES.format('[{algorithms: [ring]}]')}}}"
    library = parse_library_yaml(text, "mine.yaml")
    (at,) = placements(parse_system("node=2@1kB/s,gpu=2@1kB/s"), {"a": 4})
    pipeline = Pipeline(CostModel(layout_of(at, ("a",)), library, 8_000), Goal.ALL_REDUCE)
    steps = "ReduceScatter inside node; AllReduce across node; AllGather inside node"
    program = parse_pipelined(f"{steps}, in 4 chunks", pipeline.model.layout.hierarchy)
    # A chunk is 2,000 B: 1,000 and 100 B inside, 500 B in each of two turns across for both devices, with 400 B; all
    # steps but this one leave the node's port alone, but all use those of devices: 2 x 1,100 + 1,000 + 200 = 3,400.
    assert pipeline.seconds(program) == pytest.approx(1.1 + 2.4 + 1.1 + 3 * 3.4)


@pytest.mark.parametrize("headers", [-1, 2**20 + 1, 1.5, "1", True, None])
def test_headers_are_a_number_of_bytes(headers: object) -> None:
    with pytest.raises(SpecError, match="expected bytes from 0 to 1048576 for 'headers' of the library 'gloo'"):
        replace(load_library("gloo"), headers=headers)  # type: ignore[arg-type]


def test_the_gloo_profile_says_what_the_engine_does() -> None:
    pytest.importorskip("torch")
    from meshwright.torch.collectives import SEVERAL, SMALL

    gloo = load_library("gloo")
    for rules in (dict(gloo.rules), dict(gloo.in_chunks)):
        exchange, otherwise = rules[Collective.REDUCE_SCATTER]
        assert (exchange.algorithms, exchange.up_to, exchange.ranks) == (("direct",), SMALL, SEVERAL)
        assert (otherwise.algorithms, otherwise.posted) == (("ring",), True)
    assert [dict(rules)[Collective.ALL_GATHER][0].posted for rules in (gloo.rules, gloo.own)] == [True, False]
    assert dict(gloo.own).keys() == {Collective.REDUCE_SCATTER, Collective.ALL_GATHER}


@pytest.mark.parametrize(
    ("groups", "held", "posted", "waiting"),
    [
        (1, 1000, 3 * (1 + 1) + 1, 3 / 2 + 3 * 2),  # every message takes a second, and so does its way
        (4, 1000, 12 + 2, 12 + 2),  # the other groups' messages fill the time
        (4, 10, 0.03 + 3 * 1 + 1, 0.06 + 3 * 2),  # they do not
    ],
)
def test_where_receives_are_posted_only_the_first_message_waits_for_a_handshake(
    groups: int, held: int, posted: float, waiting: float
) -> None:
    (at, *_) = placements(parse_system(f"node=4@1kB/s+1s,gpu={groups}@1TB/s"), {"a": 4, "b": groups})
    assert at.matrix == ((4, 1), (1, groups))
    for rule, seconds in (("[{algorithms: [ring], posted: true}]", posted), ("[{algorithms: [ring]}]", waiting)):
        library = parse_library_yaml(f"handshake: true\ncollectives: {RULES.format(rule)}", "mine.yaml")
        assert library_of(library_document(library), "again") == library
        model = CostModel(layout_of(at, ("a",)), library, 4 * held)
        assert model.seconds(flat_program(Goal.ALL_GATHER, 1), Goal.ALL_GATHER) == pytest.approx(seconds)


@pytest.mark.parametrize(("held", "seconds"), [(1000, 7 + 2), (10, 2 * 0.01 + 5 * 0.0025 + 2 + 1)])
def test_a_posted_ring_waits_for_the_slice_that_goes_all_the_way(held: int, seconds: float) -> None:
    """It crosses both slow ports and five fast ones; the slow ports have seven messages each."""
    (at,) = placements(parse_system("node=2@1kB/s+1s,gpu=4@4kB/s"), {"a": 8})
    rules = RULES.format("[{algorithms: [ring], posted: true}]")
    model = CostModel(
        layout_of(at, ("a",)), parse_library_yaml(f"handshake: true\ncollectives: {rules}", "mine.yaml"), 8 * held
    )
    assert model.seconds(flat_program(Goal.ALL_GATHER, 2), Goal.ALL_GATHER) == pytest.approx(seconds)


@pytest.mark.parametrize("goal", [Goal.BROADCAST, Goal.REDUCE])
@pytest.mark.parametrize("side_by_side", [False, True])
def test_pieces_are_handed_on_one_by_one(goal: Goal, side_by_side: bool) -> None:
    library = parse_library_yaml(f"collectives: {RULES.format('[{algorithms: [ring], piece: 1kB}]')}", "mine.yaml")
    assert library_of(library_document(library), "again") == library
    axes, shared = ({"b": 2, "a": 3}, 2) if side_by_side else ({"a": 6}, 1)
    (at,) = placements(parse_system("node=3@1kB/s,gpu=2@4kB/s"), axes)
    if not side_by_side:
        assert rule_ends(CostModel(layout_of(at, ("a",)), library, 1)) == [2000, 4000, 12000]
    hops = [1000 / shared] * 2 if side_by_side else [4000, 1000, 4000, 1000, 4000]
    for payload, sizes in ((8000, [1000] * 8), (1000, [500] * 2)):
        model = CostModel(layout_of(at, ("a",)), library, payload)
        program = flat_program(goal, len(model.layout.levels))
        assert model.seconds(program, goal) == pytest.approx(handed_on(hops, sizes))
        assert model.steps(program, goal)[0].seconds == pytest.approx(model.seconds(program, goal))


def handed_on(rates: Sequence[float], sizes: Sequence[float]) -> float:
    """When the last of some pieces has come down a line of links, each of which sends one piece after the other."""
    arrived = [0.0] * len(sizes)
    for rate in rates:
        free = 0.0
        for number, size in enumerate(sizes):
            free = arrived[number] = max(free, arrived[number]) + size / rate
    return arrived[-1]


def test_gloos_own_reduce_scatter_takes_as_long_as_an_all_reduce() -> None:
    what = [parse_reduction(f"{goal}:data=1GiB") for goal in ("reduce-scatter", "all-reduce")]
    best = plan("gpu=8@1GB/s", {"data": 8}, what, library="gloo").candidates[0]
    scatter, reduce = best.reductions
    assert scatter.default_seconds == pytest.approx(reduce.default_seconds, rel=0.02)
    assert scatter.default_seconds == pytest.approx(2 * scatter.seconds, rel=0.02)
    alone = plan("gpu=8@1GB/s", {"data": 8}, what, library="gloo", placement_only=True).candidates[0]
    assert alone.seconds == alone.default_seconds == pytest.approx(best.default_seconds)


def test_rules_for_chunks_take_the_place_of_the_others() -> None:
    text = (
        f"collectives: {RULES.format('[{algorithms: [ring]}]')}\nin_chunks: {{AllGather: [{{algorithms: [direct]}}]}}"
    )
    library = parse_library_yaml(text, "mine.yaml")
    assert library.rule(Collective.ALL_GATHER, 1, Seen(8)).algorithms == ("ring",)
    assert library.chunked.rule(Collective.ALL_GATHER, 1, Seen(8)).algorithms == ("direct",)
    assert library.chunked.rule(Collective.REDUCE, 1, Seen(8)).algorithms == ("ring",)
    assert library.chunked.chunked == library.chunked
    for one in (library, *map(load_library, library_names())):
        assert parse_library_yaml(json.dumps(library_document(one)), "mine.yaml") == one
    own = parse_library_yaml(text.replace("in_chunks", "own"), "mine.yaml")
    assert own.rule(Collective.ALL_GATHER, 1, Seen(8)) == own.chunked.rule(Collective.ALL_GATHER, 1, Seen(8))
    assert own.alone.rule(Collective.ALL_GATHER, 1, Seen(8)).algorithms == ("direct",)
    assert own.alone.alone == own.alone
    assert library.alone is library
    assert parse_library_yaml(json.dumps(library_document(own)), "mine.yaml") == own
    with pytest.raises(SpecError, match="unknown key 'AllGathers'; did you mean 'AllGather'"):
        parse_library_yaml(text.replace("{AllGather:", "{AllGathers:"), "mine.yaml")


def test_rules_go_by_the_bytes_that_a_device_holds() -> None:
    rule = load_library("openmpi").rule
    assert rule(Collective.ALL_REDUCE, 8191, Seen(8)).algorithms == ("doubling",)
    assert rule(Collective.ALL_REDUCE, 8192, Seen(8)).algorithms == ("recursive",)


@pytest.mark.parametrize(
    ("library", "collective", "system", "largest", "said"),
    [
        ("openmpi", Collective.ALL_REDUCE, "gpu=16@100kB/s", 8191, "8,191 B"),
        ("gloo", Collective.REDUCE_SCATTER, "node=2@1Mbit/s,gpu=4@10Mbit/s", 16384, "16,384 B"),
        ("nccl-sockets", Collective.ALL_REDUCE, "gpu=16@100kB/s", 16 * 17_600, "17,600 B for each rank"),
        ("nccl-sockets", Collective.REDUCE_SCATTER, "gpu=16@100kB/s", 16 * 11_000, "11,000 B for each rank"),
        ("nccl-sockets", Collective.ALL_GATHER, "gpu=16@100kB/s", 16 * 11_000, "11,000 B in each rank"),
    ],
)
def test_where_a_smaller_payload_takes_longer_the_docs_say_so(
    library: str, collective: Collective, system: str, largest: int, said: str
) -> None:
    """Measured on shaped links; between other rules of the built-in libraries, no time jumps that way."""
    goal = next(goal for goal in PROGRAM_GOALS if goal.flat is collective)
    (placement,) = placements(parse_system(system), {"a": parse_system(system).devices})
    layout = layout_of(placement, ["a"])
    small, large = (
        CostModel(layout, load_library(library), payload).seconds(flat_program(goal, len(layout.levels)), goal)
        for payload in (largest, largest + 1)
    )
    assert small > large
    page = (Path(__file__).parents[1] / "docs" / "cost.md").read_text()
    assert f"| `{library}` | {collective} | {said} |" in page


JUMPING = [
    ("nccl", Collective.ALL_REDUCE),  # where it expects other times than the model predicts
    ("openmpi", Collective.ALL_REDUCE),
    ("gloo", Collective.REDUCE_SCATTER),
    ("nccl-sockets", Collective.ALL_REDUCE),
    ("nccl-sockets", Collective.REDUCE_SCATTER),
    ("nccl-sockets", Collective.ALL_GATHER),
]


@given(cases(max_devices=32), st.sampled_from(library_names()), st.sampled_from(PROGRAM_GOALS), st.data())
def test_elsewhere_a_smaller_payload_never_takes_longer(
    case: tuple[Placement, list[str]], name: str, goal: Goal, data: st.DataObject
) -> None:
    """Of one collective in the whole group, also just below and above the limits of the library's rules."""
    assert goal.flat is not None
    library = load_library(name)
    if (name, goal.flat) in JUMPING:
        return
    limits = [rule.up_to for rule in dict(library.rules)[goal.flat] if rule.up_to is not None]
    sizes = st.integers(1, 2**36) if not limits else st.sampled_from(limits) | st.integers(1, 2**36)
    size = data.draw(sizes)
    layout = layout_of(*case)
    program = flat_program(goal, len(layout.levels))
    parts = layout.hierarchy.size if goal is Goal.ALL_GATHER else 1
    small, large = (CostModel(layout, library, each * parts).seconds(program, goal) for each in (size, size + 1))
    assert small <= large * (1 + 1e-9)


def test_a_library_without_a_usable_algorithm_is_refused() -> None:
    library = parse_library_yaml(f"collectives: {RULES.format('[{algorithms: [doubling]}]')}", "mine.yaml")
    with pytest.raises(SpecError, match=r"has no algorithm for AllReduce in groups of shape .*'otherwise'"):
        plan(parse_system("node=3@1GB/s"), {"a": 3}, [Reduction(("a",), 1)], library=library)


def test_the_gloo_profile_gives_what_was_measured() -> None:
    """4 x 4 devices, 20 and 200 Mbit/s, 2 MiB: medians on shaped links, in milliseconds."""
    system = parse_system("node=4@20Mbit/s,gpu=4@200Mbit/s")
    (placement,) = placements(system, {"a": 16})
    model = CostModel(layout_of(placement, ["a"]), load_library("gloo"), 2**21)

    def milliseconds(text: str) -> float:
        return 1000 * model.seconds(parse_program(text, model.layout.hierarchy))

    assert milliseconds("AllReduce all") == pytest.approx(1597, rel=0.03)
    assert milliseconds("Reduce inside node; AllReduce masters of node; Broadcast inside node") == pytest.approx(
        1640, rel=0.03
    )
