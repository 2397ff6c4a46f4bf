"""`make screenshots` takes the docs' pictures of the page again, in Debian's Chromium.

It needs the extra dev, for Playwright, and Chromium.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page, sync_playwright

from meshwright import parse_reduction, plan
from meshwright.show.report import write_report
from meshwright.show.view import view_of

HERE = Path(__file__).parent / "pictures"


def report(folder: str, system: str, axes: dict[str, int], reductions: list[str], library: str) -> str:
    """The address of a report."""
    ranking = plan(system, axes, [parse_reduction(text) for text in reductions], library=library)
    path = Path(folder) / "report.html"
    write_report(view_of(ranking.candidates[0], ranking), path)
    return path.as_uri()


def placement(page: Page, folder: str) -> None:
    """A placement, with the group of a device lit, and the candidates."""
    page.goto(report(folder, "gcp-a100:4", {"data": 4, "shard": 16}, ["data=2GiB", "shard=64MiB*80"], "ring"))
    page.locator('[data-device="9"]').hover()
    page.screenshot(path=HERE / "report-placement.png")


def program(page: Page, folder: str) -> None:
    """A program in chunks: its timeline, and what devices hold after a step."""
    levels = "node=4@12GB/s+5us,gpu=8@24GB/s+2us"
    page.goto(report(folder, levels, {"data": 4, "tensor": 8}, ["data+tensor=256MiB"], "nccl"))
    page.get_by_role("button", name="ReduceScatter").first.click()
    page.locator("section[aria-labelledby=programs]").screenshot(path=HERE / "report-program.png")


def explore(page: Page) -> None:
    """The app, with a mistake in a field."""
    command = [sys.executable, "-m", "meshwright", "explore", "--port", "0", "--no-open"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        page.goto(server.stderr.readline().split()[4])
        page.get_by_role("button", name="dgx-h100", exact=True).click()
        page.locator("h1", has_text="data 16").wait_for()
        page.get_by_label("Axes").fill("data=16,shard=7")
        page.locator(".last").wait_for()
        page.screenshot(path=HERE / "explore.png")
        server.send_signal(signal.SIGINT)


def main() -> None:
    """Take all of them."""
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    with sync_playwright() as playwright, TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        placement(browser.new_page(viewport={"width": 1000, "height": 980}), folder)
        program(browser.new_page(viewport={"width": 1000, "height": 900}, color_scheme="dark"), folder)
        explore(browser.new_page(viewport={"width": 1240, "height": 860}))
        browser.close()


if __name__ == "__main__":
    main()
