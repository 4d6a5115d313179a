"""Element-wise kernels beside what was measured of them on an H100 (SXM 80 GB, torch 2.11)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from costmodels.formulas.machine import Machine
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from tests.costmodels.families.helpers import kernels, machine, tensor

H100 = machine("h100")


def sum_of(one: Tensor, other: Tensor, dtype: str) -> Op:
    """Return the sum of two tensors, in the order of the first."""
    return Op("aten.add", (one, other), (replace(one, name="y", dtype=dtype),))


def time_of(op: Op, on: Machine = H100) -> float:
    """Return the microseconds of an op's kernels."""
    return sum(kernel.time for kernel in kernels(op, on))


def last(name: str, *shape: int) -> Tensor:
    """Return an image in 16 bits whose channels are last."""
    _, channels, height, width = shape
    plane = height * width
    steps = (channels * plane, 1, width * channels, channels)
    return replace(tensor(name, *shape, dtype="f16"), strides=steps)


ROWS = [
    (18051, 232, "f32", 12.16, 16.61),
    (39660, 366, "f32", 49.73, 51.9),
    (33300, 6278, "f32", 692.62, 693.87),
    (10206, 2949, "f16", 79.91, 81.12),
    (37931, 7645, "f16", 743.73, 744.72),
]


@pytest.mark.parametrize(("rows", "columns", "dtype", "warm", "cold"), ROWS)
def test_sums_with_a_row(rows: int, columns: int, dtype: str, warm: float, cold: float) -> None:
    matrix, row = tensor("x", rows, columns, dtype=dtype), tensor("r", columns, dtype=dtype)
    assert 0.85 * warm <= time_of(sum_of(matrix, row, dtype)) <= 1.15 * cold


def test_types_that_differ_are_converted_element_by_element() -> None:
    """Sums of f16 and f32 in a traced Swin (81.0 us) and vision transformer (44.5 us)."""
    for count, measured in ((64 * 56 * 56 * 96, 81.0), (64 * 197 * 768, 44.5)):
        wide, narrow = tensor("x", count), tensor("h", count, dtype="f16")
        assert time_of(sum_of(wide, narrow, "f32")) == pytest.approx(measured, rel=0.2)
        halves = time_of(sum_of(narrow, replace(narrow, name="z"), "f16"))
        assert halves < 0.6 * time_of(sum_of(wide, narrow, "f32"))
    mask = tensor("m", 2**24, dtype="bool")
    fill = Op("aten.masked_fill_", (x := tensor("x", 2**24), mask), (), {}, frozenset({"x"}))
    assert time_of(fill) == time_of(replace(fill, operands=(x, replace(mask, name="n"))))


@pytest.mark.parametrize(
    ("shape", "measured"),
    [((64, 144, 56, 56), 202.2), ((64, 480, 14, 14), 48.8), ((64, 1152, 7, 7), 25.2)],
)
def test_sums_of_two_orders_fetch_sectors_for_each_element(
    shape: tuple[int, ...], measured: float
) -> None:
    """In a traced EfficientNet; height and width lie as one axis in both orders."""
    image, first = last("x", *shape), tensor("c", *shape, dtype="f16")
    crossed = time_of(Op("aten.add_", (image, first), (), {}, frozenset({"x"})))
    assert crossed == pytest.approx(measured, rel=0.25)
    alike = Op("aten.add_", (image, replace(image, name="z")), (), {}, frozenset({"x"}))
    assert time_of(alike) < crossed / 2


def test_what_is_expanded_is_read_from_the_cache() -> None:
    """The gradient of a mean over images divides one element of each channel: 50.2 us."""
    result = tensor("y", 64, 144, 56, 56, dtype="f16")
    expanded = replace(result, name="x", strides=(144, 1, 0, 0))
    assert time_of(Op("aten.div", (expanded,), (result,))) == pytest.approx(50.2, rel=0.25)


def test_a_masked_fill_copies_what_it_does_not_overwrite() -> None:
    """Scores of a traced GPT-2 in bf16: 133.7 us to copy them, 295.5 to fill them."""
    scores = tensor("s", 8, 12, 1024, 1024, dtype="bf16")
    mask = tensor("m", 1024, 1024, dtype="bool")
    made = Op("aten.masked_fill", (scores, mask), (replace(scores, name="y"),))
    copied, filled = kernels(made, H100)
    assert copied.launch == "memcpy" and copied.time == pytest.approx(133.7, rel=0.1)
    assert filled.time == pytest.approx(295.5, rel=0.15)
    inplace = Op("aten.masked_fill_", (scores, mask), (), {}, frozenset({"s"}))
    assert len(kernels(inplace, H100)) == len(kernels(made, machine(mode="paper"))) == 1


@pytest.mark.parametrize(
    ("shape", "measured"),
    [((64, 256, 56, 56), 160.3), ((64, 1024, 14, 14), 38.2), ((64, 256, 14, 14), 9.5)],
)
def test_batch_norm_by_given_statistics_takes_each_element_alone(
    shape: tuple[int, ...], measured: float
) -> None:
    """In a traced ResNet-50 with channels last, in 16 bits; more than its bytes take."""
    image, given = last("x", *shape), {"training": False}
    norm = Op("aten.cudnn_batch_norm", (image,), (replace(image, name="y"),), given)
    assert time_of(norm) == pytest.approx(measured, rel=0.25)
    data, result = (tensor(name, *shape, dtype="f16") for name in "xy")
    first = replace(norm, operands=(data,), results=(result,))
    assert time_of(first) < 0.75 * time_of(norm)


def test_a_linear_layer_over_rows_out_of_order_copies_them_and_adds_its_bias_apart() -> None:
    """Projections of a traced vision transformer: 24.4 us to copy, 65.2 for the product, 84.0."""
    rows, weight = (tensor("x", 197, 64, 768, dtype="f16"), tensor("w", 2304, 768, dtype="f16"))
    bias, result = tensor("b", 2304, dtype="f16"), tensor("y", 197, 64, 2304, dtype="f16")
    turned = replace(rows, strides=(768, 197 * 768, 1))
    part = replace(rows, strides=(64 * 1024, 1024, 1))

    def layer(data: Tensor, *added: Tensor) -> Op:
        return Op("aten.linear", (data, weight, *added), (result,))

    (product,) = kernels(layer(rows), H100)
    assert len(kernels(layer(rows, bias), H100)) == 1, "in its epilogue"
    copied, plain, added = kernels(layer(turned, bias), H100)
    assert plain == product and copied.time == pytest.approx(24.4, rel=0.25)
    assert added.time == pytest.approx(84.0, rel=0.15)
    assert kernels(layer(turned), H100) == (copied, product)
    assert kernels(layer(part, bias), H100) == (product, added), "one step leads over all rows"


def test_channels_last_are_normalised_in_whole_columns_on_hopper() -> None:
    """Columns of 64: 72 channels take as long as 128, but on cards where no such step was seen."""

    def norm(channels: int, on: Machine = H100) -> float:
        image = last("x", 64, channels, 56, 56)
        training = {"training": True}
        results = (replace(image, name="y"),)
        return time_of(Op("aten.cudnn_batch_norm", (image,), results, training), on)

    assert norm(72) == norm(128) > norm(64)
    assert norm(72) == pytest.approx(69.1, rel=0.25)
    older = machine("rtx-3090")
    assert norm(72, older) < norm(100, older) < norm(128, older)
