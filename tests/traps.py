"""A folder full of things that must not be run just because it is the current one."""

import os
from pathlib import Path

MODULES = ("meshwright", "torch", "mpi4py", "numpy", "click", "json", "sitecustomize")
PROGRAMS = ("mpirun", "orted", "sh", "ip", "tc", "unshare", "hostname", "setsid", "python")


class Traps:
    """Modules and programs that leave a mark when they are imported or started."""

    def __init__(self, folder: Path) -> None:
        """Plant them."""
        self.folder, self._mark = folder / "traps", folder / "sprung"
        self.folder.mkdir()
        for name in MODULES:
            text = f"open({str(self._mark)!r}, 'a').write('module {name}\\n')\nraise SystemExit(77)\n"
            (self.folder / f"{name}.py").write_text(text)
        for name in PROGRAMS:
            program = self.folder / name
            program.write_text(f"#!/bin/sh\necho program {name} >> {self._mark}\nexit 77\n")
            program.chmod(0o755)

    @property
    def path(self) -> str:
        """A PATH that looks into the current folder first, twice."""
        return os.pathsep.join((".", "", os.environ["PATH"]))

    @property
    def sprung(self) -> str:
        """What was run."""
        return self._mark.read_text() if self._mark.exists() else ""
