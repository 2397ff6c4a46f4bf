"""Measurements on emulated links, small payloads apart.

An idle emulated link lets some bytes through at once: two packets at least. For small payloads that would be much of
what it carries, so they are measured on links with small packets, of which little gets through. Packets have headers
and are acknowledged, which is more the smaller they are: links may be faster by that, so that data has the rates of
the system.
"""

import os
from dataclasses import dataclass, replace

from meshwright.measure.jobs import Job, measure_on
from meshwright.system.model import System
from meshwright.testbed import temporary

SMALL = 1 << 18
"""Payloads below this are small."""

BURST = 18_000
"""What idle links let through, in bytes: two packets of 9 kB."""


@dataclass(frozen=True)
class Links:
    """How links are emulated. small_burst: what they let through at once for small payloads, in packets of 1.5 kB.
    added: how many times the rates of the system theirs are, for small payloads and for others.
    """

    small_burst: int
    added: tuple[float, float]


LEAN = Links(1_600, (1.07, 1.01))
"""Little more than a packet at once; what packets add to the data, as counted, does not count. What goes with each
message of a library besides is in its profile (`headers`)."""

PLAIN = Links(3_200, (1.0, 1.0))
"""Two packets at once; headers take a part of the rates."""


def _faster(system: System, factor: float) -> System:
    """The system with faster links."""
    return replace(
        system,
        levels=tuple(
            replace(level, link=replace(level.link, bandwidth=level.link.bandwidth and level.link.bandwidth * factor))
            for level in system.levels
        ),
    )


def measure_by_size(job: Job, links: Links) -> None:
    """Measure what a job lacks, each payload on the links for its size."""
    for burst, added, small in ((links.small_burst, links.added[0], True), (BURST, links.added[1], False)):
        some = replace(job, cases=[case for case in job.cases if (case.reduction.bytes < SMALL) == small])
        if some.missing():
            with temporary(_faster(job.system, added), f"bench{os.getpid()}", burst) as bed:
                measure_on(bed, some)
