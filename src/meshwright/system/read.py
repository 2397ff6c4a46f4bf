"""Systems from text: a description like node=4@8GB/s, the name of a preset, or a YAML file; and back to plain data."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from os import PathLike
from os.path import isfile
from pathlib import Path
from typing import Any

import yaml

from meshwright.errors import SpecError
from meshwright.system.model import EXAMPLE, Fabric, Level, Link, System
from meshwright.text.builtin import builtin_names, builtin_text
from meshwright.text.spec import check_path, check_type, one_of, parse_count, shown, split_items, unknown
from meshwright.text.units import exact_bandwidth, exact_seconds, in_bits, parse_bandwidth, parse_rate, parse_seconds
from meshwright.text.yamlfile import boolean, compose, items, made, mapping, node_of, parsed, problem, read_text, word


def parse_system(text: str) -> System:
    """A system from `NAME=COUNT[@BANDWIDTH[+LATENCY]],…`, outermost first.

    >>> [str(level.link.latency) for level in parse_system("node=2@100Gbit/s+20us,gpu=8").levels]
    ['2e-05', '0.0']
    """
    levels = []
    for item in split_items(text, "system", EXAMPLE):
        name, equals, rest = item.partition("=")
        if not equals:
            raise SpecError(
                f"{shown(item)} in the system {shown(text)} is not NAME=COUNT[@BANDWIDTH[+LATENCY]], as in {EXAMPLE!r}"
            )
        count, at, link_text = rest.partition("@")
        bandwidth, *latency = re.split(r"(?<![eE])\+", link_text, maxsplit=1)
        link = Link(
            bandwidth=parse_bandwidth(bandwidth) if at else None,
            latency=parse_seconds(latency[0]) if latency else 0.0,
            bits=in_bits(bandwidth),
        )
        name = name.strip()
        levels.append(Level(name, parse_count(count.strip(), name, "system", EXAMPLE), link))
    return System(" ".join(text.split()), tuple(levels))


def preset_names() -> tuple[str, ...]:
    """The names of the built-in systems, sorted."""
    return builtin_names("meshwright.system", "presets")


def preset(name: str) -> System:
    """A built-in system, `NAME` or `NAME:COUNT` for another outermost count.

    >>> preset("gcp-a100:2").devices
    32
    """
    check_type(name, str, "the name of a preset")
    base, colon, count = name.partition(":")
    one_of(preset_names(), "preset", base)
    system = parse_system_yaml(builtin_text("meshwright.system", "presets", base), f"{base}.yaml")
    if not colon:
        return system
    outermost = parse_count(count, system.levels[0].name, f"preset {shown(name)}", f"{base}:4")
    return replace(system.with_outermost(outermost), name=name)


def as_system(system: "System | str | PathLike[str]") -> System:
    """The given system, or the one that `load_system` makes of a text or a path."""
    return system if isinstance(system, System) else load_system(system)


def load_system(spec: str | PathLike[str]) -> System:
    """A system from any of the texts for one: a description, the name of a preset, or the path of a YAML file.

    >>> load_system("dgx-h100:2").counts
    (2, 8)
    """
    spec = str(check_path(spec, "system")) if isinstance(spec, PathLike) else spec
    check_type(spec, str, f"a System, a preset, a description like {EXAMPLE!r}, or the path of a .yaml file")
    if spec.partition(":")[0] in preset_names():
        return preset(spec)
    a_file = spec.lower().endswith((".yaml", ".yml"))
    if "=" in spec and not a_file:
        return parse_system(spec)
    if a_file or "/" in spec or isfile(spec):  # noqa: PTH113  # false also of what cannot be the name of a file
        return parse_system_yaml(read_text(Path(spec), "system"), str(Path(spec)))
    raise SpecError(
        f"{unknown('preset', spec.partition(':')[0], preset_names())}; a system is a preset, "
        f"a description like {EXAMPLE!r}, or the path of a .yaml file"
    )


_EXAMPLE = "levels: [{name: node, count: 4, bandwidth: 8GB/s, latency: 20us}, {name: gpu, count: 16}]"


def parse_system_yaml(text: str, source: str) -> System:
    """A system from YAML text; `source` is what error messages call it.

    >>> parse_system_yaml("levels: [{name: node, count: 4, bandwidth: 8GB/s}]", "x.yaml").levels[0].count
    4
    """
    return _system(compose(text, source, _EXAMPLE), source)


def system_of(document: Any, source: str) -> System:
    """A system from what `system_document` gives; `source` is what error messages call it."""
    return _system(node_of(document, source), source)


def _system(root: yaml.Node, source: str) -> System:
    readers = {"name": word, "levels": _levels, "message_rate": parsed(parse_rate), "library": word}
    values = mapping(root, source, "a system", readers, ["levels"])
    name = values.get("name", Path(source).stem)
    return made(root, source, System, name, values["levels"], values.get("message_rate"), values.get("library"))


def system_document(system: System) -> dict[str, Any]:
    """What a system file holds, as plain data; `system_of` reads it back exactly, also from JSON.

    >>> from meshwright import parse_system
    >>> system_document(parse_system("node=4@8GB/s,gpu=2@20Mbit/s+2ms"))["levels"][1]
    {'name': 'gpu', 'count': 2, 'bandwidth': '20Mbit/s', 'latency': '2ms'}
    """
    return _document(system, exact_bandwidth, exact_seconds)


def canonical_document(system: System) -> dict[str, Any]:
    """The same for all systems that are equal, whatever units they were written in. It is in files of measurements, and
    digests are made of it, so its form must not change.

    >>> from meshwright import parse_system
    >>> canonical_document(parse_system("node=4@64Gbit/s"))["levels"]
    [{'name': 'node', 'count': 4, 'bandwidth': '8000000000.0B/s'}]
    """
    return _document(system, lambda value, _: f"{value!r}B/s", lambda value: f"{value!r}s")


def _document(
    system: System, bandwidth: Callable[[float, bool], str], seconds: Callable[[float], str]
) -> dict[str, Any]:
    levels = []
    for level in system.levels:
        link = level.link
        fields: dict[str, Any] = {"name": level.name, "count": level.count}
        fields |= {"bandwidth": bandwidth(link.bandwidth, link.bits)} if link.bandwidth else {}
        fields |= {"latency": seconds(link.latency)} if link.latency else {}
        fields |= {"per_device": bandwidth(link.per_device, link.bits)} if link.per_device else {}
        fields |= {"fabric": str(link.fabric)} if link.fabric is not Fabric.SWITCH else {}
        fields |= {key: True for key in ("bypass", "reduces") if getattr(link, key)}
        levels.append(fields)
    rate = {} if system.message_rate is None else {"message_rate": f"{system.message_rate!r}/s"}
    library = {} if system.library is None else {"library": system.library}
    return {"name": system.name, **library, "levels": levels, **rate}


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
    written = {key.value: rate.value for key, rate in node.value}
    bits = in_bits(written.get("bandwidth", written.get("per_device", "")))
    return made(node, source, Level, name, count, made(node, source, Link, **values, bits=bits))


_READERS = {
    "name": word,
    "count": parsed(lambda text: parse_count(text, "a level", "system file", "count: 4")),
    "bandwidth": parsed(parse_bandwidth),
    "latency": parsed(parse_seconds),
    "per_device": parsed(parse_bandwidth),
    "fabric": parsed(partial(one_of, Fabric, "fabric")),
    "bypass": boolean,
    "reduces": boolean,
}
