"""A worker: a process that answers what is asked on the page, so that a search that takes too long can be ended.

It reads a JSON document from each line of stdin, and writes the answer as a line to stdout.
"""

import asyncio
import json
import resource
import signal
import sys
from contextlib import suppress

from meshwright.errors import EngineError
from meshwright.show.asked import answer

MEMORY = 8 * 2**30
"""The most bytes that a worker may have."""

LONGEST = 2**25
"""The most bytes of an answer."""


class Workers:
    """Answers one question at a time, each in a process. A second process waits, for when the first has to be ended."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._ready: list[asyncio.subprocess.Process] = []

    async def ask(self, question: bytes) -> bytes:
        """The answer to a JSON document in one line; whoever is cancelled while waiting for it ends the process."""
        async with self._turn:
            worker = self._ready.pop(0) if self._ready else await _started()
            try:
                if not self._ready:
                    self._ready.append(await _started())
                assert worker.stdin is not None
                assert worker.stdout is not None
                worker.stdin.write(question + b"\n")
                found = await worker.stdout.readline()
                if not found:
                    raise EngineError("the search failed: what the server has written says why")
            except BaseException:
                _end(worker)
                raise
            self._ready.insert(0, worker)
            return found

    async def close(self) -> None:
        """End all processes."""
        for worker in self._ready:
            _end(worker)
            await worker.wait()
        self._ready.clear()


async def _started() -> asyncio.subprocess.Process:
    # -P: nothing in the current folder is imported.
    command = [sys.executable, "-P", "-m", "meshwright.show.worker"]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=LONGEST)


def _end(worker: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        worker.kill()


def main() -> None:
    """Answer until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then ends its workers
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most), most))
    for line in sys.stdin:
        try:
            found = answer(json.loads(line))
        except MemoryError:
            found = {"errors": {"": "it needs too much memory: fewer axes, levels or devices need less"}}
        sys.stdout.write(json.dumps(found, separators=(",", ":"), allow_nan=False) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
