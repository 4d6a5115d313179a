"""Texts of values: as the scripts of a page write them."""

from __future__ import annotations

import json

import pytest

from irgraph.html.page import asset
from irgraph.html.sections import KINDS
from irgraph.html.values import UNKNOWN, cell_text, time_text
from tests.browser import Browser

NUMBERS = (
    0, 1, -1, 12, 999, 1023, 1024, 123456, 2**20, 2**30 + 7, 10**14, 0.5, 0.1234567, -3.25e-4, 1e-4,
    1.0, 12.5, 999.96, 1234.567, 99999.4, 1e6, 2.5e9, 1.5e12, -0.333333, 3.14159e-2,
)  # fmt: skip

WORDS = ("aten::mm", "a\tb", "\u202eevil", "\u200bx", "\U0001f600\u200d", "\x00", "<b>&amp;")


@pytest.mark.long
def test_python_and_the_scripts_write_the_same(browser: Browser) -> None:
    cases = [[value, kind] for value in (*NUMBERS, *WORDS, None) for kind in KINDS]
    base = asset("js/base.js").partition("// Save a text")[0]
    page = browser.chromium.new_context().new_page()
    page.set_content('<script type="application/json" id="data">{}</script>')
    program = f"(cases) => {{ {base} return cases.map(([value, kind]) => cellText(value, kind)); }}"
    expected = dict(zip(map(json.dumps, cases), page.evaluate(program, cases), strict=True))
    assert {json.dumps(case): cell_text(*case) for case in cases} == expected


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_is_unknown(kind: str) -> None:
    assert {cell_text(value, kind) for value in (None, float("nan"), float("inf"))} == {UNKNOWN}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_time_that_is_not_finite_is_unknown(value: float) -> None:
    assert time_text(value) == UNKNOWN
