"""``irgraph place`` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Run: TypeAlias = Callable[..., Any]

TEXT = """model "m" { format = 2  dims = {B = 64} }

device @gpu0 "v100"
input %x : f32[B, 32] in $x
input %ids : i64[40*B] in $ids
input %starts : i64[B] in $starts
param %w "items.weight" : f32[1000000000, 32] in $w

%y, %y1, %y2, %y3 = aten._embedding_bag(%w, %ids, %starts) : f32[B, 32] in $y, i64[40*B] in $y1, i64[B] in $y2, i64[0] in $y3
%s = aten.add(%x, %y) : f32[B, 32] in $s
return %s
"""  # noqa: E501


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "m.ir").write_text(TEXT)
    return str(tmp_path / "m.ir")


def test_the_command_prints_and_writes(model: str, tmp_path: Path, run: Run) -> None:
    written = str(tmp_path / "placed.ir")
    given = ("--platform", "dgx-1-optane", "--qps", "1000", "--latency", "50ms")
    found = run("place", model, *given, "--indices", "zipf:0.9", "-o", written, "--json")
    assert found.code == 0, found.err
    ways = json.loads(found.out)
    assert ways[0]["name"] == "4 x Optane-P4800X-375GB"
    assert "irgraph.tier_read" in Path(written).read_text()
    assert "Optane" in run("place", model, *given).out


def test_formats_give_a_front_and_a_model(model: str, tmp_path: Path, run: Run) -> None:
    small, written = tmp_path / "small.ir", str(tmp_path / "placed.ir")
    small.write_text(TEXT.replace("1000000000", "50"))
    given = ("--platform", "dgx-1-nand", "--qps", "20000", "--latency", "50ms", "--formats", "i8")
    known = (*given, "--executed", str(small), "--indices", "zipf:1.05")
    found = run("place", model, *known, "--for", "links", "--budget", "1", "--json", "-o", written)
    assert found.code == 0, found.err
    (best,) = (one for one in json.loads(found.out)["points"] if one["chosen"])
    assert best["formats"] == {"items.weight": "i8"} and best["front"] and best["kl"] > 0
    text = Path(written).read_text()
    assert "prepared" in text
    assert ("irgraph.tier_pool" in text) == bool(best["moved_bytes"])
    assert "as they are" in run("place", model, *known).out
    for wrong, says in (
        (("--for", "glory"), "expected one of power"),
        (("--formats", "i3"), "none of f16"),
        (("--budget", "much"), "not a budget"),
        (("--for", "price"), "no price"),
    ):
        failed = run("place", model, *known, *wrong)
        assert failed.code != 0
        assert says in failed.err
    alone = run("place", model, *given[:-2], "--executed", str(small))
    assert alone.code == 2
    assert "--formats is missing" in alone.err


FINE = ("--platform", "dgx-1", "--qps", "5", "--latency", "1ms")


def test_ways_that_are_not_shown_are_named(model: str, run: Run) -> None:
    """A tier that a query waits too long for is left out, and what is left out is said."""
    given = ("--platform", "dgx-1-nand", "--qps", "5", "--indices", "zipf:0.9")
    found = run("place", model, *given, "--latency", "540us")
    assert found.code == 0 and "P3700" not in found.out
    assert "not shown: NAND-P3700-800GB: a query takes longer than the limit" in found.err
    assert "traffic between hosts that share a copy is not counted" in found.err
    pooled = run("place", model, *given, "--latency", "50ms", "--lists", "drawn")
    assert pooled.code == 0 and "pooled" not in pooled.err, "lists of forty rows never return"
    pooled = run("place", model, *given, "--latency", "50ms", "--lists", "1000000 zipf:0.9")
    assert "pooled bags of each answer" in pooled.err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--platform", "dgx-1", "--qps", "0", "--latency", "1ms"), "more than 0"),
        (("--platform", "dgx-1", "--qps", "5", "--latency", "1"), "not a time"),
        (("--platform", "dgx", "--qps", "5", "--latency", "1ms"), "no platform is called"),
        (("--platform", "dgx-1", "--qps", "5", "--latency", "1us"), "no placement serves"),
        (("--platform", "dgx-1", "--qps", "5", "--latency", "1ms", "--policy", "x"), "lru, lfu"),
        ((*FINE, "--lists", "many"), "expected a number and a law"),
        ((*FINE, "--for", "links"), "--formats is missing"),
        ((*FINE, "--budget", "1%"), "--formats is missing"),
        ((*FINE, "--formats", ","), "names none of f16"),
        ((*FINE, "--formats", ""), "names none of f16"),
    ],
)
def test_bad_input_ends_in_a_sentence(
    model: str, given: tuple[str, ...], says: str, run: Run
) -> None:
    found = run("place", model, *given)
    assert found.code != 0
    assert says in found.err
