"""A plain list of hosts with the names of their racks, as CSV."""

import csv
import re

from meshwright.discovery.model import MOST_HOSTS, Place, Tier, Topology, wrong
from meshwright.discovery.nominal import NODE_TYPES, gpus
from meshwright.text.spec import shown

HOSTS = ("host", "hosts", "hostname", "node", "nodename", "name", "instance")
"""Titles of the column with the hosts."""

MOST_COLUMNS, MOST_LETTERS = 16, 255


def parse_table(text: str, source: str) -> Topology:
    """A topology from lines of comma-separated values.

    The first line may name the columns: `host`, any groups like `rack` and `row`, and perhaps `gpus`, how many each
    host has, or `type`, like p5.48xlarge. Without such a line, the first column has the hosts and the second the racks.
    """
    rows = _rows(text, source)
    titles = [cell.lower() for cell in rows[0][1]] if rows else []
    if any(title in HOSTS for title in titles):
        rows = rows[1:]
    else:
        titles = ["host", *(["rack"] if len(titles) == 2 else [f"group{k}" for k in range(1, len(titles))])]
    if not rows:
        raise wrong(source, None, "no hosts in it")
    at = next(number for number, title in enumerate(titles) if title in HOSTS)
    hosts: dict[str, Place] = {}
    groups: dict[int, dict[str, str]] = {
        k: {} for k, title in enumerate(titles) if k != at and title not in ("gpus", "type")
    }
    known: dict[tuple[str, str], Place] = {}
    for line, cells in rows:
        if len(cells) != len(titles):
            raise wrong(source, line, f"{len(cells)} columns; expected {len(titles)}: {', '.join(titles)[:80]}")
        name = cells[at]
        if not re.fullmatch(r"[\w.@+-]{1,255}", name) or name in hosts:
            raise wrong(source, line, f"{shown(name)} is there twice" if name in hosts else f"{shown(name)} is no host")
        said = dict(zip(titles, cells, strict=True))
        key = (said.get("gpus", ""), said.get("type", ""))
        if key not in known:
            known[key] = _host(*key, source, line)
        hosts[name] = known[key]
        for k, found in groups.items():
            if cells[k]:
                found[name] = cells[k]
    tiers = tuple(Tier(titles[k] or f"group{k}", found) for k, found in groups.items() if found)
    return Topology(source, tiers, hosts)


def _rows(text: str, source: str) -> list[tuple[int, list[str]]]:
    """The cells of each line that has any, with its number; lines with # are comments."""
    reader = csv.reader(line if not line.lstrip().startswith("#") else "" for line in text.splitlines())
    rows = []
    try:
        for cells in reader:
            found = [cell.strip() for cell in cells]
            if len(found) > MOST_COLUMNS or any(len(cell) > MOST_LETTERS for cell in found):
                most = f"at most {MOST_COLUMNS} of {MOST_LETTERS} letters can be read"
                raise wrong(source, reader.line_num, f"{len(found)} columns; {most}")
            if any(found):
                rows.append((reader.line_num, found))
    except csv.Error as error:
        raise wrong(source, reader.line_num, f"malformed CSV: {error}") from None
    if len(rows) > MOST_HOSTS:
        raise wrong(source, None, f"{len(rows):,} lines; at most {MOST_HOSTS:,} hosts can be read")
    return rows


def _host(count: str, kind: str, source: str, line: int) -> Place:
    if kind:
        if kind.lower() not in NODE_TYPES:
            raise wrong(source, line, f"nothing is known of the type {shown(kind)}")
        return NODE_TYPES[kind.lower()].place()
    if count and not re.fullmatch(r"[1-9][0-9]{0,2}", count):
        raise wrong(source, line, f"{shown(count)} GPUs; expected a number from 1 to 999")
    return Place("node", "", gpus("", int(count)) if count else ())
