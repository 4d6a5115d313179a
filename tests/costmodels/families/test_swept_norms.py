"""Norms beside what was measured of them: kernels of sweeps on an H100 (SXM 80 GB, torch 2.11).

Times are on a warm cache and on one that other data had filled; predictions lie between, or within
a quarter of the nearer one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from costmodels.devices.library import load_device
from costmodels.formulas.blocks.channel_norms import BACKWARD, FORWARD, sums_time, thread_steps
from costmodels.formulas.blocks.group_norms import NormGroups, factors_time, moments_time
from costmodels.formulas.blocks.group_norms import sums_time as group_sums_time
from costmodels.formulas.blocks.row_norms import columns_time, norm_time
from costmodels.formulas.machine import Machine, ModelEstimate
from costmodels.learned.predictors import SOFTWARE, predictors
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import PointValues, as_array
from irgraph.ir.tensor import Tensor
from tests.costmodels.families.helpers import call, kernels, machine, tensor, total

H100 = machine("h100")


def priced(op: Op, on: Machine = H100) -> float:
    """Return the microseconds of an op's kernels."""
    return sum(kernel.time for kernel in kernels(op, on))


def near(found: float, warm: float, cold: float) -> bool:
    """Tell whether a time lies between two, or within a quarter of the nearer one."""
    low, high = sorted((warm, cold))
    return 0.75 * low <= found <= 1.25 * high


def rows_op(name: str, rows: int, columns: int, dtype: str) -> Op:
    """Return an op over a matrix that makes one as large."""
    data = tensor("x", rows, columns, dtype=dtype)
    return Op(f"aten.{name}", (data,), (replace(data, name="y"),))


LAYER = [
    ("native_layer_norm", 28039, 136, "f32", 47.87, 50.75),
    ("native_layer_norm", 5683, 20, "f32", 9.89, 10.75),
    ("native_layer_norm", 30576, 584, "f16", 58.66, 58.95),
    ("native_layer_norm", 25942, 49, "f32", 136.42, 144.45),  # no multiple of four
    ("native_layer_norm", 16057, 1950, "f16", 206.57, 207.88),
    ("native_layer_norm_backward", 26211, 48, "f32", 20.19, 22.66),
    ("native_layer_norm_backward", 15371, 520, "f32", 33.18, 37.28),
    ("native_layer_norm_backward", 15727, 1231, "f16", 53.22, 55.68),
]


@pytest.mark.parametrize(("name", "rows", "columns", "dtype", "warm", "cold"), LAYER)
def test_layer_norms_take_what_was_measured(
    name: str, rows: int, columns: int, dtype: str, warm: float, cold: float
) -> None:
    assert near(priced(rows_op(name, rows, columns, dtype)), warm, cold)


def test_narrow_rows_cost_by_their_number_and_not_by_their_bytes() -> None:
    for name in ("native_layer_norm", "native_layer_norm_backward"):
        few, many, wider = (
            priced(rows_op(name, rows, columns, "f32"))
            for rows, columns in ((20_000, 32), (40_000, 32), (20_000, 64))
        )
        assert many > 1.8 * few and wider < 1.1 * few


def test_columns_are_those_that_are_normalised() -> None:
    data = tensor("x", 20_000, 4, 32)
    found = {
        sides: priced(call("aten.native_layer_norm", data, out=data.shape, normalized_shape=sides))
        for sides in ((32,), (4, 32))
    }
    assert found[4, 32] < found[32,] / 2


def test_trained_models_are_not_asked_about_rows_they_never_saw() -> None:
    """Where a model says less of such rows than their law, the law holds."""

    def asked(time: float, outside: bool, columns: int = 64) -> str:
        learned = {"layer_norm": lambda sizes: ModelEstimate(time, 0.5, outside)}
        on = Machine(load_device(card), H100.software, learned=learned)
        return kernels(rows_op("native_layer_norm", 20_000, columns, "f32"), on)[0].by

    card = "a100"
    assert asked(7.0, False) == "learned"
    assert asked(7.0, True) == "heuristic"
    assert asked(900.0, True) == "learned"
    assert asked(7.0, False, 63) == "heuristic"
    card = "h100"  # where torch's own kernels were measured
    assert asked(900.0, False) == "heuristic"


@pytest.mark.parametrize(
    ("rows", "columns", "measured"), [(24_849, 1024, 56.2), (186_644, 1024, 402.0)]
)
def test_predictions_on_hopper_take_torch_s_own_kernels(
    rows: int, columns: int, measured: float
) -> None:
    learned = predictors(H100.sheet, SOFTWARE)
    on = Machine(H100.sheet, H100.software, learned=learned)
    found = kernels(rows_op("native_layer_norm", rows, columns, "bf16"), on)
    assert total(found) == pytest.approx(measured, rel=0.15)


BATCH = [
    ("native_batch_norm", 1557, 81, "f32", 20.26, 25.50),  # one block walks through all rows
    ("native_batch_norm", 10666, 30, "f32", 12.42, 14.05),  # 42 blocks share them
    ("native_batch_norm", 11638, 52, "bf16", 14.27, 18.59),
    ("native_batch_norm", 14234, 753, "f32", 75.71, 77.09),
    ("native_batch_norm_backward", 831, 102, "f32", 8.70, 13.15),
    ("native_batch_norm_backward", 1672, 139, "f32", 12.93, 21.31),
    ("native_batch_norm_backward", 16508, 430, "f32", 63.42, 67.36),
]


@pytest.mark.parametrize(("name", "rows", "channels", "dtype", "warm", "cold"), BATCH)
def test_batch_norms_of_matrices_take_what_was_measured(
    name: str, rows: int, channels: int, dtype: str, warm: float, cold: float
) -> None:
    assert near(priced(rows_op(name, rows, channels, dtype)), warm, cold)


def test_blocks_share_rows_from_eight_of_them_on() -> None:
    assert thread_steps(1792, 64) == (28, False)
    assert thread_steps(1793, 64) == (4, True)
    assert thread_steps(2**17, 64) == (16, True)  # no more than 128 blocks
    assert thread_steps(64, 2) == (4, False)


def group_op(batch: int, channels: int, pixels: int, groups: int, dtype: str, end: str = "") -> Op:
    """Return a group norm, or its gradient, without a weight."""
    data = tensor("x", batch, channels, pixels, dtype=dtype)
    moments = tuple(tensor(name, batch, groups) for name in ("mean", "rstd"))
    given: tuple[Tensor, ...] = (data, data, *moments) if end else (data,)
    sizes = {"N": batch, "C": channels, "HxW": pixels, "group": groups}
    return Op(f"aten.native_group_norm{end}", given, (replace(data, name="y"),), sizes)


GROUP = [
    ("", 5011, 237, "f32", 452.23, 962.68),
    ("", 26235, 106, "f16", 1074.59, 2234.23),
    ("", 32576, 1269, "f32", 32987.28, 33009.23),
    ("_backward", 411, 1699, "f32", 10.34, 13.54),
    ("_backward", 750, 1966, "bf16", 19.58, 24.16),
    ("_backward", 17716, 110, "f16", 36.8, 37.6),
]


@pytest.mark.parametrize(("end", "channels", "pixels", "dtype", "warm", "cold"), GROUP)
def test_group_norms_take_what_was_measured(
    end: str, channels: int, pixels: int, dtype: str, warm: float, cold: float
) -> None:
    assert near(priced(group_op(1, channels, pixels, 1, dtype, end)), warm, cold)


def test_few_groups_take_as_long_as_one_and_many_their_bytes() -> None:
    one, sixteen, more = (
        kernels(group_op(batch, 64, 1024, 1, "f32"), H100)[0].time for batch in (1, 16, 16_384)
    )
    assert sixteen == pytest.approx(one, rel=0.05)
    assert more == pytest.approx(4 * 64 * 1024 * 16_384 / 132 / 9.4 / 1980 + 2, rel=0.05)


def every(law: Callable[..., float]) -> Callable[[tuple[int, ...], tuple[int, ...]], None]:
    """Return what holds a law to the same times for many sizes at once and for each alone."""

    def check(ones: tuple[int, ...], others: tuple[int, ...]) -> None:
        at_once = as_array(
            law(PointValues(np.array(ones)), PointValues(np.array(others))), len(ones)
        )
        alone = [law(one, other) for one, other in zip(ones, others, strict=True)]
        assert at_once.tolist() == alone

    return check


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("gradient", [False, True])
def test_laws_take_many_sizes_at_once(size: int, gradient: bool) -> None:
    ones, others = (8, 333, 1792, 1793, 30_000), (96, 17, 520, 64, 2049)
    law = BACKWARD if gradient else FORWARD
    groups: tuple[Callable[[NormGroups, Machine], float], ...] = (
        (group_sums_time, factors_time) if gradient else (moments_time,)
    )
    for found in (
        lambda a, b: norm_time(a, b, size, H100, gradient=gradient),
        lambda a, b: sums_time(law, a, b, size, H100),
        lambda a, b: columns_time(a, b, H100),
        *(lambda a, b, each=each: each(NormGroups(8, a, b, size), H100) for each in groups),
        *(lambda a, b, each=each: each(NormGroups(a, 4, b, size), H100) for each in groups),
    ):
        every(found)(ones, others)


TURNED = (768, 64 * 768, 1)
"""Steps of 64 x 197 rows of 768 whose first two axes were exchanged."""


@pytest.mark.parametrize(("name", "turned"), [("", 1), ("_backward", 1), ("_backward", 2)])
def test_rows_out_of_order_are_copied_before_they_are_normalised(name: str, turned: int) -> None:
    """A traced vision transformer: 33 to 36 us for each copy, then what ordered rows take."""
    plain = tensor("x", 64, 197, 768)
    strided = replace(plain, strides=TURNED)
    statistics, count = tensor("m", 64, 197, 1), 2 if name else 1
    result = replace(plain, name="y")

    def norm(data: tuple[Tensor, ...]) -> Op:
        shape = {"normalized_shape": (768,), "mean": statistics}
        return Op(f"aten.native_layer_norm{name}", data, (result,), shape)

    ordered = kernels(norm((plain,) * count), H100)
    found = kernels(norm((strided,) * turned + (plain,) * (count - turned)), H100)
    assert found[turned:] == ordered
    assert all(0.75 * 33.1 <= kernel.time <= 1.25 * 36.3 for kernel in found[:turned])


def test_axes_of_one_do_not_put_rows_out_of_order() -> None:
    """Steps along an axis of one element are arbitrary: torch copies nothing."""
    data = replace(tensor("x", 1, 128, 768), strides=(7, 768, 1))
    op = Op("aten.native_layer_norm", (data,), (replace(data, name="y", strides=None),))
    assert len(kernels(op, H100)) == 1
