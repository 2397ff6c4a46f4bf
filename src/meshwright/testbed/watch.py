"""How many bytes cross the links of a testbed while something runs."""

from collections.abc import Callable

from meshwright.testbed.bed import running


def link_watch(name: str) -> Callable[[Callable[[], object]], dict[str, int]]:
    """A function that runs some work, and returns how many bytes crossed the busiest link of each level meanwhile."""
    bed = running(name)

    def watch(work: Callable[[], object]) -> dict[str, int]:
        before = [counter.bytes for counter in bed.counters()]
        work()
        most = {level.name: 0 for level in bed.system.levels}
        for counter, start in zip(bed.counters(), before, strict=True):
            level = bed.system.levels[counter.port.level].name
            most[level] = max(most[level], counter.bytes - start)
        return most

    return watch
