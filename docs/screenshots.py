"""`make screenshots` takes the docs' pictures of the page again, in Debian's Chromium.

It needs the extra dev, for Playwright, and Chromium.
"""

import os
import shutil
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


def main() -> None:
    """Take all of them."""
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    with sync_playwright() as playwright, TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        placement(browser.new_page(viewport={"width": 1000, "height": 980}), folder)
        program(browser.new_page(viewport={"width": 1000, "height": 900}, color_scheme="dark"), folder)
        browser.close()


if __name__ == "__main__":
    main()
