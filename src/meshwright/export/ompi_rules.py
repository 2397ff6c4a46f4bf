"""A dynamic rules file for Open MPI's component coll/tuned: which algorithm for which group and size."""

from collections.abc import Iterator
from itertools import groupby

from meshwright.errors import SpecError
from meshwright.export.calls import Call, by_size, calls_of
from meshwright.export.request import Exported, Request
from meshwright.language.program import Collective

FIXED = 0
"""The number that leaves the choice to Open MPI's fixed rules."""

SEGMENT = 65_536
"""The bytes of a message in a pipeline."""

COLLECTIVES = {
    Collective.ALL_GATHER: 0,
    Collective.ALL_REDUCE: 2,
    Collective.BROADCAST: 7,
    Collective.REDUCE: 11,
    Collective.REDUCE_SCATTER: 13,  # MPI_Reduce_scatter_block
}
ALGORITHMS = {
    Collective.ALL_GATHER: {"halving": 3, "ring": 4},  # 3: recursive doubling
    Collective.ALL_REDUCE: {"doubling": 3, "ring": 4, "recursive": 6},  # 6: Rabenseifner
    Collective.BROADCAST: {"ring": 3, "binomial": 6},  # 3: pipeline
    Collective.REDUCE: {"ring": 3, "binomial": 5},
    Collective.REDUCE_SCATTER: {"reduce-and-scatter": 1, "halving": 3},
}
"""The numbers in ompi_info --param coll tuned --level 9, by the names that the cost model has for the algorithms."""


def ompi_rules(request: Request) -> Exported:
    """Rules for the sizes of groups and payloads in the plan; Open MPI's own rules hold for all others."""
    every = calls_of(request)
    calls = sorted((call for call in every if not call.chunked), key=lambda call: COLLECTIVES[call.collective])
    if not calls:
        raise SpecError(
            "the rules are for blocking collectives, and chunks flow through non-blocking ones, so there is nothing to "
            "write for this plan; plan with --chunks 1, or export it to msccl"
        )
    kinds = [(collective, list(each)) for collective, each in groupby(calls, key=lambda call: call.collective)]
    lines = [f"{len(kinds)} # collectives"]
    for collective, each in kinds:
        lines += _collective(collective, each)
    notes = ["rules know the size of a group, not its hosts"]
    if len(calls) < len(every):
        notes.append("reductions in chunks are left out: they use non-blocking collectives, which have no rules")
    return Exported("".join(f"{line}\n" for line in lines), tuple(notes))


def _collective(collective: Collective, calls: list[Call]) -> Iterator[str]:
    """The rules of a collective. A rule for a size holds for all larger ones up to the next."""
    sizes = sorted({call.ranks for call in calls})
    found = {size: _sizes(collective, [call for call in calls if call.ranks == size]) for size in sizes}
    found |= {size + 1: [(0, FIXED, 0)] for size in sizes if size + 1 not in found}
    found |= {0: [(0, FIXED, 0)]}
    yield f"{COLLECTIVES[collective]} # {collective}"
    yield f"{len(found)} # sizes of groups"
    for size, rules in sorted(found.items()):
        yield f"{size} # ranks"
        yield f"{len(rules)} # sizes of messages"
        yield from (f"{least} {number} 0 {segment}" for least, number, segment in rules)


def _sizes(collective: Collective, calls: list[Call]) -> list[tuple[int, int, int]]:
    """From which size which algorithm is taken, with which segments. The first rule must begin at 0."""
    rules: list[tuple[int, int, int]] = []
    known = ALGORITHMS[collective]
    ranges = by_size(calls)
    for least, _, name in ranges:
        if name not in known:
            raise SpecError(
                f"the plan counts on the algorithm {name!r} for {collective}, and Open MPI has only "
                f"{', '.join(known)}: plan with --library openmpi; nccl-tuner carries NCCL's algorithms"
            )
        pipeline = name == "ring" and collective in (Collective.REDUCE, Collective.BROADCAST)
        rules.append((least, known[name], SEGMENT if pipeline else 0))
    before = [(0, FIXED, 0)] if rules[0][0] > 0 else []
    return [*before, *rules, (ranges[-1][1] + 1, FIXED, 0)]
