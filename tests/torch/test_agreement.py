"""Ranks that compare their calls, each with the others of its reduction group, through one store."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from meshwright import Placement, Reduction, parse_system, plan
from meshwright.errors import EngineError
from meshwright.runtime.agreement import CallCheck, call_checks, introduce


def test_groups_of_one_reduction_hear_their_own_verdicts() -> None:
    torch = pytest.importorskip("torch")
    from meshwright.torch.channel import StoreChannel, Waits

    system = parse_system("node=2@1GB/s,gpu=2@10GB/s")
    placement = Placement(system, ("data", "tensor"), ((2, 1), (1, 2)))
    (made,) = plan(system, placement.sizes, [Reduction(("data",), 4)], placement=placement, top=1).candidates
    store = torch.distributed.HashStore()

    def check(rank: int) -> CallCheck:
        waits = Waits(collect=200.0, listen=0.2 if rank == 3 else 200.0, answer=200.0)
        said, roles = introduce(made, 4, rank, None)
        assert said["fault"] == ""
        (found,) = call_checks(roles, "first", lambda _, ranks: StoreChannel(store, ranks, rank, waits), "calls")
        return found

    checks = [check(rank) for rank in range(4)]
    assert [each.ranks for each in checks] == [(0, 2), (1, 3), (0, 2), (1, 3)]
    call = ("all-reduces", "4 B")
    with ThreadPoolExecutor() as threads:
        assert list(threads.map(lambda rank: checks[rank](call, 4), (0, 2))) == [None, None]
    # Rank 1 does not call. That ranks 0 and 2 agree says nothing about it.
    with pytest.raises(EngineError, match=r"rank 3 heard nothing from rank 1 for 0\.2 s"):
        checks[3](call, 4)
