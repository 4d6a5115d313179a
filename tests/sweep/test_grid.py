"""Variants in their order, chunks that hold each of them once, and what a folder is told by."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from msgspec.structs import replace

from irgraph.diagnostics import IrgraphError
from irgraph.sweep.grid import Grid, parse_dims

GRID = Grid({"B": (1, 2, 5), "S": (8, 16)}, ("v100", "t4"), ("v100", "other"), chunk=4)


def test_chunks_hold_every_combination_once_in_order() -> None:
    wanted = [{"B": b, "S": s} for b, s in product((1, 2, 5), (8, 16))]
    chunks = list(GRID.chunks())
    assert [chunk.number for chunk in chunks] == list(range(6))
    for host in GRID.hosts:
        found = [sizes for c in chunks if c.host == host for sizes in GRID.sizes(c)]
        assert found == wanted
    assert GRID.variants == 24 and {len(GRID.sizes(chunk)) for chunk in chunks} == {2}


def test_a_grid_without_dimensions_is_the_model_as_it_is() -> None:
    (chunk,) = Grid({}, ("v100",)).chunks()
    assert Grid({}, ("v100",)).sizes(chunk) == [{}]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("B=64", (64,)),
        ("B=64,128", (64, 128)),
        ("B=1:5", (1, 2, 3, 4, 5)),
        ("B=64:200:64,512", (64, 128, 192, 512)),
    ],
)
def test_sizes_are_lists_and_ranges(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_dims([text]) == {"B": sizes}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["B"], "give NAME=SIZES, not 'B'"),
        (["=3"], "give NAME=SIZES"),
        (["B="], "give sizes such as"),
        (["B=x"], "give sizes such as"),
        (["B=-1"], "give sizes such as"),
        (["B=1:2:3:4"], "give sizes such as"),
        (["B=0:5"], "goes up from at least 1"),
        (["B=5:1"], "goes up from at least 1"),
        (["B=1:9:0"], "goes up from at least 1"),
        (["B=1:99999999999999"], "goes up from at least 1"),
        (["B=1,1"], "a size is given twice"),
        (["B=1", "B=2"], "--dim B: given twice"),
    ],
)
def test_other_sizes_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(IrgraphError, match=message) as caught:
        parse_dims(texts)
    assert caught.value.exit_code == 2


def test_all_that_figures_depend_on_changes_the_fingerprint(tmp_path: Path) -> None:
    sheet = tmp_path / "card.json"
    sheet.write_text("{}")
    grid = replace(GRID, devices=(str(sheet),))
    found = {grid.fingerprint("model", "1"), grid.fingerprint("other", "1")}
    found |= {grid.fingerprint("model", "2"), replace(grid, chunk=5).fingerprint("model", "1")}
    sheet.write_text("{ }")
    assert len(found | {grid.fingerprint("model", "1")}) == 5
