"""Mixed-radix numbers, most significant digit first: how devices and coordinates are numbered."""

from collections.abc import Sequence


def digits_of(number: int, radices: Sequence[int]) -> tuple[int, ...]:
    """The digits of a number: device 37 of 4 nodes with 16 GPUs each is GPU 5 of node 2.

    >>> digits_of(37, (4, 16))
    (2, 5)
    """
    digits = []
    for radix in reversed(radices):
        number, digit = divmod(number, radix)
        digits.append(digit)
    return tuple(reversed(digits))


def number_of(digits: Sequence[int], radices: Sequence[int]) -> int:
    """The number with the given digits.

    >>> number_of((2, 5), (4, 16))
    37
    """
    number = 0
    for digit, radix in zip(digits, radices, strict=True):
        number = number * radix + digit
    return number
