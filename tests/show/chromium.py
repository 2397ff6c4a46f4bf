"""Chromium, as Debian has it, driven by Playwright: one for all tests of a module."""

import gc
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.show.fixture import WEB

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 240_000  # milliseconds: other tests may keep the machine busy
AXE = WEB / "node_modules" / "axe-core" / "axe.min.js"


@contextmanager
def started() -> Iterator["Browser"]:
    """A browser; where there is none, the tests are skipped and say what they need."""
    if CHROMIUM is None:
        pytest.skip("the tests of the page need Chromium: sudo apt-get install chromium")
    api = pytest.importorskip(
        "playwright.sync_api", reason="the tests of the page need Playwright: pip install playwright"
    )
    with api.sync_playwright() as playwright:
        sandbox = [] if os.geteuid() else ["--no-sandbox"]  # Chromium has none for root
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*sandbox, "--disable-gpu"], timeout=PATIENCE
        )
        yield browser
        browser.close()
    _ended.append(playwright)


_ended: list[object] = []


def collect_leftovers() -> None:
    """Collect what Playwright has left behind of browsers that have ended.

    Seldom (seen once in 14 runs of all tests, with 1.65.2) its event loop is closed while its driver still runs. The
    garbage collector then finds open pipes, and complains in whichever test it happens to run.
    """
    if _ended:
        _ended.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


class Watched:
    """A page that keeps what goes wrong on it, and what it asks of the network."""

    def __init__(self, browser: "Browser", **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        self.context.set_default_timeout(PATIENCE)
        self.page: Page = self.context.new_page()
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda message: self.wrong.append(message.text) if message.type == "error" else None)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"dialog {dialog.message}"))

    def __enter__(self) -> "Page":
        return self.page

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.context.close()
        if kind is None:
            assert not self.wrong


def violations(page: "Page") -> list[str]:
    """What axe-core finds wrong with a page for people who use it otherwise than by eye and mouse."""
    if not AXE.exists():
        pytest.skip("axe-core is not there: it needs `npm ci` in web/")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(found => found.violations)")
    return [f"{each['id']}: {each['help']}: {each['nodes'][0]['html']}" for each in found]


def wider_than_the_screen(page: "Page") -> int:
    """By how many pixels a page has to be scrolled sideways."""
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


def tab_to(page: "Page", there: str) -> None:
    """Press Tab until the focus is where it is to be."""
    for _ in range(80):
        if page.evaluate(there):
            return
        page.keyboard.press("Tab")
    pytest.fail(f"{there} is never so")


def written(folder: Path, name: str, text: str) -> str:
    """The address of a file with this text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path.as_uri()
