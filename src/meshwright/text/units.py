"""Units: sizes, bandwidths, times and rates from text like "2 GiB", "8 GB/s", "20 us", and back to text.

Prefixes are case-sensitive, and a unit is always required: `8GB/s` means bytes, `8Gbit/s` means bits, and `8Gb/s`,
which people read both ways, is refused. People are shown three digits (`format_…`); files and commands have what is
read back as exactly the same (`exact_…`, `format_bytes`).
"""

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction

from meshwright.errors import SpecError
from meshwright.text.spec import check_type, shown

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_PREFIXES = _DECIMAL | _BINARY

Units = dict[str, int] | dict[str, float]
"""Units by what they are called, the smallest first."""

_BYTES = {f"{p}B": Fraction(f) for p, f in _PREFIXES.items()}
_BANDWIDTHS = (
    {f"{p}B/s": Fraction(f) for p, f in _PREFIXES.items()}
    | {f"{p}bit/s": Fraction(f, 8) for p, f in _PREFIXES.items()}
    | {f"{p}bps": Fraction(f, 8) for p, f in _DECIMAL.items()}
)
_MICRO = Fraction(1, 10**6)
_TIMES = {
    "ns": Fraction(1, 10**9),
    "us": _MICRO,
    "\u00b5s": _MICRO,  # micro sign
    "\u03bcs": _MICRO,  # Greek mu
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
}

_QUANTITY = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,2})?)\s*([A-Za-z\u00b5\u03bc/]*)\s*")

_AMBIGUOUS = {
    "b": "GB for bytes, GiB for 2^30 bytes",
    "b/s": "GB/s for bytes, Gbit/s for bits",
    "KB": "kB for 1000, KiB for 1024",
    "KB/s": "kB/s for 1000, KiB/s for 1024",
}


def _parse(text: str, units: dict[str, Fraction], what: str, examples: str) -> Fraction:
    check_type(text, str, f"a {what} as text, like {examples}")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise SpecError(f"{shown(text)} is not a {what}: expected a number and a unit, like {examples}")
    number, unit = match.groups()
    if unit not in units:
        problem = f"has the unknown unit {shown(unit)}" if unit else "has no unit"
        for ending, hint in _AMBIGUOUS.items():
            if unit.endswith(ending):
                problem += f" (write {hint})"
        raise SpecError(f"{shown(text)} is not a {what}: it {problem}; write it like {examples}")
    value = Fraction(number) * units[unit]
    if value and not 1e-30 <= value <= 1e30:
        raise SpecError(f"{shown(text)} is not a sensible {what}; write it like {examples}")
    return value


def parse_bytes(text: str) -> int:
    """Bytes from text; the result must be a whole number.

    >>> parse_bytes("2GiB"), parse_bytes("1.5 kB")
    (2147483648, 1500)
    """
    value = _parse(text, _BYTES, "size", "64MiB, 2GB or 512B")
    if value.denominator != 1:
        raise SpecError(f"{shown(text)} is not a whole number of bytes ({float(value)})")
    return int(value)


def parse_bandwidth(text: str) -> float:
    """Bytes per second from text.

    >>> parse_bandwidth("8GB/s"), parse_bandwidth("20 Mbit/s")
    (8000000000.0, 2500000.0)
    """
    value = float(_parse(text, _BANDWIDTHS, "bandwidth", "8GB/s, 25Gbit/s or 400Gbps"))
    if value <= 0:
        raise SpecError(f"{text!r} is not a usable bandwidth: it must be greater than zero")
    return value


def parse_seconds(text: str) -> float:
    """Seconds from text.

    >>> parse_seconds("20us")
    2e-05
    """
    return float(_parse(text, _TIMES, "time", "20us, 1.5ms or 0.2s"))


def parse_rate(text: str) -> float:
    """Messages per second from text.

    >>> parse_rate("6000/s"), parse_rate("2.5M/s")
    (6000.0, 2500000.0)
    """
    units = {f"{prefix}/s": Fraction(factor) for prefix, factor in _DECIMAL.items()}
    return float(_parse(text, units, "rate of messages", "6000/s or 2M/s"))


def in_bits(text: str) -> bool:
    """Whether a bandwidth is written in bits per second, as networks are sold, and not in bytes.

    >>> in_bits("20 Mbit/s"), in_bits("400Gbps"), in_bits("8GB/s")
    (True, True, False)
    """
    return text.strip().endswith(("bit/s", "bps"))


def format_bytes(value: int) -> str:
    """The exact size, as files and commands have it: with the fewest digits, and at most three decimals.

    >>> format_bytes(2**31), format_bytes(2 * 10**9), format_bytes(1537)
    ('2GiB', '2GB', '1.537kB')
    """
    found = [f"{value}B"]
    for prefix, factor in (_BINARY | _DECIMAL).items():
        if prefix and value >= factor and value * 1000 % factor == 0:
            whole, thousandths = divmod(value * 1000 // factor, 1000)
            found.append(f"{whole}.{thousandths:03}".rstrip("0").rstrip(".") + f"{prefix}B")
    return min(found, key=lambda text: (sum(letter.isdigit() for letter in text), len(text.partition(".")[0])))


def format_amount(value: float, like: float = 0) -> str:
    """An amount of data, to three digits: in decimal units where `like` is a size that people write in those.

    >>> format_amount(2**31), format_amount(1.5), format_amount(0.937 * 2**20), format_amount(1.5e9, like=2e9)
    ('2GiB', '1.5B', '959KiB', '1.5GB')
    """
    return _figure(value, _DECIMAL if _is_decimal(like) else _BINARY) + "B"


def format_size(value: int) -> str:
    """A size that a user gave, to three digits, in the units that it was most likely written in.

    >>> format_size(2**31), format_size(2 * 10**9), format_size(766872539)
    ('2GiB', '2GB', '731MiB')
    """
    return format_amount(value, value)


def format_sizes(values: Sequence[int]) -> list[str]:
    """Sizes of one table, all in the same units: in decimal ones where each of them is a size that people write so.

    >>> format_sizes([10**9, 3 * 10**6]), format_sizes([10**9, 2**20])
    (['1GB', '3MB'], ['954MiB', '1MiB'])
    """
    decimal = all(map(_is_decimal, values))
    return [format_amount(value, value if decimal else 0) for value in values]


def _is_decimal(size: float) -> bool:
    """Whether a size has few digits in decimal units, and more in binary ones."""
    binary = _figure(size, _BINARY)
    is_short = not re.match("[0-9]{4}", binary) and _parse(f"{binary}B", _BYTES, "size", "") == size
    return float(f"{size:.3g}") == size and not is_short


def format_bandwidth(value: float, bits: bool = False) -> str:
    """A bandwidth in bytes per second, to three digits; bits: shown in bits per second.

    >>> format_bandwidth(2.7e11), format_bandwidth(2571064.58), format_bandwidth(2.5e6, bits=True)
    ('270GB/s', '2.57MB/s', '20Mbit/s')
    """
    return _figure(value * 8, _DECIMAL) + "bit/s" if bits else _figure(value, _DECIMAL) + "B/s"


def format_seconds(value: float) -> str:
    """A time, to three digits.

    >>> format_seconds(0.00002), format_seconds(1.597), format_seconds(0.9999), format_seconds(0)
    ('20us', '1.6s', '1s', '0s')
    """
    return _figure(value, {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}) if value else "0s"


def _figure(value: float, units: Units) -> str:
    """A value to three digits, in the largest unit that it has at least one of; from 1000 on, all whole digits."""
    fitting = (unit for unit, factor in reversed(units.items()) if float(f"{value / factor:.3g}") >= 1)
    unit = next(fitting, next(iter(units)))
    number = value / units[unit]
    return (f"{number:.0f}" if number >= 999.5 else f"{number:.3g}") + unit


def exact_bandwidth(value: float, bits: bool = False) -> str:
    """A bandwidth for files: the shortest text that is read back as exactly the same.

    >>> exact_bandwidth(8e9), exact_bandwidth(2571064.5817262535, bits=True)
    ('8GB/s', '20.568516653810028Mbit/s')
    """
    return _exact(value, 8 if bits else 1, _DECIMAL, "bit/s" if bits else "B/s", parse_bandwidth)


def exact_seconds(value: float) -> str:
    """A time for files: the shortest text that is read back as exactly the same.

    >>> exact_seconds(2e-5), exact_seconds(1 / 3)
    ('20us', '333.3333333333333ms')
    """
    return _exact(value, 1, {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}, "s", parse_seconds)


def _exact(value: float, scale: int, units: Units, ending: str, parse: Callable[[str], float]) -> str:
    """The shortest text in the largest of some units that it has at least one of; else a Python number in bytes or
    seconds, which is as exact.
    """
    number = Decimal(value) * scale
    unit = next((unit for unit, factor in reversed(units.items()) if number >= Decimal(str(factor))), next(iter(units)))
    for digits in range(1, 18):
        text = f"{number / Decimal(str(units[unit])):.{digits}g}"
        if "e" not in text and parse(f"{text}{unit}{ending}") == value:
            return f"{text}{unit}{ending}"
    return f"{value!r}{ending if scale == 1 else 'B/s'}"
