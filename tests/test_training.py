"""The study of training: what of a step's time it takes for communication."""

import pytest
from benchmarks.trainingpage import Case, Run, page


def run(way: str, computing: list[float], cores: int = 2, predicted: float = 2.4) -> Run:
    system = "node=2@20Mbit/s,gpu=4@200Mbit/s"
    return Run(system, "ddp", way, [5.0, 4.0, 3.0], [9.0, 3.0, 3.0], computing, 1000, 10, predicted, cores)


@pytest.mark.parametrize(
    ("computing", "cores", "seconds"),
    [
        ([0.5, 0.05, 0.05], 2, 2.8),  # eight ranks take turns on two cores
        ([0.5, 0.05, 0.05], 4, 2.9),
        ([0.5, 0.05, 0.05], 16, 2.95),  # each has a core of its own
        ([], 2, 3.0),
    ],
)
def test_computing_takes_longer_where_ranks_share_cores(computing: list[float], cores: int, seconds: float) -> None:
    found = run("plain", computing, cores)
    assert found.step == 3.0
    assert found.communication == pytest.approx(seconds)
    assert found.error == pytest.approx(2.4 / seconds - 1)


@pytest.mark.parametrize(("computing", "said"), [([0.5, 0.05, 0.05], False), ([], True)])
def test_the_page_says_where_computing_is_not_known(computing: list[float], said: bool) -> None:
    steps = {way: run(way, computing) for way in ("plain", "plan")}
    record = Run(steps["plain"].system, "ddp", "record", [5.0], [9.0], computing[:1], 400, 4)
    text = " ".join(page([Case("2x4", record.system, "ddp", steps | {"record": record}, 300.0)], []).split())
    assert ("On 2x4, where the time of computing is not known, it is the whole step." in text) == said
    assert f"| 2x4 | ddp | plain | {3.0 if said else 2.8:.2f} s | 2.40 s |" in text
