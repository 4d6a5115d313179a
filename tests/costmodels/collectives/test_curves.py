"""Collectives: curves, their errors where points are left out, and the ops they price."""

from __future__ import annotations

import statistics
from itertools import permutations
from pathlib import Path

import msgspec
import pytest

from costmodels.collectives.build import measured, modern, rows
from costmodels.collectives.curve import Form, fit, leave_one_out, table
from costmodels.collectives.load import SCALED, find_curve, lacking, platforms, traffic
from irgraph.diagnostics import IrgraphError

SHIPPED = Path(__file__).parents[3] / "costmodels/collectives/fitted.json"


def test_a_table_interpolates_logarithms() -> None:
    curve = table([1e6, 1e4], [1000.0, 10.0])
    assert curve.time(1e5) == pytest.approx(100.0)
    assert curve.time(100.0) == 10.0
    assert curve.time(2e6) == pytest.approx(2000.0)


def test_a_fit_finds_the_form_that_made_the_points() -> None:
    made = Form(80.0, 2e-5, 0.01)
    sizes = [4.0**n for n in range(2, 15)]
    found = fit(sizes, [made.time(size) for size in sizes])
    assert found.alpha == pytest.approx(80.0)
    assert found.per_byte == pytest.approx(2e-5)
    assert found.per_root == pytest.approx(0.01)


def test_no_term_of_a_fit_is_negative() -> None:
    found = fit([1.0, 100.0, 10000.0], [10.0, 5.0, 20.0])
    assert min(found.alpha, found.per_byte, found.per_root) >= 0.0


def test_left_out_points_are_predicted_from_the_others() -> None:
    assert leave_one_out([1.0, 2.0, 4.0], [1.0, 2.0, 4.0], table) == [pytest.approx(0.0)]


@pytest.mark.data
def test_curves_predict_the_points_that_are_left_out(data_dir: Path) -> None:
    for (platform, *_), points, _source in measured(data_dir / "collectives"):
        errors = leave_one_out(points.sizes, points.times, table)
        assert statistics.fmean(map(abs, errors)) < 0.05
        if platform == "v100":
            errors = leave_one_out(points.sizes, points.times, fit)
            assert statistics.fmean(map(abs, errors)) < 0.055


@pytest.mark.data
def test_what_ships_is_what_the_measurements_give(data_dir: Path) -> None:
    shipped = msgspec.json.decode(SHIPPED.read_bytes())
    made = rows(data_dir / "collectives")
    assert [r["collective"] for r in shipped] == [r["collective"] for r in made]
    for name in ("per_byte", "error"):
        assert [r[name] for r in shipped] == pytest.approx([r[name] for r in made], rel=1e-4)


def test_a_curve_is_found_for_any_number_of_ranks() -> None:
    four, three = find_curve("all_reduce", 4), find_curve("all_reduce", 3)
    assert four.time(2**21) == pytest.approx(136.0, rel=0.15)
    assert three.per_byte == pytest.approx(four.per_byte * (2 / 3) / (3 / 4))
    assert "scaled from 4 ranks" in three.source
    assert three.error == pytest.approx(four.error + SCALED)
    assert find_curve("all_to_allv", 8).alpha == 68.0
    assert find_curve("broadcast", 4) == find_curve("reduce", 4)
    assert find_curve("all_reduce", 1).time(1e9) == 0.0
    assert "v100" in platforms()


def test_links_carry_what_the_collective_needs() -> None:
    assert traffic("all_reduce", 4) == 1.5
    assert traffic("all_to_allv", 4) == 0.75
    assert traffic("broadcast", 4) == 1.0


def test_an_unknown_platform_is_refused_with_the_nearest() -> None:
    with pytest.raises(IrgraphError, match="no collectives were measured on 'v10'; did you mean"):
        find_curve("all_reduce", 4, "v10")


def test_an_unmeasured_collective_is_refused() -> None:
    with pytest.raises(IrgraphError, match="nobody measured scatter on v100"):
        find_curve("scatter", 4)


def test_several_machines_need_a_curve_between_machines() -> None:
    assert "between several machines of v100" in lacking("all_reduce", "v100", several=True)
    assert lacking("all_reduce", "a100", several=True) == ""
    two = find_curve("all_reduce", 16, "a100", local=8)
    assert two.time(2**26) > 3 * find_curve("all_reduce", 16, "a100").time(2**26)


@pytest.mark.data
def test_curves_of_other_numbers_of_ranks_err_as_is_said(data_dir: Path) -> None:
    known = {key: points for key, points, _ in measured(data_dir / "collectives")}
    errors = []
    for few, many in permutations((2, 4, 8), 2):
        points = known["a100", many, many, "all_reduce"]
        form = fit(
            known["a100", few, few, "all_reduce"].sizes, known["a100", few, few, "all_reduce"].times
        )
        scale = traffic("all_reduce", many) / traffic("all_reduce", few)
        other = Form(form.alpha, form.per_byte * scale, form.per_root * scale)
        pairs = zip(points.sizes, points.times, strict=True)
        errors.append(statistics.fmean(abs(other.time(s) / t - 1) for s, t in pairs))
    for name in ("all_reduce", "all_to_allv"):
        four, eight = find_curve(name, 4), find_curve(name, 8)
        scale = traffic(name, 8) / traffic(name, 4)
        other = Form(four.alpha, four.per_byte * scale, four.per_root * scale)
        sizes = known["v100", 4, 4, name].sizes
        errors.append(statistics.fmean(abs(other.time(s) / eight.time(s) - 1) for s in sizes))
    assert statistics.fmean(errors) == pytest.approx(SCALED, abs=0.01)


@pytest.mark.data
@pytest.mark.parametrize("platform", ["h100", "h200", "b200"])
def test_todays_cards_take_what_was_held_out(platform: str, data_dir: Path) -> None:
    curves = modern(data_dir / "modern" / "collectives.csv.gz", "dev")
    for name in ("all_reduce", "all_gather_base", "reduce_scatter", "all_to_allv"):
        errors = [
            find_curve(name, ranks, platform).time(size) / time - 1
            for (where, ranks, _, what), points in curves.items()
            for size, time in points.items()
            if (where, what) == (platform, name)
        ]
        assert statistics.fmean(map(abs, errors)) < 0.15, name


def test_measured_points_go_before_the_form() -> None:
    curve = find_curve("all_reduce", 8, "h100")
    assert curve.time(2**20) == pytest.approx(25.4)
    assert curve.points is not None
    assert find_curve("all_reduce", 6, "h100").points is None
