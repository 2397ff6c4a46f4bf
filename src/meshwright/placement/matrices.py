"""Matrices of positive integers with given row and column products: enumerated lazily, and counted.

Every prime factor can be treated alone: its exponents form a table with given row and column sums. For example, the
sizes 4 and 6 on the counts 2 and 12 have the matrix

    1 4  = 4        prime 2:  0 2 = 2        prime 3:  0 0 = 0
    2 3  = 6                  1 0 = 1                  0 1 = 1
    2 12                      1 2                      0 1
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from math import prod
from typing import TypeVar

from meshwright.errors import TooLargeError

Matrix = tuple[tuple[int, ...], ...]

MAX_WORK = 1_000_000
"""Counting gives up after this many steps."""

SMALL = 10_000
"""Lists with up to this many rows are cached; longer ones are made row by row each time."""


def matrices(sizes: tuple[int, ...], counts: tuple[int, ...]) -> Iterator[Matrix]:
    """All matrices of positive integers with the given row and column products.

    Row by row, without backtracking: whatever the first row is, the other rows can be filled. That is so for each
    prime alone: a table of exponents exists whenever the row sums and the column sums add up to the same total. For
    example, with the sizes 4 and 6 and the counts 2 and 12, the first row can be (2, 2), which leaves (1, 6), or
    (1, 4), which leaves (2, 3); both leave the product 6.

    >>> list(matrices((2, 2), (4,)))
    [((2,), (2,))]
    """
    size, *rest = sizes
    if not rest:
        yield (counts,)
    elif len(rest) == 1:
        yield from _pairs(size, counts)
    else:
        for row in rows(size, counts):
            left = tuple(count // factor for count, factor in zip(counts, row, strict=True))
            for tail in _pairs(rest[0], left) if len(rest) == 2 else matrices(tuple(rest), left):
                yield (row, *tail)


T = TypeVar("T")


def _kept(each: Callable[[int, tuple[int, ...]], Iterator[T]]) -> Callable[[int, tuple[int, ...]], Iterable[T]]:
    """The same function, with lists of at most `SMALL` results kept."""
    return lambda size, counts: (
        _listed(each, size, counts) if _count_rows(size, counts) <= SMALL else each(size, counts)
    )


@lru_cache(maxsize=2**15)
def _listed(each: Callable[[int, tuple[int, ...]], Iterator[T]], size: int, counts: tuple[int, ...]) -> tuple[T, ...]:
    return tuple(each(size, counts))


@_kept
def rows(size: int, counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The rows with product `size` whose factors divide `counts`; those with larger outer factors come first."""
    if len(counts) == 1:
        if counts[0] % size == 0:
            yield (size,)
        return
    for factor in _common_divisors(size, counts[0]):
        for row in rows(size // factor, counts[1:]):
            yield (factor, *row)


@lru_cache(maxsize=2**14)
def _count_rows(size: int, counts: tuple[int, ...]) -> int:
    """How many rows there are: the product over all primes of the ways to spread its exponent over the counts.

    `ways[e]` is in how many ways the levels so far can have taken the exponent e. For example, size 4 = 2^2 on the
    counts 2 and 8, which have room for 1 and 3 twos: [1, 0, 0] before the first level, [1, 1, 0] after it, [1, 2, 2]
    after the second. So there are ways[2] = 2 rows: (2, 2) and (1, 4).
    """
    number = 1
    for prime, exponent in prime_factors(size).items():
        ways = [1] + [0] * exponent
        for count in counts:
            most = prime_factors(count).get(prime, 0)
            ways = [sum(ways[max(0, e - most) : e + 1]) for e in range(exponent + 1)]
        number *= ways[exponent]
    return number


@_kept
def _pairs(size: int, counts: tuple[int, ...]) -> Iterator[Matrix]:
    """The last two rows: the second is what the first leaves. Many choices of the rows above lead to the same ones."""
    for row in rows(size, counts):
        yield row, tuple(count // factor for count, factor in zip(counts, row, strict=True))


@lru_cache(maxsize=2**14)
def _common_divisors(a: int, b: int) -> tuple[int, ...]:
    divisors = [1]
    for prime, exponent in prime_factors(a).items():
        powers = [prime**e for e in range(exponent + 1) if b % prime**e == 0]
        divisors = [d * power for d in divisors for power in powers]
    return tuple(sorted(divisors, reverse=True))


def count_matrices(sizes: tuple[int, ...], counts: tuple[int, ...]) -> int:
    """How many such matrices there are: the product over all primes of the number of tables of exponents.

    >>> count_matrices((8, 8, 16), (4, 8, 32))
    49
    """
    rows = [prime_factors(size) for size in sizes]
    columns = [prime_factors(count) for count in counts]
    primes = {prime for row in rows for prime in row}
    return prod(
        _count_tables(
            tuple(sorted(row.get(prime, 0) for row in rows)),
            tuple(sorted(column.get(prime, 0) for column in columns)),
        )
        for prime in primes
    )


@lru_cache(maxsize=2**14)
def _count_tables(rows: tuple[int, ...], columns: tuple[int, ...]) -> int:
    """How many tables of natural numbers have the given row and column sums.

    Row by row, `counts` says in how many ways the rows so far can leave certain column sums. The order of the columns
    does not matter, so they are sorted, which makes many cases one. For example, rows (1, 2) and columns (1, 2): the
    first row takes 1 from either column and leaves (0, 2) or (1, 1). The last row takes all that is left: 2 tables.
    """
    work = 0
    counts = {columns: 1}
    for row in rows[:-1]:
        after: dict[tuple[int, ...], int] = {}
        for left, count in counts.items():
            for rest in _take(row, left):
                work += 1
                if work > MAX_WORK:
                    raise TooLargeError("there are too many placements to count them in reasonable time")
                key = tuple(sorted(rest))
                after[key] = after.get(key, 0) + count
        counts = after
    return sum(counts.values())


def _take(total: int, columns: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All column sums that can be left after a row with the sum `total`: those of both halves."""
    if len(columns) < 2:
        if (columns and total <= columns[0]) or total == 0:
            yield tuple(column - total for column in columns)
        return
    first, second = columns[: len(columns) // 2], columns[len(columns) // 2 :]
    for taken in range(max(0, total - sum(second)), min(total, sum(first)) + 1):
        if len(columns) == 2:
            yield columns[0] - taken, columns[1] - total + taken
            continue
        for left in _take(taken, first):
            for others in _take(total - taken, second):
                yield left + others


@lru_cache(maxsize=2**14)
def prime_factors(number: int) -> dict[int, int]:
    """The primes that a number is a product of, each with its exponent."""
    factors: dict[int, int] = {}
    prime = 2
    while prime * prime <= number:
        while number % prime == 0:
            factors[prime] = factors.get(prime, 0) + 1
            number //= prime
        prime += 1
    if number > 1:
        factors[number] = factors.get(number, 0) + 1
    return factors
