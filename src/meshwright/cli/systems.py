"""`meshwright systems`: the built-in systems."""

import click

from meshwright.cli import options
from meshwright.cli.output import print_json, print_table
from meshwright.system.model import Level
from meshwright.system.read import preset, preset_names, system_document
from meshwright.text.units import format_bandwidth, format_seconds


@click.command()
@options.json
def systems(as_json: bool) -> None:
    """List the built-in systems."""
    presets = [preset(name) for name in preset_names()]
    if as_json:
        print_json({"systems": [system_document(system) for system in presets]})
        return
    rows = (
        [system.name, system.devices, system.library or "", "; ".join(map(_describe, system.levels))]
        for system in presets
    )
    print_table(["preset", "devices", "library", "levels, outermost first"], rows)


def _describe(level: Level) -> str:
    link = level.link
    words = [f"{level.name}={level.count}"]
    if link.bandwidth is not None:
        words.append(f"@{format_bandwidth(link.bandwidth, link.bits)}")
    if link.latency:
        words.append(f"+{format_seconds(link.latency)}")
    extras = [str(link.fabric)] if link.fabric != "switch" else []
    if link.per_device is not None:
        extras.append(f"{format_bandwidth(link.per_device, link.bits)} per device")
    extras += [word for word, present in (("bypass", link.bypass), ("reduces", link.reduces)) if present]
    return "".join(words) + (f" ({', '.join(extras)})" if extras else "")
