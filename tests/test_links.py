"""What pages refer to is there: files, headings, commands of the project's own tools."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import irgraph

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
FENCED = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_page_is_in_the_navigation(page: Path) -> None:
    assert f": {page.name}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_terms_are_in_order() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = [term.lower() for term in re.findall(r"^\*\*(.+?)\*\*", page, re.MULTILINE)]
    assert terms == sorted(set(terms))


def test_the_change_log_begins_with_this_version() -> None:
    page = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)", page, re.MULTILINE)
    assert newest is not None and newest[1].rstrip(",") == irgraph.__version__
