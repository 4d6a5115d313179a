"""Times of kernels that move memory, worked out by hand for a V100."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from tests.costmodels.families.helpers import call, in_place, kernels, machine, tensor, total
from tests.costmodels.families.worked import (
    FLOOR,
    PEAK,
    cycles,
    dram,
    near,
    times,
    unknown,
    width,
    without,
)

N = 2048 * 1024


# joining, parting, repeating


def test_a_join_reads_and_writes_at_four_fifths() -> None:
    """The paper's program has 0.79, and the trace a microsecond to fetch where the parts lie."""
    op = call("aten.cat", (tensor("a", 2048, 64), tensor("b", 2048, 512)), out=(2048, 576))
    assert times(op) == near(dram(2 * 4 * 2048 * 576) / 0.79 + FLOOR + 1.0)
    assert width(kernels(op, machine())[0]) == 0.2
    assert all(unknown(other) for other in without(op)[:1])


@pytest.mark.parametrize(("parts", "launched"), [(1, 1), (128, 1), (129, 2), (256, 2), (257, 3)])
def test_a_launch_joins_128_parts(parts: int, launched: int) -> None:
    joined = tuple(tensor(f"x{i}", 64, 16) for i in range(parts))
    op = call("aten.cat", joined, out=(64, 16 * parts))
    assert len(times(op)) == launched
    assert len(times(op, mode="paper")) == 1
    whole = dram(2 * 4 * 64 * 16 * parts) / 0.79
    assert sum(times(op)) == pytest.approx(whole + launched * (FLOOR + 1.0))
    assert sum(times(op, mode="paper")) == pytest.approx(whole)


def test_parts_are_read_and_written_once() -> None:
    parts = (tensor("a", 2048, 64), tensor("b", 2048, 512))
    op = Op("aten.split_with_sizes_copy", (tensor("x", 2048, 576),), (parts,))
    assert times(op) == near(*(dram(2 * 4 * t.numel) + FLOOR for t in parts))
    assert {width(k) for k in kernels(op, machine())} == {0.3}
    assert unknown(replace(op, results=()))


def test_a_repeat_computes_where_each_element_comes_from() -> None:
    """At 145 G elements a second, as the traced copies of a bias."""
    op = call("aten.repeat", tensor("x", 1024, 64), out=(16 * 1024, 64))
    assert times(op) == near(cycles(16 * 1024 * 64, 1.4) + FLOOR)
    assert pytest.approx(145, abs=1) == 1.4 * 80 * 1.297
    wide = call("aten.repeat", tensor("x", 1024, 64, dtype="f64"), out=(16 * 1024, 64))
    wide = replace(wide, results=(tensor("y", 16 * 1024, 64, dtype="f64"),))
    assert times(wide) == near(dram(8 * 17 * 1024 * 64) + FLOOR)
    assert width(kernels(op, machine())[0]) == 0.2
    assert all(unknown(other) for other in without(op))


# copies


def to_device(count: int, **attributes: Value) -> Op:
    host = tensor("h", count, device="cpu")
    return Op("aten._to_copy", (host,), (tensor("d", count),), attributes)


def test_64_kib_of_pageable_memory_are_staged_at_once() -> None:
    """So the CUDA driver does, and the host goes on; one byte more and it waits."""
    small, large = (kernels(to_device(n, non_blocking=True), machine())[0] for n in (16384, 16385))
    assert small.time == pytest.approx(7.1, abs=0.1)  # traced: 65,536 bytes
    assert large.time == pytest.approx(1.8 + 65540 / 8.1e3)
    assert (small.blocking, large.blocking) == (False, True)
    assert small.name.startswith("pinned") and large.name.startswith("pageable")
    assert width(small) == 0.15


def test_a_copy_to_the_device_waits_unless_told_not_to() -> None:
    assert kernels(to_device(16), machine())[0].blocking
    assert kernels(to_device(16, non_blocking=False), machine())[0].blocking


def test_the_papers_copies_are_pageable_and_start_at_once() -> None:
    for pinned in (False, True):
        on = replace(machine(mode="paper"), pinned=pinned)
        assert kernels(to_device(N), on)[0].time == pytest.approx(4 * N / 8.1e3)


def test_a_value_read_on_the_host_is_waited_for_even_from_pinned_memory() -> None:
    op = Op("aten.item", (tensor("loss"),))
    (found,) = kernels(op, replace(machine(), pinned=True))
    assert found.blocking and found.name == "device to host 1"
    assert times(Op("aten.item", (tensor("loss", device="cpu"),))) == []
    assert unknown(Op("aten.item", ()))


def test_a_copy_on_the_device_reads_and_writes_at_four_fifths() -> None:
    op = call("aten.clone", tensor("x", N), out=(N,))
    assert times(op) == near(dram(2 * 4 * N) / 0.8 + FLOOR)
    assert times(op, mode="paper") == near(dram(2 * 4 * N) / 0.8)


def test_a_cast_streams_what_it_reads_and_writes() -> None:
    half = tensor("y", N, dtype="f16")
    (found,) = kernels(Op("aten.to", (tensor("x", N),), (half,)), machine())
    assert found.time == pytest.approx(dram(6 * N) + FLOOR)
    assert found.launch == "kernel" and width(found) == 0.15


def test_a_copy_into_a_strided_place_computes_where_elements_lie() -> None:
    target = replace(tensor("y", 1024, 2048, dtype="f16"), strides=(1, 1024))
    op = in_place("aten.copy_", target, tensor("x", 1024, 2048, dtype="f16"))
    assert times(op) == near(cycles(N, 1.4) + FLOOR)
    broad = in_place("aten.copy_", tensor("y", 1024, 2048), tensor("x", 2048))
    (found,) = kernels(broad, machine())
    assert found.time == pytest.approx(dram(4 * (N + 2048)) + FLOOR) and found.launch == "kernel"
    strided = replace(tensor("x", 2048), strides=(3,))
    assert times(in_place("aten.copy_", tensor("y", 1024, 2048), strided)) == near(found.time)


def test_copies_of_nothing_or_from_host_to_host_launch_nothing() -> None:
    assert times(in_place("aten.copy_", tensor("y", 0), tensor("x", 0))) == []
    host = (tensor("y", 8, device="cpu"), tensor("x", 8, device="cpu"))
    assert times(in_place("aten.copy_", *host)) == []
    assert unknown(in_place("aten.copy_", tensor("y", 8)))


def test_a_copy_into_a_tensor_goes_where_that_lies() -> None:
    (found,) = kernels(
        in_place("aten.copy_", tensor("y", 8, device="cpu"), tensor("x", 8)), machine()
    )
    assert found.name == "device to host 8"


def test_a_view_is_free_even_where_something_was_called_for_it() -> None:
    source = tensor("x", 64)
    view = replace(source, name="v", shape=(8, 8))
    op = Op("aten.reshape", (source,), (view,), body=(Op("aten.view", (source,), (view,)),))
    assert times(op) == []
    assert unknown(replace(op, results=()))
    assert times(replace(op, results=(), body=())) == []
    assert unknown(replace(op, operands=()))


def test_a_transpose_that_copies_crosses_rows() -> None:
    """Traced: 5.75 MB read and as many written in 12 to 13 us are 0.6 of what a stream takes."""
    crossed = replace(tensor("x", 2048, 702), strides=(1, 2048))
    op = call("aten.clone", crossed, out=(2048, 702))
    assert times(op) == near(dram(2 * 4 * 2048 * 702) / 0.6 + FLOOR)
    assert width(kernels(op, machine())[0]) == 0.4
    rows = replace(tensor("x", 1024, 2, 1024), strides=(1024, 1024 * 1024, 1))
    assert times(call("aten.clone", rows, out=(1024, 2, 1024))) == near(dram(8 * N) + FLOOR)


@pytest.mark.parametrize(("shape", "share"), [((2048, 1024), 0.6), ((N,), 1.0)])
def test_a_new_order_of_axes_crosses_rows_where_there_are_some(
    shape: tuple[int, ...], share: float
) -> None:
    op = call("aten.rot90", tensor("x", *shape), tensor("other", 3), out=shape)
    assert times(op) == near(dram(8 * N) / share + FLOOR)
    assert times(replace(op, name="aten.flip")) == near(dram(8 * N) + FLOOR)  # whole rows
    rolled = replace(op, name="aten.roll", attributes={"dims": (0, 0)})
    assert times(rolled) == near(*[N * 1.25 / 80 / 1297 + FLOOR] * 2)  # 0.8 a cycle, axis by axis
    assert all(unknown(other) for other in without(op))


# element by element


@pytest.mark.parametrize(
    ("name", "operands", "expected"),
    [
        # flop an element and tensors moved, as the paper's program counts them
        ("relu", 1, dram(2 * 4 * N)),
        ("threshold_backward", 2, dram(2 * 4 * N)),
        ("sigmoid", 1, dram(2 * 4 * N)),
        ("sigmoid_backward", 2, dram(2 * 4 * N)),
        ("add", 2, dram(3 * 4 * N)),
        ("native_dropout_backward", 2, dram(3 * 4 * N)),
        ("gelu", 1, 175 * N / PEAK),
        ("gelu_backward", 2, 255 * N / PEAK),
        ("tanh", 1, 180 * N / PEAK),
        ("tanh_backward", 2, 260 * N / PEAK),
        ("pow", 1, 180 * N / PEAK),
    ],
)
def test_the_papers_elementwise_formula(name: str, operands: int, expected: float) -> None:
    op = call(f"aten.{name}", *(tensor(f"x{i}", N) for i in range(operands)), out=(N,))
    assert times(op, mode="paper") == near(expected)
    if operands == 1:
        written = in_place(f"aten.{name}_", tensor("x", N))
        assert times(written, mode="paper") == near(expected)


def test_a_row_added_to_a_matrix_needs_offsets_and_a_number_does_not() -> None:
    """In half precision, where 145 G elements a second take longer than their bytes."""
    matrix, result = (tensor(n, 2048, 1024, dtype="f16") for n in "xy")
    row, number = tensor("r", 1024, dtype="f16"), tensor("s", dtype="f16")

    def added(other: Tensor) -> float:
        return total(kernels(Op("aten.add", (matrix, other), (result,)), machine()))

    assert added(row) == pytest.approx(cycles(N, 1.4) + FLOOR)
    assert added(number) == pytest.approx(dram(2 * (2 * N + 1)) + FLOOR)
    crossed = replace(matrix, strides=(1, 2048))
    assert times(Op("aten.relu", (crossed,), (result,))) == near(cycles(N, 1.4) + FLOOR)
    assert times(Op("aten.relu", (matrix,), (result,))) == near(dram(2 * 2 * N) + FLOOR)


@pytest.mark.parametrize("shape", [(1024,), (1, 1024), (2048, 1), (2048, 1024), ()])
def test_what_broadcasts_onto_a_tensor_is_added_element_by_element(shape: tuple[int, ...]) -> None:
    op = in_place("aten.add_", tensor("w", 2048, 1024), tensor("v", *shape))
    (found,) = kernels(op, machine())
    assert found.time == pytest.approx(dram(4 * (2 * N + math.prod(shape))) + FLOOR)
    assert found.family == "elementwise" and width(found) == 0.15


@pytest.mark.parametrize(("values", "scattered"), [((640, 32), 640 * 32), ((9000, 32), 1000 * 32)])
def test_rows_of_a_sparse_gradient_are_scaled_and_scattered(
    values: tuple[int, int], scattered: int
) -> None:
    """They are read once; at most the whole table is read, changed and written back."""
    op = in_place("aten.add_", tensor("w", 1000, 32), tensor("v", *values), alpha=-0.1)
    size = 4 * math.prod(values)
    assert times(op) == near(
        dram(2 * size) + FLOOR,
        dram(16 * values[0]) + FLOOR,
        dram(size) + dram(2 * 4 * scattered) / 0.8 + FLOOR,
    )
    longer = in_place("aten.add_", tensor("w", 32), tensor("v", 4, 32))
    assert len(times(longer)) == 3


def test_an_op_of_nothing_is_unknown() -> None:
    assert unknown(Op("aten.relu", (), ()))
    assert len(times(in_place("aten.relu_", tensor("x", 8)))) == 1


def test_a_fill_writes_once_and_the_paper_counts_two_tensors() -> None:
    op = in_place("aten.zero_", tensor("x", N))
    assert times(op) == near(dram(4 * N) + FLOOR)
    assert times(op, mode="paper") == near(dram(8 * N))
    assert times(in_place("aten.zero_", tensor("x", 0))) == []
    assert unknown(Op("aten.zeros", (), ()))
    assert times(Op("aten.full", (), (tensor("y", N),))) == near(dram(4 * N) + FLOOR)
