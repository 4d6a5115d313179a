"""Formulas of kernels over rows and columns beside kernels of an H100 SXM 80 GB (torch 2.11).

Each row tells the microseconds that were measured with a warm cache and with one that other data
had filled: between them a prediction is right, and within a quarter of them it is near.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from costmodels.formulas.blocks.random_numbers import dropout_time
from costmodels.formulas.blocks.reductions import launch_of, reduction_time
from costmodels.formulas.blocks.scans import scan_time
from costmodels.formulas.blocks.softmax_rows import backward_time, forward_time
from costmodels.formulas.blocks.sorts import selection_time, sort_time
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import PointValues, SplitError, power_of_two
from irgraph.ir.tensor import Tensor
from tests.costmodels.families.helpers import call, kernels, machine, tensor, total

ON = machine("h100")


def near(op: Op, warm: float, cold: float) -> bool:
    """Return whether an op's price is within a quarter of what was measured."""
    found = total(kernels(op, ON))
    return 0.75 * warm <= found <= 1.25 * cold


def matrix(rows: int, columns: int, dtype: str = "f32") -> Tensor:
    """Return a matrix."""
    return tensor("x", rows, columns, dtype=dtype)


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "warm", "cold"),
    [
        (4, 52, "f32", 1.95, 2.4),
        (192, 6385, "f32", 10.8, 26.0),
        (1066, 88, "f16", 8.8, 19.1),
        (2048, 1024, "f32", 6.0, 12.1),
        (14205, 16, "f32", 5.7, 8.4),
        (11570, 1280, "f16", 22.2, 32.2),
        (26131, 512, "f16", 33.7, 41.9),
        (9589, 6362, "f32", 91.1, 99.9),
    ],
)
def test_sums_over_rows(rows: int, columns: int, dtype: str, warm: float, cold: float) -> None:
    op = call("aten.sum", matrix(rows, columns, dtype), out=(1, columns), dim=(0,))
    assert near(op, warm, cold)


def test_the_last_block_of_a_few_columns_adds_up_what_all_others_left() -> None:
    narrow, wide = (
        total(kernels(call("aten.sum", matrix(50176, n, "f16"), out=(n,), dim=(0,)), ON))
        for n in (192, 768)
    )
    assert narrow > wide  # a quarter of the bytes


@pytest.mark.parametrize(
    ("rows", "columns", "warm", "cold"),
    [
        (6, 53, 2.05, 2.4),
        (20324, 37, 6.3, 7.4),
        (50741, 35, 13.2, 14.5),
        (13, 2145, 3.8, 6.9),
        (26504, 1211, 53.6, 63.2),
        (34741, 3497, 179.2, 188.3),
    ],
)
def test_sums_of_rows(rows: int, columns: int, warm: float, cold: float) -> None:
    assert near(call("aten.sum", matrix(rows, columns), out=(rows,), dim=(1,)), warm, cold)


@pytest.mark.parametrize(
    ("rows", "columns", "warm", "cold"),
    [
        (34, 132, 3.0, 3.5),
        (12, 2154, 6.2, 8.3),
        (29, 4811, 17.2, 24.7),
        (25372, 249, 20.8, 23.5),
        (50337, 4943, 359.5, 368.6),
    ],
)
def test_maxima_keep_places(rows: int, columns: int, warm: float, cold: float) -> None:
    assert near(call("aten.argmax", matrix(rows, columns), out=(rows,), dim=1), warm, cold)


@pytest.mark.parametrize(
    ("count", "warm", "cold"),
    [(100, 1.0, 1.0), (1_401_489, 2.2, 2.4), (11_268_982, 14.7, 14.7), (257_836_321, 312.7, 312.5)],
)
def test_fills_write_faster_than_others_read_and_write(
    count: int, warm: float, cold: float
) -> None:
    assert near(call("aten.zeros", out=(count,)), warm, cold)


@pytest.mark.parametrize(
    ("count", "warm", "cold"),
    [(1000, 1.44, 1.54), (291_296, 4.2, 4.2), (2_258_858, 7.4, 7.4), (152_873_312, 236.0, 235.9)],
)
def test_random_numbers_take_the_units_longer_than_the_memory(
    count: int, warm: float, cold: float
) -> None:
    assert near(call("aten.rand", out=(count,)), warm, cold)


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "warm", "cold"),
    [
        (7, 984, "f16", 4.4, 6.1),
        (12, 1745, "f16", 7.3, 10.0),
        (35825, 1713, "f16", 154.7, 155.2),
        (4920, 3337, "f16", 61.5, 61.9),
        (3522, 6580, "f16", 106.1, 107.0),
        (64749, 275, "f32", 50.2, 51.8),
        (58552, 2644, "f32", 633.5, 634.4),
    ],
)
def test_softmax_takes_as_long_as_a_lane_or_a_block_holds_of_a_row(
    rows: int, columns: int, dtype: str, warm: float, cold: float
) -> None:
    op = call("aten._softmax", matrix(rows, columns, dtype), out=(rows, columns), dim=-1)
    assert near(replace(op, results=(matrix(rows, columns, dtype),)), warm, cold)


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "warm", "cold"),
    [
        (63423, 120, "f32", 62.9, 64.9),
        (15026, 958, "f32", 116.9, 118.7),
        (28560, 723, "f16", 94.7, 99.2),
        (17392, 5721, "f32", 867.8, 873.0),
        (2201, 4016, "f32", 74.1, 76.7),
    ],
)
def test_a_softmax_s_gradient_multiplies_first(
    rows: int, columns: int, dtype: str, warm: float, cold: float
) -> None:
    x = matrix(rows, columns, dtype)
    op = Op("aten._softmax_backward_data", (x, replace(x, name="y")), (x,), {"dim": -1})
    assert len(kernels(op, ON)) == 2
    assert near(op, warm, cold)
    log = replace(op, name="aten._log_softmax_backward_data")
    assert len(kernels(log, ON)) == 1


@pytest.mark.parametrize(
    ("batch", "rows", "columns", "dtype", "warm", "cold"),
    [
        (830, 1717, 1709, "f32", 21752.9, 21756.1),
        (1116, 966, 565, "f16", 4698.7, 4698.1),
        (16, 376, 890, "f32", 44.7, 44.5),
        (4, 1228, 1369, "f16", 50.2, 52.3),
        (1083, 18, 1999, "f32", 139.9, 142.2),
        (2178, 757, 8, "f32", 51.5, 53.7),
        (2, 13, 1024, "f32", 1.6, 2.1),
        (157, 1885, 225, "f16", 518.6, 518.3),
    ],
)
def test_copies_across_rows_fetch_a_sector_for_an_element(
    batch: int, rows: int, columns: int, dtype: str, warm: float, cold: float
) -> None:
    steps = (rows * columns, 1, columns)
    source = replace(tensor("x", batch, columns, rows, dtype=dtype), strides=steps)
    made = tensor("y", batch, columns, rows, dtype=dtype)
    assert near(Op("aten.clone", (source,), (made,)), warm, cold)


@pytest.mark.parametrize(
    ("batch", "rows", "columns", "dtype", "warm", "cold"),
    [
        (1576, 155, 1929, "f16", 1242.0, 1243.5),
        (1208, 506, 1218, "f32", 2698.8, 2701.2),
        (4001, 64, 42, "f16", 31.0, 32.8),
    ],
)
def test_copies_of_whole_rows_work_out_offsets(
    batch: int, rows: int, columns: int, dtype: str, warm: float, cold: float
) -> None:
    steps = (columns, rows * columns, 1)
    source = replace(tensor("x", rows, batch, columns, dtype=dtype), strides=steps)
    made = tensor("y", rows, batch, columns, dtype=dtype)
    assert near(Op("aten.clone", (source,), (made,)), warm, cold)


@pytest.mark.parametrize(
    ("rows", "columns", "warm", "cold"),
    [
        (22, 5, 1.7, 2.0),
        (7, 7684, 11.2, 14.1),
        (2935, 3648, 151.5, 152.4),
        (57036, 4777, 1375.7, 1378.7),
        (15978, 984, 74.3, 76.8),
        (12252, 19, 2.8, 3.5),
        (27471, 24, 160.2, 161.3),  # one block of 512 threads to a row
    ],
)
def test_running_sums_go_along_rows_in_chunks(
    rows: int, columns: int, warm: float, cold: float
) -> None:
    op = call("aten.cumsum", matrix(rows, columns), 1, out=(rows, columns), dim=1)
    assert near(op, warm, cold)


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "warm", "cold"),
    [
        (7, 8, "f32", 1.4, 1.6),
        (11765, 5300, "f16", 144.6, 145.3),
        (64189, 846, "f16", 191.2, 191.9),
        (32182, 2182, "f32", 244.3, 246.0),
        (42925, 4306, "f32", 792.6, 794.4),
    ],
)
def test_dropout_draws_a_number_for_each_element(
    rows: int, columns: int, dtype: str, warm: float, cold: float
) -> None:
    x = matrix(rows, columns, dtype)
    mask = tensor("mask", rows, columns, dtype="bool")
    assert near(Op("aten.native_dropout", (x, 0.5, True), (replace(x, name="y"), mask)), warm, cold)


@pytest.mark.parametrize(
    ("rows", "columns", "time"),
    [
        (4, 3, 8.2),
        (22235, 32, 36.3),
        (34478, 48, 206.5),
        (290, 201, 21.1),
        (50314, 383, 1262.6),
        (480, 1276, 42.7),
        (650, 2433, 83.0),
        (21, 6814, 70.6),
        (7401, 5601, 3296.0),
    ],
)
def test_sorts_of_rows(rows: int, columns: int, time: float) -> None:
    assert near(call("aten.sort", matrix(rows, columns), out=(rows, columns), dim=-1), time, time)


@pytest.mark.parametrize(
    ("rows", "columns", "time"),
    [
        (13, 2, 9.5),
        (51723, 38, 192.3),
        (25190, 225, 346.8),
        (42, 5818, 39.4),
        (936, 1472, 65.3),
        (14933, 5991, 1349.7),
    ],
)
def test_the_greatest_eight_of_rows(rows: int, columns: int, time: float) -> None:
    assert near(call("aten.topk", matrix(rows, columns), 8, -1, out=(rows, 8), dim=-1), time, time)


def _reduced(rows: int, columns: int, along: bool) -> float:
    launch = launch_of(rows, columns, along, ON)
    size = rows * columns
    return reduction_time(launch, 4.0 * size, size, ON, at_once=4, indexed=along)


LAWS: dict[str, Callable[[int, int], float]] = {
    "sums of rows": lambda r, c: _reduced(r, c, True),
    "sums over rows": lambda r, c: _reduced(c, r, False),
    "running sums": lambda r, c: scan_time(r, c, ON),
    "softmax": lambda r, c: forward_time(r, c, 2, False, ON),
    "softmax backward": lambda r, c: backward_time(r, c, 4, ON),
    "sort": lambda r, c: sort_time(r, c, ON),
    "greatest": lambda r, c: selection_time(r, c, ON),
    "dropout": lambda r, c: dropout_time(r * c, 4, 9.0 * r * c, ON),
}


@pytest.mark.parametrize("name", LAWS)
def test_a_law_gives_for_many_sizes_what_it_gives_for_each(name: str) -> None:
    law, rng = LAWS[name], np.random.default_rng(0)
    rows, columns = (np.exp(rng.uniform(0.7, top, 200)).astype(np.int64) for top in (11, 9))
    found, left = np.zeros(len(rows)), [np.arange(len(rows))]
    while left:
        some = left.pop()
        try:
            time = law(PointValues(rows[some]), PointValues(columns[some]))  # type: ignore[arg-type]
            found[some] = time.values if type(time) is PointValues else time
        except SplitError as split:
            left += [some[~split.holds], some[split.holds]]
    assert found.tolist() == [law(int(r), int(c)) for r, c in zip(rows, columns, strict=True)]


def test_powers_of_two_at_many_points_are_those_of_each() -> None:
    numbers = [0, 1, 2, 3, 7, 8, 15, 16, 1023, 1024, 2**31 - 1, 2**52, 2**53 - 1]
    found = power_of_two(PointValues(np.array(numbers))).values.tolist()
    assert found == [power_of_two(number) for number in numbers]
    assert found == [1, 1, 2, 2, 4, 8, 8, 16, 512, 1024, 2**30, 2**52, 2**52]
