"""Systems as YAML files."""

from pathlib import Path
from typing import Any

import yaml

from meshwright.errors import SpecError
from meshwright.spec import parse_count, shown, unknown
from meshwright.system import Fabric, Level, Link, System
from meshwright.units import parse_bandwidth, parse_rate, parse_seconds
from meshwright.yamlfile import Reader, boolean, compose, items, mapping, node_of, parsed, problem, read_text, word

_EXAMPLE = "levels: [{name: node, count: 4, bandwidth: 8GB/s, latency: 20us}, {name: gpu, count: 16}]"


def read_system(path: Path) -> System:
    """A system from a YAML file."""
    return read_system_text(read_text(path, "system"), str(path))


def read_system_text(text: str, source: str) -> System:
    """A system from YAML text; `source` is what error messages call it.

    >>> read_system_text("levels: [{name: node, count: 4, bandwidth: 8GB/s}]", "x.yaml").levels[0].count
    4
    """
    return _system(compose(text, source, _EXAMPLE), source)


def system_of(document: Any, source: str) -> System:
    """A system from what `system_document` gives; `source` is what error messages call it."""
    return _system(node_of(document, source), source)


def _system(root: yaml.Node, source: str) -> System:
    readers: dict[str, Reader] = {"name": word, "levels": _levels, "message_rate": parsed(parse_rate)}
    values = mapping(root, source, "a system", readers, ["levels"])
    try:
        return System(values.get("name", Path(source).stem), values["levels"], values.get("message_rate"))
    except SpecError as error:
        raise problem(root, source, str(error)) from None


def system_document(system: System) -> dict[str, Any]:
    """What a system file holds, as plain data; `system_of` reads it back exactly, also from JSON.

    >>> from meshwright import parse_system
    >>> system_document(parse_system("node=4@8GB/s"))["levels"]
    [{'name': 'node', 'count': 4, 'bandwidth': '8000000000.0B/s'}]
    """
    levels = []
    for level in system.levels:
        link = level.link
        fields: dict[str, Any] = {"name": level.name, "count": level.count}
        if link.bandwidth is not None:
            fields["bandwidth"] = f"{link.bandwidth!r}B/s"
        if link.latency:
            fields["latency"] = f"{link.latency!r}s"
        if link.per_device is not None:
            fields["per_device"] = f"{link.per_device!r}B/s"
        if link.fabric is not Fabric.SWITCH:
            fields["fabric"] = str(link.fabric)
        fields |= {key: True for key in ("bypass", "reduces") if getattr(link, key)}
        levels.append(fields)
    rate = {} if system.message_rate is None else {"message_rate": f"{system.message_rate!r}/s"}
    return {"name": system.name, "levels": levels, **rate}


def _levels(node: yaml.Node, source: str) -> tuple[Level, ...]:
    children = items(node, source, "'levels', outermost first,")
    levels = [_level(child, source) for child in children]
    names = [level.name for level in levels]
    for number, (child, name) in enumerate(zip(children, names, strict=True)):
        if name in names[:number]:
            raise problem(child, source, f"there is already a level {shown(name)}; names must differ")
    return tuple(levels)


def _level(node: yaml.Node, source: str) -> Level:
    values = mapping(node, source, "a level", _READERS, ["name", "count"])
    name, count = values.pop("name"), values.pop("count")
    try:
        return Level(name, count, Link(**values))
    except SpecError as error:
        raise problem(node, source, str(error)) from None


def _parse_fabric(text: str) -> Fabric:
    if text not in list(Fabric):
        raise SpecError(unknown("fabric", text, [str(fabric) for fabric in Fabric]))
    return Fabric(text)


_READERS: dict[str, Reader] = {
    "name": word,
    "count": parsed(lambda text: parse_count(text, "a level", "system file", "count: 4")),
    "bandwidth": parsed(parse_bandwidth),
    "latency": parsed(parse_seconds),
    "per_device": parsed(parse_bandwidth),
    "fabric": parsed(_parse_fabric),
    "bypass": boolean,
    "reduces": boolean,
}
