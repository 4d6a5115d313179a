"""A browser for tests of pages: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NO_BROWSER

NAMES = ("chromium", "chromium-browser", "google-chrome")


@dataclass
class Opened:
    """A page that is open: what it printed to the console, and what it asked for."""

    page: Any
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def calm(self) -> None:
        """Check that nothing went wrong, and that nothing but the file itself was loaded."""
        assert not self.console
        assert len(self.requests) == 1, self.requests


class Browser:
    """Opens pages, each in a window of its own."""

    def __init__(self, chromium: Any) -> None:
        self.chromium = chromium

    @contextmanager
    def open(self, path: Path, **options: Any) -> Iterator[Opened]:
        """Open a report and wait until it is drawn."""
        options = {"viewport": {"width": 1280, "height": 900}, **options}
        context = self.chromium.new_context(**options)
        page = context.new_page()
        opened = Opened(page)
        page.on("console", lambda message: opened.console.append(message.text))
        page.on("pageerror", lambda error: opened.console.append(str(error)))
        page.on("request", lambda request: opened.requests.append(request.url))
        page.goto(path.resolve().as_uri())
        page.wait_for_selector("html[data-ready=yes]", timeout=30_000)
        try:
            yield opened
        finally:
            context.close()


def started() -> Iterator[Browser]:
    """Yield a browser; skip the test where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"{NO_BROWSER}: reports are not looked at")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield Browser(chromium)
        finally:
            chromium.close()


def findings(page: Any) -> None:
    """Check that axe finds nothing serious on a page."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    serious = [
        (one["id"], node["html"], node["failureSummary"])
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"][:3]
    ]
    assert not serious, serious
