"""Two traces side by side."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from irgraph.analyze import Analysis, analyze
from irgraph.analyze.compare import COMPARE_GROUPINGS, compare
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.diagnostics import IrgraphError
from tests.capture.kineto.builder import Event, write


def analysed(folder: Path, change: Callable[[list[Event]], None] | None = None) -> Analysis:
    folder.mkdir()
    return analyze([build_tree(read_kineto(write(folder, change)))])


def slower(found: list[Event]) -> None:
    """Let one kernel take 40 us more, and put another operator in the place of a third."""
    for event in found:
        if event["name"] == "void aten_linear_kernel()":
            event["dur"] += 40
        event["name"] = re.sub("(?<=::)relu|(?<=_)relu(?=_)", "gelu", event["name"])


@pytest.mark.parametrize("by", COMPARE_GROUPINGS)
def test_changes_add_up(by: str, tmp_path: Path) -> None:
    before, after = analysed(tmp_path / "a"), analysed(tmp_path / "b", slower)
    figures, parts = compare(before, after, by)
    if by != "host":
        assert sum(c.delta for c in parts) == pytest.approx(40.0)
    assert {c.name: c.delta for c in figures}["GPU active"] == pytest.approx(30.0)  # 10 overlap
    assert [abs(c.delta) for c in parts] == sorted((abs(c.delta) for c in parts), reverse=True)


def test_what_is_new_or_gone_is_said(tmp_path: Path) -> None:
    before, after = analysed(tmp_path / "a"), analysed(tmp_path / "b", slower)
    found = {c.name: (c.delta, c.status) for c in compare(before, after)[1]}
    assert found["aten::linear"] == (pytest.approx(40.0), "")
    assert found["aten::relu"] == (pytest.approx(-100.0), "gone")
    assert found["aten::gelu"] == (pytest.approx(100.0), "new")


def test_a_trace_beside_itself_has_not_changed(tmp_path: Path) -> None:
    one = analysed(tmp_path / "a")
    figures, parts = compare(one, one, "kernel")
    assert {c.delta for c in [*figures, *parts]} == {0.0}
    assert {c.status for c in parts} == {""}


def test_an_unknown_breakdown_is_refused(tmp_path: Path) -> None:
    one = analysed(tmp_path / "a")
    with pytest.raises(IrgraphError, match="no breakdown by 'kernels'; did you mean 'kernel'"):
        compare(one, one, "kernels")


def test_nothing_is_said_of_a_device_that_was_not_recorded(tmp_path: Path) -> None:
    def on_host(found: list[Event]) -> None:
        found[:] = [event for event in found if event["cat"] == "cpu_op"]

    one = analysed(tmp_path / "a", on_host)
    assert [c.name for c in compare(one, one, "host")[0]] == ["step"]
    with pytest.raises(IrgraphError, match="a trace has no device work to part by op"):
        compare(one, one)
