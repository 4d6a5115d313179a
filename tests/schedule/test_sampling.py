"""Intervals of step times: families err together, occurrences alone, twins alike."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from statistics import NormalDist, fmean, pstdev

import numpy as np
import pytest
from msgspec.structs import replace

from irgraph.ir.cost import Kernel, Overheads
from irgraph.ir.op import Op
from irgraph.schedule.sampling import (
    DEFAULT_DRAWS,
    NORMAL_90,
    TABLE_STD,
    WORKLOAD_STD,
    _NormalRows,
    _Normals,
    _normals,
    interval,
    sample_steps,
)
from irgraph.schedule.simulate import simulate
from irgraph.schedule.timeline import Timeline
from tests.schedule.graphs import FLAT, FlatHost, priced

SURE = FlatHost()
FREE = FlatHost(Overheads(0.0, 0.0, 0.0, {}, 0.0))
VARYING = FlatHost(replace(FLAT, std={"T1": 0.5, "T5": 1.0}))


def timeline_of(*kernels: Kernel) -> Timeline:
    return simulate(priced(*((Op("aten.linear"), [k]) for k in kernels)), FREE)


def test_without_deviations_there_is_one_step_time() -> None:
    timeline = timeline_of(Kernel("k", "gemm", 1000.0))
    assert set(sample_steps(timeline, FREE)) == {timeline.step_time}


def test_kernels_of_one_family_err_together_and_others_on_their_own() -> None:
    two = [Kernel("k", "gemm", 1000.0, 100.0)] * 2
    together = interval(sample_steps(timeline_of(*two), FREE, draws=4000))
    apart = [two[0], replace(two[1], family="copy")]
    alone = interval(sample_steps(timeline_of(*apart), FREE, draws=4000))
    assert (together[1] - together[0]) / 2 == pytest.approx(200.0, rel=0.1)
    assert (alone[1] - alone[0]) / 2 == pytest.approx(100.0 * 2**0.5, rel=0.1)
    assert sum(together) / 2 == pytest.approx(timeline_of(*two).step_time, rel=0.01)


def views(count: int, host: FlatHost) -> np.ndarray:
    timeline = simulate(priced(*((Op("aten.view"), []) for _ in range(count))), host)
    assert timeline.step_time == 6.0 * count
    return sample_steps(timeline, host, draws=4000)


def test_occurrences_vary_on_their_own_and_the_table_as_a_whole() -> None:
    found = views(100, VARYING)
    alone, kinds = 100 * (0.5**2 + 5.0**2), (TABLE_STD * 100) ** 2 * (1 + 25)
    expected = np.sqrt(alone + kinds + (WORKLOAD_STD * 600) ** 2)
    assert found.mean() == pytest.approx(600.0, rel=0.02)
    assert found.std() == pytest.approx(expected, rel=0.15)
    assert found.min() > 0.0


def test_host_times_without_a_deviation_err_with_the_table_and_the_workload() -> None:
    """A table's figure of one sample has none, and is not more certain for that."""
    expected = np.hypot(WORKLOAD_STD * 600, TABLE_STD * np.hypot(100, 500))
    assert views(100, SURE).std() == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("speed", [10.0, 1000.0])
def test_times_of_a_faster_host_err_by_the_same_share(speed: float) -> None:
    ops = [(Op("aten.view"), [])] * 100
    slow, fast = SURE, FlatHost(replace(FLAT, t1=FLAT.t1 / speed, t5=FLAT.t5 / speed))
    draws = [sample_steps(simulate(priced(*ops), host), host) for host in (slow, fast)]
    shares = [found.std() / found.mean() for found in draws]
    assert shares[0] == pytest.approx(shares[1]) and shares[0] > 0


def test_a_figure_of_a_category_errs_alike_for_all_occurrences() -> None:
    category = FlatHost(replace(VARYING.costs, level="category"))
    assert views(100, category).std() > 3 * views(100, VARYING).std()


def test_means_over_many_steps_have_no_jitter() -> None:
    timeline = simulate(priced(*((Op("aten.view"), []) for _ in range(10))), VARYING)
    calm = sample_steps(timeline, VARYING, jitter=False).std()
    alone = (10 * (0.5**2 + 5.0**2)) ** 0.5
    assert sample_steps(timeline, VARYING).std() == pytest.approx(np.hypot(calm, alone), rel=0.1)
    common = np.hypot(WORKLOAD_STD * 60, TABLE_STD * np.hypot(10, 50))
    assert calm == pytest.approx(common, rel=0.15)


def test_draws_are_the_same_for_every_timeline() -> None:
    one = timeline_of(Kernel("k", "gemm", 1000.0, 100.0))
    other = timeline_of(Kernel("k", "gemm", 1500.0, 100.0))
    difference = sample_steps(other, FREE) - sample_steps(one, FREE)
    assert interval(difference) == pytest.approx((500.0, 500.0))


def test_an_empty_step_takes_no_time() -> None:
    assert set(sample_steps(Timeline((), ()), FREE, draws=3)) == {0.0}


@pytest.mark.data
def test_a_table_varies_as_the_papers_workloads_do(data_dir: Path) -> None:
    path = data_dir / "paper" / "overheads_t1_v100_hipc2022_fig7_digitized.csv"
    with path.open(encoding="utf-8") as lines:
        means = [float(row["t1_mean_us"]) for row in csv.DictReader(lines)]
    assert len(means) == 12
    assert pytest.approx(pstdev(means) / fmean(means), rel=0.05) == TABLE_STD


@pytest.mark.data
def test_host_times_differ_between_models_as_measured_in_another_run(data_dir: Path) -> None:
    """T1 and T2 of each model over those of the same calls on average, by how often they came."""
    path = data_dir / "paper" / "overheads_t1_t2_by_op_model_batch_2022-02.csv"
    calls: defaultdict[tuple[str, str], list[tuple[str, float, int]]] = defaultdict(list)
    for row in csv.DictReader(path.open(encoding="utf-8")):
        found = row["model"] + " " + row["batch_size"], float(row["mean_us"])
        calls[row["overhead_type"], row["op"]].append((*found, int(row["sample_count"])))
    spent: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for samples in calls.values():
        by_model = [
            fmean(time for name, time, _ in samples if name.startswith(f"{model} "))
            for model in {name.split()[0] for name, _, _ in samples}
        ]
        for name, time, count in samples if len(by_model) > 2 else ():
            spent[name][0] += count * time
            spent[name][1] += count * fmean(by_model)
    ratios = {name: own / usual for name, (own, usual) in spent.items()}
    models = {name.split()[0] for name in ratios}
    means = [fmean(r for n, r in ratios.items() if n.startswith(f"{m} ")) for m in models]
    assert len(models) == 7 and (min(means), max(means)) == pytest.approx((0.73, 1.22), abs=0.01)
    assert pstdev(means) == pytest.approx(WORKLOAD_STD, abs=0.005)


def test_the_ends_of_an_interval_are_known_to_three_percent_of_its_width() -> None:
    """The standard error of a quantile q is sqrt(q (1 - q) / draws) over the density there."""
    standard = NormalDist()
    end = standard.inv_cdf(0.95)
    assert pytest.approx(end, abs=1e-4) == NORMAL_90
    error = (0.05 * 0.95 / DEFAULT_DRAWS) ** 0.5 / standard.pdf(end) / (2 * end)
    assert error == pytest.approx(0.032, abs=0.001)


def test_kept_draws_are_those_drawn_anew_however_they_are_asked_for() -> None:
    """One step asks for rows in other blocks than the one before it."""
    kept, whole = _Normals("T1 alone", 7), _Normals("T1 alone", 7).rows(0, 50)
    assert np.array_equal(np.concatenate([kept.rows(0, 20), kept.rows(20, 5)]), whole[:25])
    assert np.array_equal(kept.rows(3, 47), whole[3:])
    assert np.array_equal(kept.rows(18, 4), whole[18:22])


def test_draws_beyond_the_cached_rows_are_the_same_draws() -> None:
    """A long step reads on where the cache ends; the limit of the cache changes no draw."""
    expected = _Normals("T1 alone", 7).rows(0, 50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("irgraph.schedule.sampling.MAX_CELLS", 7 * 20)
        normals = _Normals("T1 alone", 7)
        for _ in range(2):
            reader = _NormalRows(normals)
            rows = np.concatenate([reader.next_rows(count) for count in (15, 10, 25)])
            assert np.array_equal(rows, expected)
        assert sum(map(len, normals.parts)) == 20


def test_a_long_step_is_drawn_like_a_short_one() -> None:
    """No number of tasks divides the draws into passes: time grows with the tasks alone."""
    ops = [(Op("aten.relu"), [Kernel("k", "elementwise", 2.0, 0.2)]) for _ in range(40)]
    timeline = simulate(priced(*ops), VARYING)
    expected = sample_steps(timeline, VARYING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("irgraph.schedule.sampling.MAX_CELLS", 400 * 8)
        _normals.cache_clear()
        assert np.array_equal(sample_steps(timeline, VARYING), expected)
    _normals.cache_clear()


def test_an_interval_is_the_middle_of_its_samples() -> None:
    samples = np.arange(101.0)
    assert interval(samples) == pytest.approx((5.0, 95.0))
    assert interval(samples, 0.5) == pytest.approx((25.0, 75.0))
