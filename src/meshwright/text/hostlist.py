"""Lists of hosts as Slurm, PBS and host files have them, read; and written again in Slurm's brackets."""

import re
from collections.abc import Iterable, Iterator
from itertools import product
from math import prod

from meshwright.errors import SpecError
from meshwright.text.spec import shown

MOST_HOSTS = 65_536
"""The most hosts in a host list, as in Slurm."""

_TOKEN = re.compile(r"\[[^\[\]]*\]|[^\[\],]+|.", re.DOTALL)
_NUMBERS = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,15})", re.DOTALL)
_PBS = re.compile(r"[^/+\s]+/[^+\s]+(\+[^/+\s]+/[^+\s]+)*")


def parse_hosts(text: str, most: int = MOST_HOSTS) -> list[str]:
    """The names in a host list as Slurm writes it, for example in SLURM_JOB_NODELIST, or as PBS does in exec_host.

    >>> parse_hosts("login,n[08-10,12],r[1-2]n[1-2]-ib")
    ['login', 'n08', 'n09', 'n10', 'n12', 'r1n1-ib', 'r1n2-ib', 'r2n1-ib', 'r2n2-ib']
    >>> parse_hosts("n1/0*8+n2/0*8")
    ['n1', 'n2']
    """
    if _PBS.fullmatch(text):
        return list(dict.fromkeys(item.partition("/")[0] for item in text.split("+")))
    found: list[str] = []
    for item in _items(text):
        choices = [_numbers(token, most) if token.startswith("[") else [token] for token in item]
        if len(found) + prod(map(len, choices)) > most:
            raise SpecError(f"the host list names more than {most:,} hosts: {shown(text)}")
        found += map("".join, product(*choices))
    return found


def parse_hostfile(text: str) -> list[str]:
    """The hosts of a file with a host per line, as of Open MPI ("n1 slots=8"), MPICH ("n1:8") and PBS, whose
    PBS_NODEFILE repeats a host for each of its slots.

    >>> parse_hostfile("# job 7\\nn1 slots=8\\nn2:8\\nn3\\nn3\\nn[4-5]")
    ['n1', 'n2', 'n3', 'n4', 'n5']
    """
    words = (line.partition("#")[0].split() for line in text.splitlines())
    names = [re.sub(r":\d+$", "", line[0]) for line in words if line]
    return list(dict.fromkeys(parse_hosts(",".join(names)))) if names else []


def format_hosts(names: Iterable[str]) -> str:
    """Names in Slurm's brackets, in their order; the inverse of `parse_hosts`.

    >>> format_hosts(["login", "n08", "n09", "n10", "n12"])
    'login,n[08-10,12]'
    """
    runs: list[tuple[str, list[tuple[str, str]]]] = []  # prefixes, each with ranges from one number to another
    for name in names:
        match = _NUMBERED.fullmatch(name)
        prefix, digits = (match[1], match[2]) if match else (name, "")
        if not digits or not runs or runs[-1][0] != prefix or not runs[-1][1]:
            runs.append((prefix, [(digits, digits)] if digits else []))
            continue
        first, last = runs[-1][1][-1]
        if str(int(last) + 1).zfill(len(first)) == digits:
            runs[-1][1][-1] = (first, digits)
        else:
            runs[-1][1].append((digits, digits))
    return ",".join(_bracket(*run) for run in runs)


def _bracket(prefix: str, ranges: list[tuple[str, str]]) -> str:
    parts = [first if first == last else f"{first}-{last}" for first, last in ranges]
    return prefix + (f"[{','.join(parts)}]" if len(parts) > 1 or "-" in "".join(parts) else "".join(parts))


def _items(text: str) -> Iterator[list[str]]:
    """The items between the commas of a host list, each as its tokens: "n[1-2]-ib" is ["n", "[1-2]", "-ib"]."""
    item: list[str] = []
    for token in _TOKEN.findall(text):
        if token == ",":
            yield item or [""]
            item = []
        elif token in ("[", "]"):
            raise SpecError(f"a bracket is open or closed alone in the host list {shown(text)}")
        else:
            item.append(token if token.startswith("[") else token.strip())
    yield item or [""]


def _numbers(bracket: str, most: int) -> list[str]:
    """The numbers in a bracket, padded to the width of the first of their range: [08-10] is 08, 09, 10."""
    found: list[str] = []
    for item in bracket[1:-1].split(","):
        match = _NUMBERS.fullmatch(item.strip())
        if match is None:
            raise SpecError(f"expected numbers and ranges in brackets, like [1-4,7] or [001-010], not {bracket[:80]}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise SpecError(f"the range {item.strip()} in {bracket[:80]} counts down")
        if len(found) + last - first >= most:
            raise SpecError(f"the host list names more than {most:,} hosts: {bracket[:80]}")
        found += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return found
