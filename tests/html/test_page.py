"""A page holds all it needs, and what it shows is never markup."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any

import pytest

from irgraph.html import sections
from irgraph.html.page import Page, asset, page_html
from tests.pages.reading import Read

PLANTED = (
    "</script><script>window.planted = 1</script><img src=x onerror='planted = 1'>",
    "<!--<script>", "]]>", "${data} $script", "\u2028\u2029\u202e&lt;", "\ud800",
    "javascript:alert(1)",
)  # fmt: skip


def page(word: str) -> Page:
    """Return a page with every kind of section, in which every text from outside is one word."""
    columns = [(word, kind) for kind in sections.KINDS]
    table = sections.table("t", word, columns, [(word, 1.0, 2.0, 0.5, 4.0, -1.0)], text=word)
    slices = {
        "texts": [word],
        "tracks": [[word, word, word]],
        "known": [[0, 0]],
        "columns": {name: [0] for name in ("start", "track", "name", "kind", "facts", "critical")}
        | {"length": [1000]},
    }
    number = {"label": word, "value": word, "detail": word}
    dot = {"name": word, "group": word, "x": 1.0, "y": 2.0, "front": True}
    point = {"name": word, "group": word, "calls": 1, "flop": 1e9, "bytes": 1e6, "us": 100.0}
    parts = [
        sections.headline(
            [number],
            span={"low": 1.0, "value": 2.0, "high": 3.0, "measured": 2.5},
            provenance={word: 1.0},
            longest=[(word, 1.0, 0.5)],
        ),
        sections.notes([word], warning=True),
        sections.facts("f", word, [(word, word)]),
        table,
        sections.tabs("tabs", word, {word: table | {"id": "u"}}, text=word),
        sections.slices("s", word, slices, text=word, tall=True),
        sections.areas("a", word, [0.0, 1.0], {word: [1, 2]}, limit=2, text=word),
        sections.roof("r", word, [point], {word: 1e4}, 900.0, text=word),
        sections.scatter("dots", word, [dot], (word, "number"), (word, "us"), text=word),
        sections.listing("l", word, word, text=word),
    ]
    return Page(word, word, parts, command=word, versions={word: word})


def test_every_kind_of_section_is_among_those_that_are_planted() -> None:
    known = set(re.findall(r"(\w+): \w+Node", asset("js/main.js")))
    assert {part["type"] for part in page("x").sections} == known


@pytest.mark.parametrize("word", PLANTED)
def test_no_text_becomes_markup(word: str) -> None:
    plain, planted = Read(page_html(page("x"))), Read(page_html(page(word)))
    assert planted.tags == plain.tags
    assert planted.tags["script"] == 3
    found = {text for text in texts(planted.data["sections"]) if text not in FIXED}
    assert found == {word}


def test_without_scripts_every_table_and_text_is_shown() -> None:
    """Numbers with their units; what only scripts draw is named."""
    read = Read(page_html(page("x")))
    assert read.tables == {0: [[], ["x", 1.0, 2.0, 0.5, 4.0, -1.0]]} | {1: read.tables[0]}
    for text in ("1.000 us", "0.0 KiB", "50.0 %", "-1.000 us", "1.000 us to 3.000 us"):
        assert text in read.visible
    assert read.visible.count("A drawing, which needs scripts.") == 4


def test_rows_are_in_the_file_once() -> None:
    table = sections.table("t", "t", [("name", "text")], [("a name of some length",)] * 3)
    assert page_html(Page("t", "", [table])).count("a name of some length") == 3


def texts(value: Any) -> list[str]:
    """Return the values of a record that are texts."""
    if isinstance(value, Mapping):
        return [text for inner in value.values() for text in texts(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in texts(inner)]
    return [value] if isinstance(value, str) else []


FIXED = {text for text in texts(Read(page_html(page("x"))).data["sections"]) if text != "x"}
"""Texts of the package itself: types, names and kinds."""


def test_a_page_names_nothing_outside() -> None:
    text = page_html(page("x"))
    assert Read(text).links == ["data:,"]
    assert "default-src 'none'" in text
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    hashes = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts}
    assert set(re.findall(r"'sha256-(.*?)'", text)) == hashes
    assert len(hashes) == 2


def test_what_is_no_number_is_unknown() -> None:
    table = sections.table("t", "t", [("a", "us")], [(math.nan,), (math.inf,)])
    assert Read(page_html(Page("t", "", [table]))).data["sections"][0]["rows"] == [[None], [None]]


def test_records_become_tables_by_the_names_of_their_fields() -> None:
    rows = [
        {"rank": 0, "step_us": 5.0, "of_peak": None},
        {"rank": 1, "of_peak": 0.5, "peak_bytes": 8},
    ]
    found = sections.records("r", "ranks", rows, bars=("step",))
    assert [(c["name"], c["kind"], c["bar"]) for c in found["columns"]] == [
        ("rank", "number", False),
        ("step", "us", True),
        ("of peak", "share", False),
        ("peak", "bytes", False),
    ]
    assert found["rows"] == [[0, 5.0, None, None], [1, None, 0.5, 8]]


def test_the_library_of_charts_comes_with_its_licence() -> None:
    licence = asset("uplot/LICENSE")
    assert "Leon Sorokin" in licence
    assert "MIT" in licence
    assert "uPlot" in asset("uplot/uPlot.iife.min.js")[:400]
