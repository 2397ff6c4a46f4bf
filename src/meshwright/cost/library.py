"""Libraries: which algorithm gloo, NCCL or Open MPI uses for which collective and size, from files in libraries/.

    name: gloo
    rotates: false
    handshake: true
    headers: 360B
    call: 600us
    message: 100us
    collectives:
      AllReduce: [{algorithms: [ring]}]
      Broadcast: [{algorithms: [binomial], up_to: 64KiB}, {algorithms: [ring], efficiency: 0.9}]
    in_chunks: {}   # other rules of collectives where chunks flow through the steps of a program
    own: {}         # other rules of collectives that users call by themselves: engines may have something better

For each collective the first rule applies whose `up_to` is at least the bytes that a device holds; with
`per_rank: true`, `up_to` counts for each rank of the group, and a rule with `ranks: 3` beside it is for groups of three
and more. Of the rule's `algorithms` that can be used in the group, the library takes the fastest; if none can, the
fastest of `otherwise`. With `piece: 512KiB`, what goes down a line of members is handed on in pieces of that size.
Where the rules of a collective have `forecasts`, the one applies that has the least of them (see
`meshwright.cost.forecasts`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from os import PathLike
from pathlib import Path
from typing import Any

import yaml

from meshwright.cost.algorithms import ALGORITHMS
from meshwright.cost.forecasts import FORESEEN, Forecast, Seen, choices, forecast_document, forecasts_of
from meshwright.errors import SpecError
from meshwright.language.program import Collective
from meshwright.text.builtin import builtin_names, load_text
from meshwright.text.spec import (
    as_tuple,
    check_count,
    check_title,
    check_type,
    is_number,
    one_of,
    parse_count,
    shown,
    unknown,
)
from meshwright.text.units import parse_bytes, parse_seconds
from meshwright.text.yamlfile import Reader, boolean, compose, items, mapping, node_of, parsed, problem, word

_EXAMPLE = "collectives: {AllReduce: [{algorithms: [ring]}], …}, a rule for each collective"


@dataclass(frozen=True, slots=True)
class LibraryRule:
    """What a library does with a collective up to some size.

    algorithms: the fastest of these is taken; otherwise: the fastest of these where none of the first can be used.
    up_to: the rule applies while a device holds at most this many bytes; None: always.
    ranks: it applies in groups of at least this many ranks; it needs `up_to`.
    efficiency: the share of the links' bandwidth that the library reaches.
    per_rank: up_to is meant for each rank of the group: twice the ranks, twice the bytes.
    piece: in a Reduce or Broadcast along a ring, a member hands on pieces of at most this many bytes, and at least two,
    each when it has all of it; None: bytes are handed on as they come.
    forecasts: what the library expects of the algorithm, with each of its protocols, where it chooses by that.
    posted: in a ring without a root, receives are posted ahead: no message but the first waits for a handshake.
    """

    algorithms: tuple[str, ...]
    otherwise: tuple[str, ...] = ()
    up_to: int | None = None
    efficiency: float = 1.0
    per_rank: bool = False
    piece: int | None = None
    forecasts: tuple[Forecast, ...] = ()
    ranks: int = 1
    posted: bool = False

    def __post_init__(self) -> None:
        """Refuse what no library can do."""
        for name in as_tuple((*self.algorithms, *self.otherwise), str, "algorithms"):
            if name not in ALGORITHMS:
                raise SpecError(unknown("algorithm", name, ALGORITHMS))
        if not self.algorithms:
            raise SpecError("a rule of a library needs at least one algorithm, like 'ring'")
        if self.up_to is not None and (type(self.up_to) is not int or self.up_to < 0):
            raise SpecError(f"a rule counts up to a number of bytes, not {shown(self.up_to)}")
        if not is_number(self.efficiency) or not LEAST_EFFICIENCY <= self.efficiency <= 1:
            raise SpecError(
                f"the efficiency must be at least {LEAST_EFFICIENCY} and at most 1, not {shown(self.efficiency)}"
            )
        check_count(self.ranks, "'ranks' in the rule", "ranks: 3")
        if self.ranks > 1 and self.up_to is None:
            raise SpecError("a rule with 'ranks' needs 'up_to': beyond, and in smaller groups, a later rule holds")
        if self.piece is not None and (type(self.piece) is not int or self.piece < 1):
            raise SpecError(f"a piece has at least one byte, not {shown(self.piece)}")
        if self.per_rank and self.up_to is None:
            raise SpecError("a rule per rank needs 'up_to': the bytes of each rank up to which it holds")
        if as_tuple(self.forecasts, Forecast, "forecasts"):
            if len(self.algorithms) != 1 or self.otherwise or self.up_to is not None:
                raise SpecError("a rule with forecasts has one algorithm, and neither 'otherwise' nor 'up_to'")
            one_of(FORESEEN, "algorithm with forecasts", self.algorithms[0])

    def limit(self, ranks: int) -> int | None:
        """The most bytes that a device holds under this rule, in groups of some ranks; None: any number."""
        return self.up_to if self.up_to is None or not self.per_rank else self.up_to * ranks


LEAST_EFFICIENCY = 0.001

_MOST = {"call": (3600, "seconds"), "message": (3600, "seconds"), "headers": (1 << 20, "bytes")}
"""The most that a call or a message may take, and that may go with a message."""

Rules = tuple[tuple[Collective, tuple[LibraryRule, ...]], ...]
"""The rules of collectives."""


@dataclass(frozen=True, slots=True)
class Library:
    """A collective library as the cost model sees it: rules per collective, the one without a limit last.

    rotates: rings and trees are laid so that all devices of an instance take turns in leaving it.
    handshake: a message is sent when the receiver has said that it is ready, so that it takes the latency twice, and
    no message of a ring is ahead of the others, unless its rule has `posted`.
    in_chunks: the rules of collectives that work differently where chunks flow through the steps of a program.
    own: the rules of collectives that work differently where they are called without Meshwright, whose engines compose
    something better.
    call: seconds that making a call takes of a rank's own time. message: what the library adds to the latency of each
    message. Both count unless the system says what its processors do (`message_rate`). headers: the bytes that go with
    each message on the links: its headers, its handshake, and what acknowledges it.
    adapts: where chunks flow through the steps of a program, the algorithms of all steps are chosen together, so that
    the whole is fastest; otherwise each step takes what is fastest for itself.
    """

    name: str
    rotates: bool
    rules: Rules
    in_chunks: Rules = ()
    handshake: bool = False
    adapts: bool = False
    call: float = 0.0
    message: float = 0.0
    own: Rules = ()
    headers: int = 0

    def __post_init__(self) -> None:
        """Refuse a library without a rule for some collective or size."""
        check_title(self.name, "the name of a library")
        for name in ("rotates", "handshake", "adapts"):
            check_type(getattr(self, name), bool, f"True or False for {name!r} of the library {shown(self.name)}")
        for name, (most, unit) in _MOST.items():
            value, here = getattr(self, name), f"{name!r} of the library {shown(self.name)}"
            if not is_number(value) or not 0 <= value <= most or (unit == "bytes" and type(value) is not int):
                raise SpecError(f"expected {unit} from 0 to {most} for {here}, not {shown(value)}")
        for rules in (self.rules, self.in_chunks, self.own):
            for entry in as_tuple(
                rules, tuple, "rules, each of a collective: (Collective.REDUCE, (LibraryRule(…), …))"
            ):
                if len(entry) != 2 or not isinstance(entry[0], Collective):
                    raise SpecError(f"expected a collective and its rules, not {shown(entry)}")
                _check_rules(as_tuple(entry[1], LibraryRule, f"the rules of {entry[0]}"), entry[0])
                if not self.handshake and any(rule.posted for rule in entry[1]):
                    raise SpecError(f"a rule of {entry[0]} has 'posted', which needs a library with 'handshake'")
        missing = [str(collective) for collective in Collective if collective not in dict(self.rules)]
        if missing:
            raise SpecError(f"the library {shown(self.name)} has no rules for {', '.join(missing)}")

    def choices(self, collective: Collective, seen: Seen) -> list[tuple[int | None, LibraryRule]]:
        """The rules for a collective in a group, each with the most bytes that are held under it; the last has None."""
        rules = dict(self.rules)[collective]
        if rules[0].forecasts:
            every = [(k, rule.algorithms[0], one) for k, rule in enumerate(rules) for one in rule.forecasts]
            return [(limit, rules[number]) for limit, number in choices(tuple(every), collective, seen)]
        return [(rule.limit(seen.ranks), rule) for rule in rules if rule.ranks <= seen.ranks]

    def rule(self, collective: Collective, held: float, seen: Seen) -> LibraryRule:
        """The rule for a collective in a group, when a device holds `held` bytes."""
        return chosen(self.choices(collective, seen), held)

    @property
    def trips(self) -> int:
        """How often a message takes the latency."""
        return 2 if self.handshake else 1

    @property
    def chunked(self) -> "Library":
        """The library with the rules that hold where chunks flow through the steps of a program."""
        if not self.in_chunks:
            return self
        return replace(self, rules=tuple((dict(self.rules) | dict(self.in_chunks)).items()), in_chunks=())

    @property
    def alone(self) -> "Library":
        """The library as it is without Meshwright."""
        if not self.own:
            return self
        return replace(self, rules=tuple((dict(self.rules) | dict(self.own)).items()), own=())


def chosen(every: Sequence[tuple[int | None, LibraryRule]], held: float) -> LibraryRule:
    """Which of the choices of a library applies when a device holds `held` bytes."""
    return next(rule for limit, rule in every if limit is None or held <= limit)


def library_names() -> tuple[str, ...]:
    """The names of the built-in libraries, sorted."""
    return builtin_names("meshwright.cost", "libraries")


def as_library(library: "Library | str | PathLike[str]") -> Library:
    """The given library, or the one that `load_library` makes of a name or a path."""
    return library if isinstance(library, Library) else load_library(library)


def load_library(spec: str | PathLike[str]) -> Library:
    """A built-in library by its name, or one from the path of a YAML file.

    >>> load_library("gloo").rule(Collective.BROADCAST, 2**20, Seen(ranks=8)).algorithms
    ('binomial',)
    """
    expected = "a Library, the name of one, or the path of a .yaml file"
    return parse_library_yaml(*load_text(spec, "library", expected, "meshwright.cost", "libraries"))


@lru_cache(maxsize=64)
def parse_library_yaml(text: str, source: str) -> Library:
    """A library from YAML text; `source` is what error messages call it."""
    return _library(compose(text, source, _EXAMPLE), source)


def library_of(document: Any, source: str) -> Library:
    """A library from what `library_document` gives; `source` is what error messages call it."""
    return _library(node_of(document, source), source)


def _library(root: yaml.Node, source: str) -> Library:
    readers: dict[str, Reader] = {
        "name": word,
        **dict.fromkeys(("rotates", "handshake", "adapts"), boolean),
        **dict.fromkeys(("call", "message"), parsed(parse_seconds)),
        "headers": parsed(parse_bytes),
        "collectives": partial(_collectives, "collectives", True),
        "in_chunks": partial(_collectives, "in_chunks", False),
        "own": partial(_collectives, "own", False),
    }
    values: dict[str, Any] = {"name": Path(source).stem, "rotates": False}
    values |= mapping(root, source, "a library", readers, ["collectives"])
    try:
        return Library(rules=values.pop("collectives"), **values)
    except SpecError as error:
        raise problem(root, source, str(error)) from None


def library_document(library: Library) -> dict[str, Any]:
    """What a library file holds, as plain data; `library_of` reads it back exactly, also from JSON."""
    document = {"name": library.name, "rotates": library.rotates, "collectives": _documents(library.rules)}
    document |= {"handshake": True} if library.handshake else {}
    document |= {"adapts": True} if library.adapts else {}
    document |= {name: f"{seconds!r}s" for name in ("call", "message") if (seconds := getattr(library, name))}
    document |= {"headers": f"{library.headers}B"} if library.headers else {}
    document |= {"own": _documents(library.own)} if library.own else {}
    return document | ({"in_chunks": _documents(library.in_chunks)} if library.in_chunks else {})


def _documents(rules: Rules) -> dict[str, Any]:
    return {
        str(collective): [
            {"algorithms": list(rule.algorithms)}
            | ({"otherwise": list(rule.otherwise)} if rule.otherwise else {})
            | ({"up_to": f"{rule.up_to}B"} if rule.up_to is not None else {})
            | ({"ranks": rule.ranks} if rule.ranks > 1 else {})
            | ({"efficiency": rule.efficiency} if rule.efficiency != 1 else {})
            | ({"per_rank": True} if rule.per_rank else {})
            | ({"piece": f"{rule.piece}B"} if rule.piece is not None else {})
            | ({"posted": True} if rule.posted else {})
            | ({"forecasts": [forecast_document(one) for one in rule.forecasts]} if rule.forecasts else {})
            for rule in each
        ]
        for collective, each in rules
    }


def _collectives(key: str, every: bool, node: yaml.Node, source: str) -> Rules:
    readers: dict[str, Reader] = {str(collective): partial(_rules, collective) for collective in Collective}
    rules = mapping(node, source, repr(key), readers, readers if every else [])
    return tuple((collective, rules[collective]) for collective in Collective if collective in rules)


def _rules(collective: Collective, node: yaml.Node, source: str) -> tuple[LibraryRule, ...]:
    nodes = items(node, source, "the rules of a collective")
    values = [mapping(child, source, "a rule", _RULE, ["algorithms"]) for child in nodes]
    try:
        rules = tuple(LibraryRule(**each) for each in values)
        _check_rules(rules, collective)
    except SpecError as error:
        raise problem(node, source, str(error)) from None
    return rules


def _check_rules(rules: Sequence[LibraryRule], collective: Collective) -> None:
    foreseen = [rule.algorithms[0] for rule in rules if rule.forecasts]
    if foreseen:
        if len(foreseen) < len(rules) or "ring" not in foreseen:
            raise SpecError("either all rules of a collective have forecasts, one of them for ring, or none has")
        if collective is not Collective.ALL_REDUCE and {*foreseen} != {"ring"}:
            raise SpecError(f"of the algorithms with forecasts, only ring can do {collective}")
        return
    limits = [rule.up_to for rule in rules]
    some = [limit for limit in limits[:-1] if limit is not None]
    if not limits or limits[-1] is not None or len(some) < len(limits) - 1 or some != sorted(set(some)):
        raise SpecError("the last rule must have no 'up_to', and those before it growing ones")
    if len({rule.per_rank for rule in rules[:-1]}) > 1:
        raise SpecError("either all rules with 'up_to' are per rank, or none is")


def _algorithms(node: yaml.Node, source: str) -> tuple[str, ...]:
    names = []
    for child in items(node, source, "algorithms"):
        name = word(child, source)
        if name not in ALGORITHMS:
            raise problem(child, source, unknown("algorithm", name, ALGORITHMS))
        if name in names:
            raise problem(child, source, f"the algorithm {name!r} is named twice")
        names.append(name)
    return tuple(names)


def _parse_efficiency(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not LEAST_EFFICIENCY <= value <= 1:
        raise SpecError(f"the efficiency must be at least {LEAST_EFFICIENCY} and at most 1, not {shown(text)}")
    return value


_RULE: dict[str, Reader] = {
    "algorithms": _algorithms,
    "otherwise": _algorithms,
    "up_to": parsed(parse_bytes),
    "ranks": parsed(partial(parse_count, name="ranks", what="rule", example="ranks: 3")),
    "efficiency": parsed(_parse_efficiency),
    "per_rank": boolean,
    "piece": parsed(parse_bytes),
    "posted": boolean,
    "forecasts": forecasts_of,
}
