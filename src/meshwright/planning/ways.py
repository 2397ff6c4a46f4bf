"""Ways: every way to choose the rows of the axes from one position on, counted, and listed as arrays of codes.

Rows have codes: numbers that are added where rows are multiplied. They are the exponents of the prime factors, as
digits of a mixed-radix number. For example, on the counts (4, 8) the exponents of 2 are at most 2 and 3, so that the
first digit counts 1 each and the second 3 each: the row (2, 4) has the exponents 1 and 2 and the code 1 + 3 * 2 = 7.
Times (2, 1), which has the code 1, it is (4, 4), which has the code 8.
"""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from meshwright.placement.matrices import Matrix, prime_factors
from meshwright.planning.terms import Problem, Row, over

MOST_KEPT = 2**20
"""The codes of at most this many ways are kept; others are computed anew each time."""

Codes = NDArray[np.int32]


class Ways:
    """The ways to choose the rows of one problem.

    space: how many codes there are.
    """

    def __init__(self, problem: Problem, sets: Collection[int]) -> None:
        """`sets` are the sets of positions whose rows are multiplied, as bits: 0b110 is the positions 1 and 2."""
        self.problem, self.end, self.sets = problem, len(problem.sizes), sets
        self.digits, self.space = _digits(problem.counts)
        self.kept_from = self.end
        self._numbers: dict[tuple[int, Row], int] = {}
        self._kept: dict[tuple[int, Row], dict[int, Codes]] = {}

    def number(self, position: int, left: Row) -> int:
        """How many ways there are to choose the rows from a position on, when `left` is left of the counts."""
        if position == self.end:
            return 1
        key = position, left
        if key not in self._numbers:
            options = self.problem.rows(position, left)
            self._numbers[key] = sum([self.number(position + 1, over(left, row)) for row in options])
        return self._numbers[key]

    def code(self, row: Row) -> int:
        """The code of a row."""
        return sum([digits[factor] for digits, factor in zip(self.digits, row, strict=True)])

    def keep(self, position: int, lefts: set[Row]) -> None:
        """Keep the codes from the first position on at which there are few enough ways to complete these."""
        while position < self.end and sum([self.number(position, left) for left in lefts]) > MOST_KEPT:
            lefts = {over(left, row) for left in lefts for row in self.problem.rows(position, left)}
            position += 1
        self.kept_from = position

    def codes(self, position: int, left: Row) -> dict[int, Codes]:
        """For all ways to choose the rows from a position on, the codes of the products of some of these rows.

        For each of the sets, its positions from `position` on are multiplied. For example, with the set 0b110 and from
        position 2 on, that is the row at position 2 alone, and it stands under 0b100. Under 0 there are zeros.
        """
        if position == self.end:
            return {0: np.zeros(1, np.int32)}
        key = position, left
        found = self._kept.get(key)
        if found is None:
            wanted = {later(positions, position) for positions in self.sets} | {0}
            pieces: dict[int, list[Codes]] = {positions: [np.zeros(0, np.int32)] for positions in wanted}
            for row in self.problem.rows(position, left):
                others, code = self.codes(position + 1, over(left, row)), self.code(row)
                for positions in wanted:
                    rest = others[later(positions, position + 1)]
                    pieces[positions].append(rest + code if positions >> position & 1 else rest)
            found = {positions: np.concatenate(some) for positions, some in pieces.items()}
            if position >= self.kept_from:
                self._kept[key] = found
        return found

    def chosen(self, begun: Matrix, left: Row, number: int) -> Matrix:
        """All rows of the way with a number, after those that are chosen already."""
        for position in range(len(begun), self.end):
            for row in self.problem.rows(position, left):
                rest = over(left, row)
                ways = self.number(position + 1, rest)
                if number < ways:
                    break
                number -= ways
            begun, left = (*begun, row), rest
        return begun


def later(positions: int, position: int) -> int:
    """Those of some positions that are not before another."""
    return positions >> position << position


def _digits(counts: Row) -> tuple[list[dict[int, int]], int]:
    """For each level the part of a row's code that each factor has there, and how many codes there are."""
    digits, space = [], 1
    for count in counts:
        found = {1: 0}
        for prime, exponent in prime_factors(count).items():
            found = {factor * prime**e: code + e * space for factor, code in found.items() for e in range(exponent + 1)}
            space *= exponent + 1
        digits.append(found)
    return digits, space
