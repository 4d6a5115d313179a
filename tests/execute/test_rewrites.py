"""Wrong rewrites are told from right ones on drawn values, or what was not exercised is listed."""

from __future__ import annotations

import pytest

from irgraph.execute import Comparison, compare
from tests.execute.rewrites import RIGHT, WRONG, Rewrite

QUICK_INTERVAL = 6
"""Interval of rewrites that are tried with each run of the tests."""


def comparison(rewrite: Rewrite) -> Comparison:
    """Return the comparison of a rewrite's expressions."""
    return compare(*rewrite.graphs())


def is_missed(rewrite: Rewrite) -> bool:
    """Return whether a wrong rewrite is called the same without a reserve."""
    result = comparison(rewrite)
    return result.same and not result.where_exercised


def test_the_list_has_many_kinds() -> None:
    assert len(WRONG) >= 140
    assert len({rewrite.kind for rewrite in WRONG}) >= 15
    assert len(set(map(str, WRONG))) == len(WRONG)


def test_some_wrong_rewrites_are_told() -> None:
    assert [str(rewrite) for rewrite in WRONG[::QUICK_INTERVAL] if is_missed(rewrite)] == []


@pytest.mark.slow
def test_all_wrong_rewrites_are_told() -> None:
    missed = [str(rewrite) for rewrite in WRONG if is_missed(rewrite)]
    assert len(missed) <= 0.01 * len(WRONG), missed


def test_right_rewrites_are_the_same() -> None:
    results = {str(rewrite): comparison(rewrite) for rewrite in RIGHT}
    assert [f"{name}\n{result}" for name, result in results.items() if not result.same] == []


def test_a_branch_that_no_draw_reaches_is_listed() -> None:
    bounded = Rewrite("", "x.tanh().clamp(max=2.0)", "x.tanh() * 1.0", False)
    result = comparison(bounded)
    assert result.same
    assert result.where_exercised
    assert result.unexercised == ["aten.clamp of %clamp1: above 2"]
    assert str(result).startswith("same where exercised: ")
