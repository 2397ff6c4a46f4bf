"""Prices: the times of many kinds of steps at once, as functions of the bytes that a device holds.

The bytes of all groups grow together, so that the links' work grows with them; latency does not, nor does what goes
with each message. So what one payload's steps put on the links tells the times of all payloads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.loads import Loads, Values, filling, together

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Priced:
    """One kind of step under one rule of a library, with each of the algorithms that the rule allows. Two are equal if
    they are the same object.

    held: the bytes that a device holds where the rest holds. busy: by algorithm and level, the seconds of the links;
    header_seconds: those for the headers of messages, whatever is held. many: how many phases each algorithm has.
    phases: by phase, the seconds of the busiest link, those of the processors, the latency, `first`, `apart`, `message`
    and `lone` of `Loads`, the seconds of a rank's own time for making the call, the piece and the hops of `filling`,
    how long making the call takes in all, and the busiest link's seconds for headers.
    """

    algorithms: tuple[str, ...]
    held: float
    busy: Values
    header_seconds: Values
    many: tuple[int, ...]
    phases: Values


def priced(found: Loads, names: Sequence[Sequence[str]], held: Sequence[float]) -> list[Priced]:
    """Several kinds of steps: the loads of all their algorithms, the names of these by kind, and the bytes held."""
    ends = [*found.begins[1:].tolist(), len(found.latency)]
    many = [end - begin for begin, end in zip(found.begins.tolist(), ends, strict=True)]
    busy = np.add.reduceat(found.seconds, found.begins, axis=0)
    headers = np.add.reduceat(found.seconds * found.header_share[:, None], found.begins, axis=0)
    work = found.seconds.max(axis=1)
    links = [work, found.processing, found.latency, found.first, found.apart, found.message, found.lone]
    phases = np.stack([*links, found.call, found.piece, found.hops, found.calling, work * found.header_share])
    kinds, option, phase = [], 0, 0
    for algorithms, each in zip(names, held, strict=True):
        after = option + len(algorithms)
        last = ends[after - 1]
        some = slice(option, after)
        kinds.append(
            Priced(tuple(algorithms), each, busy[some], headers[some], tuple(many[some]), phases[:, phase:last])
        )
        option, phase = after, last
    return kinds


@dataclass(frozen=True)
class Prices:
    """Several kinds of steps, each with its algorithms; an option is one kind with one algorithm.

    begins, ends: for each kind, the number of its first option, and of the one after its last. By option: owner, the
    number of its kind; algorithms; held, busy and header_seconds as in `Priced`; processing, those of the processors
    and of making the call; calling, how long making the call takes; first, the number of its first phase. of: by phase,
    the number of its option.
    """

    begins: Numbers
    ends: Numbers
    owner: Numbers
    algorithms: tuple[str, ...]
    held: Values
    busy: Values
    header_seconds: Values
    processing: Values
    calling: Values
    first: Numbers
    of: Numbers
    phases: Values

    @classmethod
    def joined(cls, kinds: Sequence[Priced]) -> "Prices":
        """Some kinds of steps in one."""
        options = [len(kind.algorithms) for kind in kinds]
        ends = np.cumsum(options, dtype=np.int64)
        many = [number for kind in kinds for number in kind.many]
        first = np.cumsum(many, dtype=np.int64) - many
        phases = np.concatenate([kind.phases for kind in kinds], axis=1)
        return cls(
            ends - options,
            ends,
            np.repeat(np.arange(len(kinds)), options),
            tuple([name for kind in kinds for name in kind.algorithms]),
            np.repeat([kind.held for kind in kinds], options),
            np.concatenate([kind.busy for kind in kinds]),
            np.concatenate([kind.header_seconds for kind in kinds]),
            np.add.reduceat(phases[1] + phases[7], first),
            np.add.reduceat(phases[10], first),
            first,
            np.repeat(np.arange(len(many)), many),
            phases,
        )

    def seconds(self, held: Values, flowing: bool = False) -> Values:
        """The times of the options when a device holds some bytes before a step of each kind.

        `held` may have more dimensions; kinds are the last one, and options are that of the result. flowing: where more
        chunks follow, and the step's groups need not wait for each other.
        """
        each = held[..., self.owner]
        share = each / self.held
        work, processing, latency, first, apart, message, lone, call, piece, hops, _, headers = self.phases
        if flowing:
            first, apart = message, lone
        links = share[..., self.of] * work + headers
        times = call + together(np.maximum(links, processing), latency, first, apart)
        if np.any(hops):
            times += filling(each[..., self.of], piece, hops)
        found: Values = np.add.reduceat(times, self.first, axis=-1)
        return found

    def fastest(self, seconds: Values) -> Numbers:
        """For each kind the option that takes the least of these seconds; of equal ones, the first."""
        if len(self.begins) == len(self.owner):
            return np.broadcast_to(np.arange(len(self.owner)), seconds.shape)
        least = np.minimum.reduceat(seconds, self.begins, axis=-1)[..., self.owner]
        numbers = np.where(seconds == least, np.arange(len(self.owner)), len(self.owner))
        found: Numbers = np.minimum.reduceat(numbers, self.begins, axis=-1)
        return found
