"""The configuration file of NCCL's example tuner plugin: which algorithm for which collective and size."""

from itertools import groupby

from meshwright.errors import SpecError
from meshwright.export.calls import Call, by_size, calls_of
from meshwright.export.request import Exported, Request
from meshwright.language.program import Collective

NAMES = {
    Collective.ALL_REDUCE: "allreduce",
    Collective.REDUCE_SCATTER: "reducescatter",
    Collective.ALL_GATHER: "allgather",
    Collective.REDUCE: "reduce",
    Collective.BROADCAST: "broadcast",
}
COLUMNS = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"


def nccl_tuner(request: Request) -> Exported:
    """A line for every kind of call and range of sizes; channels, aggregation and registration are left to NCCL."""
    calls = sorted(calls_of(request), key=_kind)
    if not calls:
        raise SpecError("the plan has no steps that NCCL could be tuned for")
    lines = [f"# {COLUMNS}"]
    for (name, ranks, hosts), kind in groupby(calls, key=_kind):
        for least, most, algorithm in by_size(kind):
            how = _algorithm(algorithm)
            lines.append(f"{name},{least},{most},{how},simple,-1,{hosts},{ranks},-1,-1")
    notes = ["for all calls that match no line, the example plugin asks for ring and simple, whatever NCCL would take"]
    if any(call.hosts is None for call in calls):
        notes.append("no level is called node, so the number of hosts is left open: --hosts or --hostfile says it")
    return Exported("".join(f"{line}\n" for line in lines), tuple(notes))


def _kind(call: Call) -> tuple[str, int, int]:
    return NAMES[call.collective], call.ranks, -1 if call.hosts is None else call.hosts


def _algorithm(name: str) -> str:
    """The name that NCCL has for an algorithm."""
    known = {"ring": "ring", "tree": "tree", "switch": "nvls", "switch-tree": "nvls_tree"}
    if name not in known:
        raise SpecError(
            f"the plan counts on the algorithm {name!r}, and NCCL has only {', '.join(known)}: plan with --library "
            "nccl; ompi-rules carries the algorithms of Open MPI, msccl and mscclpp whole programs"
        )
    return known[name]
