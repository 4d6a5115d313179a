"""The page about operators is made from their declarations."""

from __future__ import annotations

import runpy
from pathlib import Path

from irgraph.ops.book import shipped

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_is_what_the_declarations_give() -> None:
    build = runpy.run_path(str(DOCS / "build_operators.py"))
    text = (DOCS / "operators.md").read_text(encoding="utf-8")
    assert text == build["page"](), "python docs/build_operators.py writes it"


def test_every_declared_operator_is_on_the_page() -> None:
    text = (DOCS / "operators.md").read_text(encoding="utf-8")
    assert [name for name in shipped() if f"`{name}`" not in text] == []
