"""The documentation's pictures, taken anew: ``python -m tests.tools.pictures`` (with Chromium).

The reports of the README's tour, and the studio with the pass tried that its page tells of.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import irgraph
from irgraph.studio.app import Studio
from irgraph.studio.session import Session
from tests.browser import Browser, started
from tests.studio.conftest import served

DOCS = Path(__file__).parents[2] / "docs"
PASS = "fuse-embedding"
WIDTH, TALL, PATHS = 1000, 1077, 860
"""Pixels: of both pictures of reports, and their heights."""


def reports(browser: Browser, graph: irgraph.Graph, folder: Path) -> None:
    """Take the beginning of a prediction's report, and the paths of a rewrite's."""
    fused = irgraph.rewrite(graph, PASS).graph
    view = {"viewport": {"width": WIDTH, "height": TALL}, "color_scheme": "light"}
    irgraph.write_report(irgraph.predict(graph, device="v100"), str(folder / "report.html"))
    with browser.open(folder / "report.html", **view) as opened:
        opened.page.screenshot(path=DOCS / "pictures" / "report.png")
    irgraph.write_report(irgraph.diff(graph, fused, device="v100"), str(folder / "diff.html"))
    with browser.open(folder / "diff.html", **view) as opened:
        place = opened.page.get_by_role("heading", name="Critical paths", exact=True)
        above = place.bounding_box()["y"] - 8
        clip = {"x": 0, "y": above, "width": WIDTH, "height": PATHS}
        path = DOCS / "pictures" / "timeline.png"
        opened.page.screenshot(path=path, clip=clip, full_page=True)


def edited(browser: Browser, graph: irgraph.Graph, folder: Path) -> None:
    """Take the studio with a pass tried, ops by device time."""
    session = Session(graph)
    prediction = session.first.prediction
    about = f"predicted on {prediction.sheet.name}, host {prediction.host.name}"
    title = (f"{graph.name} (model.ir)", about)
    with served(Studio(session, title, graph.name, folder)) as address:
        page: Any = browser.chromium.new_context(
            viewport={"width": 1360, "height": 1000}, color_scheme="light"
        ).new_page()
        page.goto(address)
        page.wait_for_selector("html[data-ready=yes]")
        page.click("role=tab[name=Passes]")
        page.click(f"text={PASS}")
        page.wait_for_selector(".verdict.good")
        page.click("role=tab[name=Ops]")
        page.get_by_label("Order of the ops").select_option(label="device time")
        page.wait_for_selector(".row.removed")
        page.screenshot(path=DOCS / "images" / "studio.png", full_page=True)


def main() -> None:
    """Take all of them."""
    graph = irgraph.capture_file("examples/dlrm.py:default", batch=2048).graph
    with contextmanager(started)() as browser, tempfile.TemporaryDirectory() as folder:
        reports(browser, graph, Path(folder))
        edited(browser, graph, Path(folder))


if __name__ == "__main__":
    main()
