"""Units: sizes, bandwidths, times and rates from text like "2 GiB", "8 GB/s", "20 us", and back to text.

Prefixes are case-sensitive, and a unit is always required: `8GB/s` means bytes, `8Gbit/s` means bits, and `8Gb/s`,
which people read both ways, is refused.
"""

import re
from fractions import Fraction

from meshwright.errors import SpecError
from meshwright.text.spec import check_type, shown

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_PREFIXES = _DECIMAL | _BINARY

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


def format_bytes(value: int) -> str:
    """The exact size with the largest unit that needs at most three decimals; in plain bytes if there is none.

    >>> format_bytes(2**31), format_bytes(1500), format_bytes(1537)
    ('2GiB', '1.5kB', '1.537kB')
    """
    for prefixes in (_BINARY, _DECIMAL):
        for prefix, factor in reversed(prefixes.items()):
            if prefix and value >= factor and value * 1000 % factor == 0:
                whole, thousandths = divmod(value * 1000 // factor, 1000)
                return f"{whole}.{thousandths:03}".rstrip("0").rstrip(".") + f"{prefix}B"
    return f"{value}B"


def format_amount(value: float) -> str:
    """An amount of data, rounded to four digits.

    >>> format_amount(2**31), format_amount(1.5), format_amount(0.9375 * 2**20)
    ('2GiB', '1.5B', '960KiB')
    """
    return _rounded(value, _BINARY) + "B"


def format_bandwidth(value: float) -> str:
    """A bandwidth, rounded to four digits.

    >>> format_bandwidth(2.7e11), format_bandwidth(2.5e6)
    ('270GB/s', '2.5MB/s')
    """
    return _rounded(value, _DECIMAL) + "B/s"


def _rounded(value: float, prefixes: dict[str, int]) -> str:
    prefix = next((prefix for prefix, factor in reversed(prefixes.items()) if value >= factor), "")
    return f"{value / prefixes.get(prefix, 1):.4g}{prefix}"


def format_seconds(value: float) -> str:
    """A time, rounded to four digits.

    >>> format_seconds(0.00002), format_seconds(1.597), format_seconds(0)
    ('20us', '1.597s', '0s')
    """
    if value == 0:
        return "0s"
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= factor * 0.9999999:
            return f"{value / factor:.4g}{unit}"
    return f"{value / 1e-9:.4g}ns"
