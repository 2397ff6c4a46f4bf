"""Agreement between the ranks of a reduction group with messages: there may be no communicator of it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from mpi4py import MPI

from meshwright.errors import EngineError
from meshwright.runtime.agreement import Judge
from meshwright.runtime.words import rank_list


@dataclass(frozen=True, slots=True)
class MessageChannel:
    """A `Channel` of the runtime's. The first rank collects what everyone has to say, judges, and tells the verdict."""

    comm: "MPI.Intracomm"
    ranks: Sequence[int]
    tag: int  # of the messages; no other channel has the same
    waiting: Callable[[str], AbstractContextManager[None]]  # wraps all that waits for others
    sent: list[Any] = field(default_factory=list)  # messages that nobody may ever take
    refused: set[str] = field(default_factory=set)  # the keys of calls that this rank could not make

    def agree(self, key: str, before: str | None, value: Any, judge: Judge) -> None:  # noqa: ARG002 - messages go by themselves
        """Compare a value each under a key."""
        first, *others = self.ranks
        with self.waiting(f"comparing a call with {rank_list(self.ranks)}"):
            if self.comm.rank == first:
                fault = judge({first: value} | {rank: self._hear(rank) for rank in others})
                for rank in others:
                    self.comm.send((key, fault), dest=rank, tag=self.tag)
            else:
                self.comm.send((key, value), dest=first, tag=self.tag)
                fault = self._hear(first)
        if fault:
            raise EngineError(fault)

    def announce(self, key: str, value: Any) -> None:
        """Say something in an agreement without waiting for it; of the first rank, it is the verdict."""
        self.refused.add(key)
        first, *others = self.ranks
        if self.comm.rank == first:
            said, to = f"the ranks call differently: rank {first} {value[0]}", others
        else:
            said, to = value, [first]
        self.sent[:] = [sent for sent in self.sent if not sent.Test()]
        self.sent.extend(self.comm.isend((key, said), dest=rank, tag=self.tag) for rank in to)

    def _hear(self, rank: int) -> Any:
        """What a rank says in an agreement; those about calls that this rank could not make are over."""
        while True:
            key, said = self.comm.recv(source=rank, tag=self.tag)
            if key not in self.refused:
                return said
