"""A view with what Python says of its devices, for the tests of the page's TypeScript."""

import json
from pathlib import Path

from meshwright.show.timeline import timeline
from meshwright.show.view import view_of
from tests.show.plans import best, ranking

WEB = Path(__file__).parents[2] / "web"
FIXTURE = WEB / "fixture.json"


def fixture_text() -> str:
    """The text of the fixture."""
    plan = best("in chunks")
    document = {
        "view": view_of(plan, ranking("in chunks")),
        "coordinates": [plan.placement.coordinates(device) for device in range(plan.placement.system.devices)],
        "groups": [list(group) for group in plan.placement.groups(plan.communications[0].communication.axes)],
        "ends": [max(span.end for span in timeline(plan, each).spans()) for each in plan.communications],
    }
    return json.dumps(document, separators=(",", ":")) + "\n"
