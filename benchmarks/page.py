"""The page: how large it is, how long answers take while typing, and how long Chromium takes to draw. Run by hand.

Answers are those of `meshwright explore`, in a process that has answered before. Drawing is the time from a change of
the axis to the next frame with 1,024 devices, in headless Chromium. Writes benchmarks/results/page.json.

    python -m benchmarks.page
"""

import gzip
import json
import os
import shutil
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from playwright.sync_api import sync_playwright

from meshwright import parse_reduction, plan
from meshwright.show.asked import answer
from meshwright.show.report import asset, report_text
from meshwright.show.view import view_of

RESULTS = Path(__file__).parent / "results" / "page.json"

QUESTIONS = {
    "64 devices": ("gcp-a100:4", "data=4,shard=16", "data=2GiB\nshard=64MiB*80"),
    "256 devices": ("dgx-h100:32", "data=8,shard=4,tensor=8", "data=2GiB\nshard=64MiB*80\ntensor=16MiB*320"),
    "1,048,576 devices": (
        "pod=64@100GB/s,rack=16@200GB/s,node=128@400GB/s,gpu=8@450GB/s",
        "data=1024,shard=128,tensor=8",
        "data=2GiB\nshard=64MiB*80\ntensor=16MiB*320",
    ),
}

CHANGE = """async () => {
  const axes = [...document.querySelectorAll('input[name=axis]')];
  const times = [];
  for (let k = 0; k < 20; k++) {
    const start = performance.now();
    axes[(k + 1) % axes.length].click();
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    times.push(performance.now() - start);
  }
  return times;
}"""


def answers() -> dict[str, float]:
    """The median milliseconds of an answer; a keystroke changes the size of the first reduction."""
    found = {}
    for name, (system, axes, reductions) in QUESTIONS.items():
        times = []
        for k in range(7):
            asked = {"system": system, "axes": axes, "reductions": reductions.replace("2GiB", f"{k + 1}GiB")}
            start = time.perf_counter()
            assert "view" in answer({**asked, "library": "nccl"})
            times.append(1000 * (time.perf_counter() - start))
        found[name] = round(median(times[1:]), 1)
    return found


def report(system: str, axes: dict[str, int], reductions: list[str]) -> str:
    ranking = plan(system, axes, [parse_reduction(text) for text in reductions], library="nccl")
    return report_text(view_of(ranking.candidates[0], ranking))


def drawing() -> dict[str, float]:
    """Milliseconds in the browser."""
    page_text = report("dgx-h100:128", {"data": 128, "tensor": 8}, ["data=1GiB", "tensor=64MiB*80"])
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    with sync_playwright() as playwright, TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_text(page_text)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto(path.as_uri())
        opened = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        times = page.evaluate(CHANGE)
        browser.close()
    return {"opening": round(opened, 1), "change of axis": round(median(times), 1)}


def main() -> None:
    files = asset("app.js").encode() + asset("app.css").encode()
    small = report("gcp-a100:4", {"data": 4, "shard": 16}, ["data=2GiB", "shard=64MiB*80"])
    found = {
        "bytes": {"report of 64 devices": len(small.encode()), "page, gzipped": len(gzip.compress(files))},
        "milliseconds of an answer": answers(),
        "milliseconds to draw 1,024 devices": drawing(),
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
