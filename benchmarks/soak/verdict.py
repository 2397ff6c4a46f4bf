"""What a clear error is, so that a machine can tell.

The first line of a Meshwright error, or the watchdog's line. It names a rank before anything else, and says in our
words what that rank did or waited for. What a library says may follow that, in the same line; where some file of its
source is, and what is only of use to its authors, may not.
"""

import re

ABORTED = re.compile(
    r"terminate called|Aborted(?!!)|Segmentation fault|core dumped|Fatal Python error|Process received signal"
)
RAW = re.compile(r"\.(cc|cpp|cu|h|hpp):\d+|GLHF|what\(\):|Exception raised from|gloo::|c10::|Traceback|0x[0-9a-f]{6,}")
LIBRARY = re.compile(
    r"Connection (reset|closed|refused)|Broken pipe|[Tt]imed? ?out|Socket|Application timeout|Not found"
)
NAMES = re.compile(r"\branks? \d+")
REASON = re.compile(
    r"step \d+|comparing times with|cannot be made|did not join|heard nothing|made other calls|call differently"
    r"|no longer be used|the store|has ended|has failed|waited|did not answer|of rank \d+"
    r"|rank \d+ (died|left|is gone|hangs)"
)
WATCHDOG = re.compile(r"^meshwright: rank (\d+) waited [\d.]+ s in (.+): another rank has died", re.MULTILINE)


CRASH = re.compile(r"^(\[[^]:]+:\d+\]) .*PMIx_server_finalize", re.MULTILINE)
"""Open MPI's mpirun sometimes crashes itself when it ends a job whose ranks have failed: here, and nowhere else."""


def without_crash(said: str) -> str:
    """What a job has said, without the lines of mpirun's own crash."""
    crashed = CRASH.search(said)
    if crashed is None:
        return said
    return "".join(line for line in said.splitlines(keepends=True) if not line.startswith(crashed[1]))


def unclear(text: str) -> str:
    """What is unclear about the text of an error; empty if nothing is."""
    first = text.splitlines()[0] if text.strip() else ""
    if not first:
        return "it says nothing"
    if found := RAW.search(first):
        return f"its first line has {found[0]!r}: {first[:300]}"
    said = LIBRARY.search(first)
    ours = first[: said.start()] if said else first
    if not NAMES.search(ours):
        return f"it names no rank before what a library says: {first[:300]}"
    if not REASON.search(ours):
        return f"it does not say what was waited for: {first[:300]}"
    return ""


def aborted(said: str) -> str:
    """The line of an output that tells of an abort; empty if there is none."""
    found = ABORTED.search(said)
    return "" if found is None else said[said.rfind("\n", 0, found.start()) + 1 :].splitlines()[0][:200]
