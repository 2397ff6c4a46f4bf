"""Reports: a view as one HTML file that needs nothing else, neither the network nor other files.

The data is JSON inside the page. Names in it may be anything, so that `<`, `>` and `&` are escaped there; the page puts
them in as text. A content security policy lets nothing run or load but the one script and the one style sheet.
"""

import json
from base64 import b64encode
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from meshwright.text.files import write_file

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="root"></div>
<noscript>This page draws a plan with JavaScript, which is switched off here.</noscript>
<script id="view" type="application/json">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def write_report(view: dict[str, Any], path: Path) -> None:
    """Write a view to a file as a page."""
    write_file(path, report_text(view), "the report")


def report_text(view: dict[str, Any]) -> str:
    """A view as a page."""
    script, style = asset("app.js"), asset("app.css")
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'"
    return _PAGE.format(
        policy=policy,
        title=escape(f"{view['title']} - Meshwright"),
        style=style,
        data=inline_json(view),
        script=script,
    )


def inline_json(document: Any) -> str:
    """JSON that can stand inside a script element, whatever is in it.

    >>> inline_json("</script>")
    '"\\\\u003c/script\\\\u003e"'
    """
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def asset(name: str) -> str:
    """A file that was built from web/."""
    return files("meshwright.show").joinpath("assets", name).read_text(encoding="utf-8").strip()


def _hash(text: str) -> str:
    """What a content security policy calls a script or a style sheet inside the page."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
