"""The text form of programs, read: a recursive-descent parser whose complaints show the place.

    program    = step *( ";" step ) | "nothing"
    step       = collective grouping
    collective = "AllReduce" | "ReduceScatter" | "AllGather" | "Reduce" | "Broadcast"
    grouping   = "all" | "inside" LEVEL | "across" LEVEL [ "within" LEVEL ] | "masters of" LEVEL [ "within" LEVEL ]
    pipelined  = program | share *( "|" share )
    share      = program ", in" COUNT "chunks"

`LEVEL` is the name of a level of the hierarchy that the program is for.
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from meshwright.errors import ProgramSyntaxError, SpecError
from meshwright.language.program import Collective, Grouping, Pipelined, Program, Step
from meshwright.placement.hierarchy import Hierarchy
from meshwright.text.spec import check_type, shown

_TOKEN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*|;|\S")
_COLLECTIVES = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", joint, collective).lower(): collective
    for collective in Collective
    for joint in ("", "-", "_")
}


def parse_program(text: str, hierarchy: Hierarchy) -> Program:
    """A program from its text; the inverse of `Program.text`.

    Collectives may also be written like `all-reduce` or `all_reduce`.

    >>> h = Hierarchy(("node", "gpu"), (4, 16))
    >>> parse_program("Reduce inside node; AllReduce masters of node; Broadcast inside node", h).text(h)
    'Reduce inside node; AllReduce masters of node; Broadcast inside node'
    """
    check_type(text, str, "a program as text, like 'Reduce all; Broadcast all'")
    check_type(hierarchy, Hierarchy, "a Hierarchy; parse_hierarchy makes one from text")
    if text.strip().lower() == "nothing":
        return Program(())
    return Program(_Parser(text, hierarchy.names).program())


class _Parser:
    """Recursive descent over the tokens of one program."""

    def __init__(self, text: str, names: tuple[str, ...]) -> None:
        self.text, self.names = text, names
        self.tokens = [(match.group(), match.start()) for match in _TOKEN.finditer(text)]
        self.tokens.append(("", len(text.rstrip())))
        self.at = 0

    def fail(self, expected: str, before: int = 0) -> ProgramSyntaxError:
        return ProgramSyntaxError(self.text, self.tokens[self.at - before][1], expected)

    def take(self, word: str) -> bool:
        if self.tokens[self.at][0].lower() != word:
            return False
        self.at += 1
        return True

    def program(self) -> tuple[Step, ...]:
        steps = [self.step()]
        while self.take(";"):
            steps.append(self.step())
        if self.tokens[self.at][0]:
            raise self.fail("expected ';' or the end of the program")
        return tuple(steps)

    def step(self) -> Step:
        word = self.tokens[self.at][0]
        collective = _COLLECTIVES.get(word.lower())
        if collective is None:
            raise self.fail(f"expected a collective{_did_you_mean(word, list(Collective))}")
        self.at += 1
        return Step(collective, self.grouping())

    def grouping(self) -> Grouping:
        innermost = len(self.names) - 1
        if self.take("all"):
            if innermost < 0:
                raise self.fail("the hierarchy has no levels, so the only program is 'nothing'")
            return Grouping(0, innermost)
        if self.take("inside"):
            first = self.level() + 1
            if first > innermost:
                raise self.fail(f"nothing is inside {self.names[-1]!r}, the innermost level", before=1)
            return Grouping(first, innermost)
        if self.take("across"):
            return self.interval(masters=False)
        if self.take("masters"):
            if not self.take("of"):
                raise self.fail("expected 'of' after 'masters'")
            return self.interval(masters=True)
        words = ["all", "inside", "across", "masters"]
        raise self.fail(f"expected a grouping{_did_you_mean(self.tokens[self.at][0], words)}")

    def interval(self, *, masters: bool) -> Grouping:
        last = self.level()
        if masters and last == len(self.names) - 1:
            raise self.fail(f"{self.names[last]!r} is the innermost level: it has no masters, only devices", before=1)
        first = 0
        if self.take("within"):
            first = self.level() + 1
            if first > last:
                raise self.fail(f"expected a level outside {self.names[last]!r} after 'within'", before=1)
        return Grouping(first, last, masters)

    def level(self) -> int:
        word = self.tokens[self.at][0]
        if word not in self.names:
            raise self.fail(f"expected a level{_did_you_mean(word, list(self.names))}")
        self.at += 1
        return self.names.index(word)


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    close = get_close_matches(word, known, n=1)
    return f" ({', '.join(known)})" + (f"; did you mean '{close[0]}'?" if close else "")


def parse_pipelined(text: str, hierarchy: Hierarchy) -> Pipelined:
    """A pipelined program from its text; the inverse of `Pipelined.text`.

    >>> h = Hierarchy(("node", "gpu"), (4, 16))
    >>> parse_pipelined("Reduce all; Broadcast all, in 8 chunks", h).chunks
    8
    """
    shares = []
    for share in text.split("|"):
        match = re.fullmatch(r"(.*?)(?:,\s*in\s+([0-9]{1,6})\s+chunks?)?\s*", share, re.DOTALL)
        assert match is not None
        if "|" in text and match[2] is None:
            raise SpecError(
                f"{shown(share.strip())} shares the chunks with others: say how many it takes, ', in 4 chunks'"
            )
        shares.append((parse_program(match[1], hierarchy), int(match[2] or 1)))
    return Pipelined(tuple(shares))
