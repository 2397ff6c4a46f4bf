"""`meshwright explore` in a real browser: answers while typing, messages beside fields, views that can be shared."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.show.chromium import Watched, started, tab_to, violations, wider_than_the_screen

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with started() as found:
        yield found


@pytest.fixture(scope="module")
def address(browser: "Browser") -> Iterator[str]:
    """The address of a server."""
    assert browser.is_connected()  # where there is no browser, no server is needed
    command = [sys.executable, "-m", "meshwright", "explore", "--port", "0", "--no-open", "--limit", "300s"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        yield server.stderr.readline().split()[4]
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=240)
        assert (server.returncode, said) == (0, "")


def test_answers_come_while_typing(browser: "Browser", address: str) -> None:
    with Watched(browser) as page:
        page.goto(address)
        page.locator("h1", has_text="data 4 \u00d7 shard 16").wait_for()
        # Every preset is one click away.
        page.get_by_role("button", name="dgx-h100", exact=True).click()
        page.locator("h1", has_text="data 16 \u00d7 shard 8").wait_for()
        # What is wrong is said beside the field, and the last good answer stays.
        page.get_by_label("Axes").fill("data=16,shard=7")
        assert "shard=8 would fit" in page.locator("#axes-wrong", has_text="would fit").inner_text()
        assert page.get_by_label("Axes").get_attribute("aria-invalid") == "true"
        assert page.locator("h1").inner_text() == "data 16 \u00d7 shard 8"
        page.locator(".last").wait_for()
        page.get_by_label("Axes").fill("data=32,shard=4")
        page.locator("h1", has_text="data 32 \u00d7 shard 4").wait_for()
        assert page.locator("#axes-wrong").inner_text() == ""
        # Two placements beside each other; the address gives the same view to somebody else.
        page.get_by_label("beside").select_option("1")
        page.get_by_role("radio", name="shard", exact=True).check(force=True)
        page.wait_for_url("**show-axis=shard**")
        shared = page.url
        assert "axes=data%3D32%2Cshard%3D4" in shared
    with Watched(browser, color_scheme="dark", viewport={"width": 380, "height": 800}) as page:
        page.goto(shared)
        page.locator("h1", has_text="data 32 \u00d7 shard 4").wait_for()
        assert page.locator(".cluster").count() == 2
        assert page.get_by_role("radio", name="shard", exact=True).is_checked()
        assert page.get_by_label("Axes").input_value() == "data=32,shard=4"
        assert wider_than_the_screen(page) <= 0


def test_hostile_addresses_are_text_and_everybody_can_use_it(browser: "Browser", address: str) -> None:
    with Watched(browser, bypass_csp=True) as page:  # for axe, which a test puts into the page
        page.goto(f"{address}?system=%3Cscript%3Ealert(1)%3C/script%3E&axes=data%3D4")
        assert "<script>alert(1)</script>" in page.locator("#system-wrong", has_text="script").inner_text()
        page.get_by_label("What is sent").select_option("dense-70b")
        page.locator("h1", has_text="pipeline 4").wait_for()
        assert violations(page) == []


def test_options_of_programs_are_in_the_address(browser: "Browser", address: str) -> None:
    with Watched(browser, bypass_csp=True, reduced_motion="reduce") as page:
        page.goto(address)
        page.locator("h1", has_text="data 4").wait_for()
        page.get_by_text("Programs", exact=True).first.click()
        page.get_by_label("Chunks").fill("99")
        wrong = page.locator("#chunks-wrong", has_text="expected").inner_text()
        assert wrong == "expected a whole number from 1 to 64, not '99'; empty means 16"
        assert page.locator("h1").inner_text() == "data 4 \u00d7 shard 16"
        assert violations(page) == []
        page.get_by_label("Chunks").fill("4")
        page.get_by_label("placement only").check()
        page.get_by_label("Engine").select_option("mpi")
        page.locator("pre", has_text="--engine mpi --chunks 4 --placement-only").wait_for()
        assert "engine=mpi&chunks=4&placement_only=yes" in page.url
        page.get_by_role("button", name="dense-70b", exact=True).click()
        page.locator("h1", has_text="pipeline 4").wait_for()
        page.get_by_label("System").fill("dgx-h100:16")
        page.get_by_label("Axes").fill("data=2,pipeline=4")
        page.get_by_label("Sizes to choose").fill("tensor,shard")
        page.locator("#sizes").wait_for()
        shared = page.url
    with Watched(browser, bypass_csp=True, viewport={"width": 380, "height": 800}) as page:
        page.goto(shared)
        page.locator("#sizes").wait_for()
        assert page.get_by_label("Sizes to choose").input_value() == "tensor,shard"
        assert page.get_by_label("placement only").is_checked()
        assert wider_than_the_screen(page) <= 0
        assert violations(page) == []


def test_by_keyboard_alone(browser: "Browser", address: str) -> None:
    with Watched(browser) as page:
        page.goto(address)
        page.locator("h1", has_text="data 4").wait_for()
        for field, text in (("system", "node=2@1GB/s,gpu=4@8GB/s"), ("axes", "data=2,shard=4")):
            tab_to(page, f"document.activeElement.id === '{field}'")
            page.keyboard.press("Control+a")
            page.keyboard.type(text)
        page.locator("h1", has_text="data 2 \u00d7 shard 4").wait_for()
        tab_to(page, "document.activeElement.tagName === 'SUMMARY'")
        page.keyboard.press("Enter")
        tab_to(page, "document.activeElement.closest('.check')?.textContent.includes('without Reduce')")
        page.keyboard.press("Space")
        page.wait_for_url("**no_rooted=yes**")
        page.locator("main[aria-busy=false]").wait_for()  # the answer comes with a choice of its own
        tab_to(page, "document.activeElement.name === 'candidate'")
        page.keyboard.press("ArrowDown")
        page.wait_for_url("**show-plan=1**")
