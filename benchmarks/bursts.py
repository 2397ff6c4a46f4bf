"""Measurements on emulated links, small payloads apart.

An idle emulated link lets some bytes through at once: two packets at least. For small payloads that would be much of
what it carries, so they are measured on links with small packets, of which little gets through. Packets have headers
and are acknowledged, which is more the smaller they are: links are faster by that, so that data has the rates of the
system.
"""

import os
from dataclasses import replace

from meshwright.measure.jobs import Job, measure_on
from meshwright.system.model import System
from meshwright.testbed import temporary

SMALL = 1 << 18
"""Payloads below this are small."""

BURST, SMALL_BURST = 18_000, 1_600
"""What idle links let through, in bytes: two packets of 9 kB, and for small payloads little more than one of 1.5 kB."""

ADDED = {BURST: 1.01, SMALL_BURST: 1.07}
"""What crosses the links over the data, in packets of 9 kB and of 1.5 kB, as counted on them. What goes with each
message of a library besides is in its profile (`headers`)."""


def _faster(system: System, factor: float) -> System:
    """The system with faster links."""
    return replace(
        system,
        levels=tuple(
            replace(level, link=replace(level.link, bandwidth=(level.link.bandwidth or 0.0) * factor))
            for level in system.levels
        ),
    )


def measure_by_size(job: Job) -> None:
    """Measure what a job lacks, each payload on the links for its size."""
    for burst, small in ((SMALL_BURST, True), (BURST, False)):
        some = replace(job, cases=[case for case in job.cases if (case.reduction.bytes < SMALL) == small])
        if some.missing():
            with temporary(_faster(job.system, ADDED[burst]), f"bench{os.getpid()}", burst) as bed:
                measure_on(bed, some)
