"""Reports in a real browser: what they show, by mouse and by keyboard, on any screen, whatever names there are."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from meshwright import Plan, parse_reduction, plan, write_plan
from meshwright.show.report import report_text
from meshwright.show.view import view_of
from tests.cli.test_verbs import run
from tests.show.chromium import Watched, started, tab_to, violations, wider_than_the_screen, written
from tests.show.plans import best, measurement, ranking

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with started() as found:
        yield found


def report(form: str, **more: Any) -> str:
    return report_text(view_of(best(form), ranking(form), **more))


def hostile() -> Plan:
    """A plan whose names try to be more than text."""
    one = replace(parse_reduction("data=64MiB"), name=HOSTILE)
    found = plan("node=2@1GB/s,gpu=4@8GB/s", {"data": 4, "tensor": 2}, [one]).candidates[0]
    system = replace(found.placement.system, name=HOSTILE)
    return replace(found, placement=replace(found.placement, system=system))


def test_the_main_paths(browser: "Browser", tmp_path: Path) -> None:
    known = [measurement(best("two levels"), best("two levels").program_text(best("two levels").reductions[0]), [2.5])]
    watched = Watched(browser)
    with watched as page:
        page.goto(written(tmp_path, "r.html", report("two levels", measurements=known)))
        assert page.get_by_role("heading", level=1).inner_text() == "data 4 \u00d7 shard 16"
        assert "3.53 s of communication per step" in page.locator(".lead").inner_text()
        assert page.locator("[data-device]").count() == 64
        # A device lights its group.
        page.locator('[data-device="9"]').hover()
        assert "Device 9 (node 0, gpu 9): data 1, shard 1. Its data group: 1, 9, 33, 41." in page.inner_text(".status")
        assert page.locator(".group rect").count() == 4
        page.get_by_role("radio", name="shard", exact=True).check(force=True)
        assert page.locator(".group rect").count() == 16
        # Another candidate is shown everywhere, and two beside each other.
        assert "2.5 s" in page.locator("div.program").inner_text()
        page.locator(".candidate").nth(2).click()
        assert page.locator(".matrix tr").nth(1).inner_text().split() == ["data", "4", "4", "1", "4", "nodes"]
        page.get_by_label("beside").select_option("0")
        assert page.locator("[data-device]").count() == 128
        page.locator(".candidate").nth(0).click()
        # The data, step by step.
        assert "with the contributions of 1 of 4" in page.inner_text(".told")
        page.get_by_role("button", name="ReduceScatter inside node").click()
        assert page.inner_text(".told") == "Every device holds 1/2 of the payload, with the contributions of 2 of 4."
        page.get_by_role("button", name="Next step").click()
        page.get_by_role("button", name="Next step").click()
        assert page.inner_text(".told") == "Every device holds the whole payload, with the contributions of 4 of 4."
        assert page.get_by_role("button", name="Next step").is_disabled()
        assert "twice the bandwidth of node" in page.locator(".advice").inner_text()
        assert "DeviceMesh(" in page.locator(".snippets").inner_text()
    assert len(watched.asked) == 1  # the file, and nothing else


def test_by_keyboard_alone(browser: "Browser", tmp_path: Path) -> None:
    with Watched(browser, reduced_motion="reduce") as page:
        page.goto(written(tmp_path, "r.html", report("in chunks")))
        assert page.evaluate("getComputedStyle(document.querySelector('.devices')).transitionDuration") == "0s"
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowRight")
        assert page.get_by_role("radio", name="tensor", exact=True).is_checked()
        tab_to(page, "document.activeElement.getAttribute('role') === 'application'")
        for key in ("ArrowRight", "ArrowDown"):
            page.keyboard.press(key)
        assert page.inner_text(".status").startswith("Device 5 (rack 0, node 0, gpu 5)")
        page.keyboard.press("End")
        assert page.inner_text(".status").startswith("Device 63")
        assert page.locator(".lit .group rect").count() == 8
        tab_to(page, "document.activeElement.textContent.startsWith('ReduceScatter inside node')")
        page.keyboard.press("Enter")
        assert "1/8 of the payload" in page.inner_text(".told")
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert page.evaluate(outline) == "solid"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_small_screens_dark_and_light_for_everybody(browser: "Browser", tmp_path: Path, scheme: Any) -> None:
    with Watched(browser, color_scheme=scheme, viewport={"width": 380, "height": 800}) as page:
        page.goto(written(tmp_path, "r.html", report("in chunks")))
        assert wider_than_the_screen(page) <= 0
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(background.split("(")[1].split(",")[0]) < 128) == (scheme == "dark")
        page.get_by_label("beside").select_option("1")
        assert wider_than_the_screen(page) <= 0
        assert violations(page) == []


def test_names_are_text(browser: "Browser", tmp_path: Path) -> None:
    write_plan(hostile(), tmp_path / "plan.json")
    done = run("show", f"{tmp_path}/plan.json", "--out", f"{tmp_path}/r.html")
    assert done.exit_code == 0, done.stderr
    watched = Watched(browser)
    with watched as page:
        page.goto((tmp_path / "r.html").as_uri())
        assert HOSTILE in page.inner_text(".eyebrow")
        assert HOSTILE in page.inner_text(".title")
        assert page.title().endswith("- Meshwright")
        assert page.locator("img").count() == 0
    assert len(watched.asked) == 1


def test_a_thousand_devices_are_drawn_and_more_in_part(browser: "Browser", tmp_path: Path) -> None:
    with Watched(browser) as page:
        page.goto(written(tmp_path, "r.html", report("a thousand")))
        assert page.locator("[data-device]").count() == 1024
        page.get_by_role("radio", name="tensor", exact=True).check(force=True)
        assert page.locator("[data-device]").count() == 1024


def test_measurements_beside_predictions(browser: "Browser", tmp_path: Path) -> None:
    measurements = Path(__file__).parents[1] / "golden" / "files" / "study.jsonl"
    assert run("accuracy", str(measurements), "--library", "openmpi", "--html", f"{tmp_path}/r.html").exit_code == 0
    with Watched(browser, viewport={"width": 380, "height": 800}) as page:
        page.goto((tmp_path / "r.html").as_uri())
        assert "programs, predicted and measured" in page.get_by_role("heading", level=1).inner_text()
        assert page.locator("circle").count() == int(
            page.locator("tr", has_text="programs").locator("td").first.inner_text()
        )
        assert wider_than_the_screen(page) <= 0
        assert violations(page) == []


def test_reports_are_small() -> None:
    for form in ("two levels", "in chunks", "rings"):
        assert len(report(form).encode()) < 300_000 / 2


def test_plan_writes_the_page_of_its_candidates(tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    words = ["plan", "--system", "node=2@1GB/s,gpu=4@8GB/s", "--axes", "data=4,tensor=2", "--reduce", "data=1MiB"]
    assert run(*words, "--html", str(path)).exit_code == 0
    text = path.read_text()
    assert text.startswith("<!doctype html>")
    assert text.count("default-src 'none'") == 1
    assert '"chosen":0' in text
