"""Measurements on emulated links, small payloads apart.

An idle emulated link lets some bytes through at once: two packets at least. For small payloads that would be much of
what it carries, so they are measured on links with small packets, of which little gets through, and whose headers take
4% of the rate.
"""

import os
from dataclasses import replace

from meshwright.measure.jobs import Job, measure_on
from meshwright.testbed import temporary

SMALL = 1 << 18
"""Payloads below this are small."""

BURST, SMALL_BURST = 18_000, 3_200
"""What idle links let through, in bytes: two packets of 9 kB, and for small payloads two of 1.5 kB."""


def measure_by_size(job: Job) -> None:
    """Measure what a job lacks, each payload on the links for its size."""
    for burst, small in ((SMALL_BURST, True), (BURST, False)):
        some = replace(job, cases=[case for case in job.cases if (case.reduction.bytes < SMALL) == small])
        if some.missing():
            with temporary(job.system, f"bench{os.getpid()}", burst) as bed:
                measure_on(bed, some)
