"""`meshwright systems`: the built-in systems."""

import click

from meshwright.cli.common import json_option, new_table, print_json, print_table
from meshwright.system.model import Level
from meshwright.system.read import preset, preset_names
from meshwright.text.units import format_bandwidth, format_seconds


@click.command()
@json_option
def systems(as_json: bool) -> None:
    """List the built-in systems."""
    presets = [preset(name) for name in preset_names()]
    if as_json:
        print_json(
            {
                "systems": [
                    {
                        "name": system.name,
                        "devices": system.devices,
                        "levels": [
                            {
                                "name": level.name,
                                "count": level.count,
                                "bandwidth": level.link.bandwidth,
                                "latency": level.link.latency,
                                "per_device": level.link.per_device,
                                "fabric": str(level.link.fabric),
                                "bypass": level.link.bypass,
                                "reduces": level.link.reduces,
                            }
                            for level in system.levels
                        ],
                    }
                    for system in presets
                ]
            }
        )
        return
    table = new_table("preset", "devices", "levels, outermost first")
    for system in presets:
        table.add_row(system.name, str(system.devices), ", ".join(_describe(level) for level in system.levels))
    print_table(table)


def _describe(level: Level) -> str:
    link = level.link
    words = [f"{level.name}={level.count}"]
    if link.bandwidth is not None:
        words.append(f"@{format_bandwidth(link.bandwidth)}")
    if link.latency:
        words.append(f"+{format_seconds(link.latency)}")
    extras = [str(link.fabric)] if link.fabric != "switch" else []
    if link.per_device is not None:
        extras.append(f"{format_bandwidth(link.per_device)} per device")
    extras += [word for word, present in (("bypass", link.bypass), ("reduces", link.reduces)) if present]
    return "".join(words) + (f" ({', '.join(extras)})" if extras else "")
