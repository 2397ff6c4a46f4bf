"""Notices: warnings that a plan runs otherwise than planned."""

import sys
import warnings

from meshwright.errors import MeshwrightWarning
from meshwright.planning.plan import Plan
from meshwright.runtime.choose import describe
from meshwright.text.units import format_amount


class Notices:
    """Warns where a plan runs otherwise than planned: once per Reducer and reason, and on rank 0 alone, as all ranks
    would say the same.
    """

    LIBRARIES = ("nccl", "gloo", "openmpi")
    """The cost model's libraries that stand for one real library; others, like `ring`, may be meant for any."""

    def __init__(self, plan: Plan, rank: int) -> None:
        """Nothing is said yet."""
        self.plan, self.silent = plan, rank != 0
        self.seen: set[object] = set()

    def library(self, running: str) -> None:
        """Say that the plan runs on another library than it was made for."""
        planned = self.plan.library.name.removesuffix("-calibrated")
        if planned in self.LIBRARIES and planned != running:
            self._say(
                f"the plan was made for {planned}, but runs on {running}: results are right, but other programs may be "
                f"faster{f'; plan with --library {running}' if running in self.LIBRARIES else ''}",
                "library",
            )

    def chunks(self, number: int, chunks: int, payload: int) -> None:
        """Say that a payload of `payload` bytes is too small to be cut as a reduction was planned."""
        planned = self.plan.reductions[number]
        if chunks == 1 < planned.chunks and payload < planned.communication.bytes:
            self._say(
                f"the {describe(planned)} was planned for {format_amount(planned.communication.bytes)} in "
                f"{planned.chunks} chunks, but a call with {format_amount(payload)} is a single chunk, whose steps do "
                "not overlap: make the plan for the size of the calls",
                number,
            )

    def _say(self, text: str, reason: object) -> None:
        if self.silent or reason in self.seen:
            return
        self.seen.add(reason)
        frame, level = sys._getframe(), 1
        while frame.f_back is not None and frame.f_globals["__name__"].startswith("meshwright."):
            frame, level = frame.f_back, level + 1
        warnings.warn(text, MeshwrightWarning, stacklevel=level)  # names the user's line that made the call
