"""Sweeps give what predictions give, one by one, and go on where they were ended."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from irgraph.diagnostics import IrgraphError
from irgraph.predict.prediction import predict
from irgraph.sweep.grid import Grid
from irgraph.sweep.results import Results
from irgraph.sweep.run import sweep
from irgraph.text import parse

MODEL = """model "m" { format = 1  dims = {B = 128, W = 64} }

device @gpu0 "v100"
input %x : f32[B, W] in $x
param %w : f32[W, 32] in $w

%y = aten.mm(%x, %w) : f32[B, 32] in $y
%z = aten.relu(%y) : f32[B, 32] in $z
"""
GRAPH = parse(MODEL)
GRID = Grid(
    {"B": tuple(range(32, 32 * 13, 32)), "W": (8, 24)}, ("v100", "t4"), ("v100", "v100@2x"), chunk=8
)


def rows(results: Results) -> list[dict[str, Any]]:
    """Return all rows of a sweep."""
    return [row for table in results.tables() for row in table.to_pylist()]


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return sweep(GRAPH, GRID, tmp_path_factory.mktemp("sweep") / "serial").results


def test_every_variant_has_its_row(serial: Results) -> None:
    keys = [(row["B"], row["W"], row["device"], row["host"]) for row in rows(serial)]
    assert len(keys) == len(set(keys)) == GRID.variants == 96


def test_readers_of_parquet_take_the_folder_as_it_is(serial: Results) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(serial.folder).num_rows == GRID.variants


def test_figures_are_those_of_predictions_one_by_one(serial: Results) -> None:
    for row in random.Random(0).sample(rows(serial), 12):
        sizes = {"B": row["B"], "W": row["W"]}
        one = predict(GRAPH, device=row["device"], host=row["host"], dims=sizes, measured=False)
        assert row["step_us"] == pytest.approx(one.step_time, rel=1e-12)
        assert row["active_us"] == pytest.approx(one.timeline.active_time, rel=1e-12)


def test_the_fastest_are_those_of_all_rows(serial: Results) -> None:
    found, refused = serial.fastest(5)
    wanted = sorted(row["step_us"] for row in rows(serial))[:5]
    assert [row["step_us"] for row in found] == wanted and refused == 0


def test_a_sweep_that_was_ended_goes_on_and_keeps_what_is_done(
    serial: Results, tmp_path: Path
) -> None:
    def end(done: int, _: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(GRAPH, GRID, tmp_path / "s", progress=end)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("*.parquet")}
    assert len(before) == 4
    done = sweep(GRAPH, GRID, tmp_path / "s")
    assert (done.computed, done.existing) == (8, 4)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert rows(done.results) == rows(serial)
    again = sweep(GRAPH, GRID, tmp_path / "s")
    assert (again.computed, again.existing) == (0, 12)


def test_a_folder_of_something_else_is_refused(serial: Results, tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match="holds another sweep"):
        sweep(GRAPH, replace(GRID, devices=("v100",)), serial.folder)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(IrgraphError, match="holds other files"):
        sweep(GRAPH, GRID, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dims": {"C": (1,)}}, "no dimension 'C'"),
        ({"devices": ("v1000",)}, "v1000"),
        ({"hosts": ("nowhere",)}, "no host table or file 'nowhere'"),
        ({"mode": "magic"}, "no pricing mode named 'magic'"),
        ({"dims": {"B": tuple(range(1, 200_001)), "W": tuple(range(1, 200_001))}}, "more than"),
    ],
)
def test_what_is_wrong_for_every_variant_is_refused_first(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(IrgraphError, match=message):
        sweep(GRAPH, replace(GRID, **changes), tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_sizes_that_cannot_be_are_refused_one_by_one(tmp_path: Path) -> None:
    grid = Grid({"B": (32, 10**17, 64)}, ("v100",), chunk=10)
    found = sweep(GRAPH, grid, tmp_path / "s").results
    assert [row["step_us"] is None for row in rows(found)] == [False, True, False]
    assert [bool(row["refused"]) for row in rows(found)] == [False, True, False]
    assert found.fastest(9)[1] == 1


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _copied(path: Path) -> None:
    path.write_bytes(path.with_name("part-0000003.parquet").read_bytes())


def _edited(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(pa.BufferReader(path.read_bytes()))
    column = table.column_names.index("step_us")
    halves = pa.array([time / 2 for time in table.column("step_us").to_pylist()])
    pq.write_table(table.set_column(column, "step_us", halves), path)


@pytest.mark.parametrize("damage", [_cut, _emptied, _copied, _edited])
def test_a_part_that_no_sweep_wrote_so_is_refused_and_computed_again(
    tmp_path: Path, serial: Results, damage: Callable[[Path], None]
) -> None:
    """A copied or edited part gave another best variant, an empty one ended every later run."""
    folder = tmp_path / "sweep"
    shutil.copytree(serial.folder, folder)
    damage(folder / "part-0000005.parquet")
    results = Results(folder, GRID, serial.fingerprint)
    with pytest.raises(IrgraphError, match=r"part-0000005.parquet: error: a (damaged )?part"):
        results.fastest(3)
    again = sweep(GRAPH, GRID, folder)
    assert again.computed == 1
    assert [path.name for path in again.results.damaged] == ["part-0000005.parquet"]
    assert again.results.fastest(3) == serial.fastest(3)
