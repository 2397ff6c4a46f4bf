"""The testbed: a hierarchical cluster on one machine, with namespaces for devices and shaped links between them.

    with temporary(parse_system("node=4@20Mbit/s,gpu=4@200Mbit/s")) as bed:
        bed.run(["python", "-m", "meshwright", "run", "plan.json", "--engine", "torch"])

Everything that it makes is inside network namespaces of its own, whose names it writes down before it makes them, and
`down` removes just these. Only root (CAP_NET_ADMIN and CAP_SYS_ADMIN) can do that.
"""

from meshwright.testbed.bed import DEFAULT_NAME, Counter, Testbed, down, find, known, running, temporary, up
from meshwright.testbed.build import enter, missing_rights

__all__ = ["DEFAULT_NAME", "Counter", "Testbed", "down", "enter", "find"]
__all__ += ["known", "missing_rights", "running", "temporary", "up"]
