"""Reports as a reader has them: opened from a file, searched, zoomed, sorted, saved and printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import irgraph
from irgraph.html import sections
from irgraph.html.page import Page, page_html
from irgraph.pages.prediction import prediction_page
from irgraph.pages.slices import Slices
from tests.browser import Browser, findings
from tests.html.test_page import PLANTED, page
from tests.pages.test_prediction_page import DLRM

pytestmark = pytest.mark.long

SLICES = 50_000


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    made = prediction_page(irgraph.predict(irgraph.load(DLRM), device="v100"))
    path.write_text(page_html(made), encoding="utf-8")
    return path


def paper(page: Any) -> str:
    """Return the colour of the page."""
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_a_reader_searches_zooms_sorts_and_saves(browser: Browser, report: Path) -> None:
    with browser.open(report, accept_downloads=True) as opened:
        page = opened.page
        assert page.title() == "dlrm_default (B = 2048)"
        page.fill("#path input", "tables.5")
        assert re.fullmatch(r"\d+ found, [\d.]+ \w+ in sum", page.inner_text("#path .count"))
        page.press("#path input", "Enter")
        assert "tables.5" in page.inner_text("#path .chosen")
        axis = page.locator("#path canvas").screenshot()
        page.press("#path canvas", "Enter")
        page.wait_for_timeout(100)
        assert page.locator("#path canvas").screenshot() != axis
        page.press("#path canvas", "0")
        page.click("#breakdown [role=tab] >> nth=1")
        head = page.locator("#breakdown [role=tabpanel]:not([hidden]) th button").first
        head.click()
        names = page.locator("#breakdown [role=tabpanel]:not([hidden]) td.name").all_inner_texts()
        assert names == sorted(names, key=str.lower)
        with page.expect_download() as download:
            page.locator("#breakdown [role=tabpanel]:not([hidden]) button", has_text="CSV").click()
        saved = Path(download.value.path()).read_text(encoding="utf-8")
        assert saved.startswith("operation,time (us),share\n")
        opened.calm()


def test_the_keyboard_reaches_a_slice(browser: Browser, report: Path) -> None:
    with browser.open(report) as opened:
        page = opened.page
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.tagName") == "CANVAS":
                break
        page.keyboard.press("ArrowRight")
        first = page.inner_text("#path .chosen h3")
        for _ in range(5):
            page.keyboard.press("ArrowRight")
        assert page.inner_text("#path .chosen") != first
        assert page.inner_text("[aria-live]")
        opened.calm()


def test_it_prints_and_turns_dark(browser: Browser, report: Path) -> None:
    with browser.open(report, color_scheme="dark") as opened:
        night, canvas = paper(opened.page), opened.page.locator("#path canvas")
        drawn = canvas.screenshot()
        assert opened.page.pdf()[:5] == b"%PDF-"
        assert paper(opened.page) == night
        opened.page.click("text=Light / dark")
        opened.page.wait_for_timeout(50)
        assert paper(opened.page) == "rgb(255, 255, 255)" != night
        assert canvas.screenshot() != drawn
        opened.calm()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_a_reader_out(
    browser: Browser, report: Path, tmp_path: Path, scheme: str
) -> None:
    """By axe: no serious finding on a report, nor on a page with every kind of section."""
    (tmp_path / "all.html").write_text(page_html(page("all kinds")), encoding="utf-8")
    for path in (report, tmp_path / "all.html"):
        with browser.open(path, color_scheme=scheme) as opened:
            findings(opened.page)
            opened.page.click(".slices canvas >> nth=0", position={"x": 400, "y": 40})
            for folded in opened.page.locator("summary").all()[:2]:
                folded.click()
            findings(opened.page)
            opened.calm()


def test_a_click_on_what_takes_longest_finds_it(browser: Browser, report: Path) -> None:
    """The time that is found on the path is the one that the list names."""
    with browser.open(report) as opened:
        row = opened.page.locator(".longest tr").first
        name, time = row.locator("button").inner_text(), row.locator("td").first.inner_text()
        row.locator("button").click()
        assert opened.page.input_value("#path input") == f'"{name}"'
        count = opened.page.inner_text("#path .count")
        assert float(count.split(", ")[1].split()[0]) == pytest.approx(float(time.split()[0]), 1e-2)
        assert count.split()[-3] == time.split()[1]
        opened.calm()


def test_the_keyboard_is_enough(browser: Browser, report: Path) -> None:
    """To search, to choose a tab, to sort a table, and to see all of its rows."""
    with browser.open(report) as opened:
        found, keys = opened.page, opened.page.keyboard

        def reach(wanted: str) -> None:
            for _ in range(200):
                keys.press("Tab")
                if found.evaluate(f"document.activeElement.matches({wanted!r})"):
                    return
            raise AssertionError(f"{wanted} is not reached")

        reach(".longest button")
        keys.press("Enter")
        assert found.evaluate("document.activeElement.matches('#path input')")
        assert found.inner_text("#path .count")
        reach("#breakdown [role=tab]")
        keys.press("ArrowRight")
        assert found.inner_text("#breakdown [role=tab][aria-selected=true]") == "by operation"
        reach("#breakdown [role=tabpanel]:not([hidden]) th button")
        keys.press("Enter")
        heads = found.locator("#breakdown [role=tabpanel]:not([hidden]) th").first
        assert heads.get_attribute("aria-sort") == "ascending"
        opened.calm()


@pytest.mark.parametrize("word", PLANTED)
def test_planted_markup_does_nothing(browser: Browser, tmp_path: Path, word: str) -> None:
    (tmp_path / "p.html").write_text(page_html(page(word)), encoding="utf-8")
    with browser.open(tmp_path / "p.html") as opened:
        found = opened.page
        found.click("#s canvas", position={"x": 400, "y": 40})
        assert found.evaluate("typeof window.planted") == "undefined"
        assert found.locator("img").count() == 0
        assert found.locator("script").count() == 3
        opened.calm()


def many(count: int) -> dict[str, Any]:
    """Return slices on ten tracks, each with two levels."""
    slices = Slices()
    track = np.array([slices.track("", "host", f"thread {n}") for n in range(10)])
    names = np.array([slices.texts(f"op {n}") for n in range(200)])
    at = np.arange(count)
    start = (at // 10 // 2).astype(float) * 3
    end = start + np.where(at // 10 % 2, 1.5, 2.5)
    facts = np.full(count, slices.facts([("op", "aten.add")]))
    slices.add(start, end, track[at % 10], names[at % 200], names[at % 7], facts)
    return slices.record()


def test_fifty_thousand_slices_are_smooth(browser: Browser, tmp_path: Path) -> None:
    """Frames of a zoom and a search; the bounds are far above what an idle machine needs."""
    section = sections.slices("s", "Timeline", many(SLICES))
    (tmp_path / "m.html").write_text(page_html(Page("many", "", [section])), encoding="utf-8")
    with browser.open(tmp_path / "m.html") as opened:
        page = opened.page
        paint = page.evaluate("performance.getEntriesByType('paint').at(-1).startTime")
        assert paint < 10_000
        took = page.evaluate("""async () => {
            const canvas = document.querySelector("#s canvas"), times = [];
            for (let at = 0; at < 20; at++) {
                canvas.dispatchEvent(new KeyboardEvent("keydown", { key: at < 10 ? "+" : "-" }));
                const begun = performance.now();
                await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
                times.push(performance.now() - begun);
            }
            return times.sort((a, b) => a - b)[10];
        }""")
        assert took < 250
        page.fill("#s input", "op 17")
        assert page.inner_text("#s .count").startswith(f"{SLICES // 200 * 11} found")
        opened.calm()
        print(f"first paint {paint:.0f} ms, median frame {took:.1f} ms")  # noqa: T201


def test_without_scripts_the_tables_are_there(browser: Browser, report: Path) -> None:
    context = browser.chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.resolve().as_uri())
    heads = page.locator("main table[data-number='0'] thead th").all_inner_texts()
    rows = page.locator("main table[data-number='0'] tbody tr")
    with browser.open(report) as opened:
        table = opened.page.locator("table[data-number='0']")
        assert heads == table.locator("thead th").all_inner_texts()
        assert rows.count() == table.locator("tbody tr").count() > 3
        assert not opened.page.locator("#static").count()
    assert "need the scripts of this report" in page.inner_text("body")
    context.close()
