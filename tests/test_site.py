"""The documentation as a site: its parts, what it takes from other hosts (nothing), its links."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

import irgraph
from irgraph.cli.discovery import entries
from irgraph.cli.main import main
from tests.studio.test_in_browser import findings

ROOT = Path(__file__).parents[1]
HOOKS = ROOT / "docs" / "site"
ELSEWHERE = re.compile(r"^(?:https?:)?//")


class Page(HTMLParser):
    """What a page has: addresses that it loads, addresses that it links to, its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        self.loaded += [given[name] for name in ("src", "srcset", "data") if name in given]
        if "href" in given:
            (self.linked if tag == "a" else self.loaded).append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the site, built as ``make docs`` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """Return all pages of the site but its reports."""
    found = [path for path in site.rglob("*.html") if path.parent.name != "runs"]
    return {path: Page(path.read_text(encoding="utf-8")) for path in found}


@pytest.mark.slow
def test_no_page_takes_anything_from_another_host(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 35
    for path, page in pages.items():
        assert not [address for address in page.loaded if ELSEWHERE.match(address)], path.name
        for address in page.loaded:
            if not address.startswith("data:") and path.name != "404.html":
                assert (path.parent / unquote(urldefrag(address)[0])).exists(), (path.name, address)
    for path in site.rglob("*.css"):
        taken = re.findall(r"(?:url\(|@import\s)['\"]?([^'\")]+)", path.read_text("utf-8"))
        assert not [address for address in taken if ELSEWHERE.match(address)], path.name


@pytest.mark.slow
def test_every_link_leads_to_a_page_and_to_a_place_on_it(pages: dict[Path, Page]) -> None:
    count = 0
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for link in page.linked:
            name, anchor = map(unquote, urldefrag(link))
            if re.match(r"\w+:", link) or not link:
                continue
            to = (path.parent / name).resolve() if name else path
            assert to.exists(), (path.name, link)
            if anchor and to in pages:
                assert anchor in pages[to].anchors, (path.name, link)
                count += 1
    assert count > 500


@pytest.mark.slow
def test_the_reference_has_every_command_and_every_name(site: Path) -> None:
    commands = (site / "cli.html").read_text(encoding="utf-8")
    assert all(f'id="irgraph-{name}"' in commands for name in entries())
    text = (site / "api.html").read_text(encoding="utf-8")
    described = set(re.findall(r'<h3 id="irgraph[\w.]*\b(\w+)" class="doc', text))
    assert described == set(irgraph.__all__) - {"__version__"}


@pytest.mark.slow
def test_reports_and_figures_were_made(site: Path) -> None:
    made = {path.name: path.stat().st_size for path in (site / "runs").iterdir()}
    assert sum(name.endswith(".html") for name in made) == 5
    assert sum(name.endswith(".svg") for name in made) == 6
    assert sum(made.values()) < 4e6


@contextmanager
def opened(browser: Any, path: Path, scheme: str = "light") -> Iterator[tuple[Any, list[str]]]:
    """Open a page of the site as a file; yield it, and a list of all that goes wrong."""
    view = {"width": 1280, "height": 900}
    context = browser.chromium.new_context(viewport=view, color_scheme=scheme)
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda r: wrong.append(r.url) if ELSEWHERE.match(r.url) else None)
    page.goto(path.as_uri())
    try:
        yield page, wrong
    finally:
        context.close()


@pytest.mark.slow
def test_pages_open_as_files_and_are_searched(site: Path, browser: Any) -> None:
    with opened(browser, site / "index.html") as (page, wrong):
        page.keyboard.press("/")
        page.keyboard.type("roofline")
        page.wait_for_selector(".md-search-result__link", timeout=30_000)
        assert "roofline" in page.inner_text(".md-search-result__list").lower()
    assert not wrong
    with opened(browser, site / "gallery.html") as (page, wrong):
        frame = page.frame_locator("iframe").first
        frame.locator("html[data-ready=yes]").wait_for(timeout=30_000)
        assert "dlrm_default" in frame.locator("h1").inner_text()
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_a_reader_out(site: Path, browser: Any, scheme: str) -> None:
    with opened(browser, site / "guide.html", scheme) as (page, _):
        page.wait_for_selector(".md-search__input", state="attached")
        findings(page)


def test_every_page_is_in_the_contents() -> None:
    contents = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r": ([\w./-]+\.md)$", contents, re.MULTILINE))
    outside = set(hook("links")["OUTSIDE"].values())
    docs = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert listed == docs | outside | {"cli.md"}


def hook(name: str) -> dict[str, Any]:
    return runpy.run_path(str(HOOKS / f"{name}.py"))


@pytest.mark.parametrize(
    ("source", "text", "found"),
    [
        ("README.md", "[a](docs/check.md#sizes)", "[a](check.md#sizes)"),
        ("README.md", "![a](docs/images/a.png)", "a"),
        ("README.md", "![a](docs/images/studio.png)", "![a](images/studio.png)"),
        ("README.md", "[a](CONTRIBUTING.md) [b](#use)", "[a](CONTRIBUTING.md) [b](#use)"),
        ("README.md", "[x](examples/notebooks)", "x"),
        (
            "docs/report.md",
            "[a](../examples/notebooks/first_prediction.ipynb)",
            "[a](notebooks/first_prediction.md)",
        ),
        ("docs/editors/README.md", "[a](../check.md)", "[a](../check.md)"),
        ("docs/check.md", "[a](https://b.org/c)", "[a](https://b.org/c)"),
        ("docs/a.md", "```\n[a](../LICENSE)\n```\n[a](../LICENSE)", "```\n[a](../LICENSE)\n```\na"),
    ],
)
def test_links_lead_where_pages_are_on_the_site(source: str, text: str, found: str) -> None:
    assert hook("links")["moved"](text, source) == found


def test_a_block_that_fails_ends_the_build(tmp_path: Path) -> None:
    executed = hook("runs")["executed"]
    text = "```python run\nopen('a.svg', 'w').write('x')\n```\n"
    assert "![a](runs/a.svg)" in executed(text, tmp_path, lambda path: f"runs/{path.name}")
    for wrong in ("```sh run\nirgraph predict none.ir\n```\n", "```python run\n1 / 0\n```\n"):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        with pytest.raises(RuntimeError, match=r"none\.ir|ZeroDivisionError"):
            executed(wrong, folder, str)


def test_commands_are_described_as_their_help_does(capsys: pytest.CaptureFixture[str]) -> None:
    text = hook("commands")["page"]()
    main(["predict", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    section = text.partition("### irgraph predict\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| `(.+?)` \| (.*) \|$", section, re.MULTILINE)
    assert len(rows) >= 20
    for name, what in rows:
        assert name in said and what.replace("\\", "")[:20] in said, (name, what)
