"""Element-wise kernels, copies, fills, joins, reductions, losses, indices and list updates."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from costmodels.families.optimizer import list_update_launches
from costmodels.formulas.machine import SMALL
from costmodels.formulas.scatter import sort_kernel
from irgraph.ir.op import Op
from tests.costmodels.families.helpers import (
    NEW,
    OLD,
    call,
    in_place,
    kernels,
    machine,
    tensor,
    total,
)
from tests.costmodels.families.worked import walked

MIB8 = 2048 * 1024 * 4
"""Bytes of a 2048 x 1024 tensor."""


def _stream(nbytes: float) -> float:
    return nbytes / 816.953 / 1e3 + SMALL


@pytest.mark.parametrize(
    ("name", "operands", "tensors"),
    [("relu", 1, 2), ("threshold_backward", 2, 3), ("add", 2, 3), ("sigmoid", 1, 2)],
)
def test_elementwise_kernels_move_each_tensor_once(name: str, operands: int, tensors: int) -> None:
    data = [tensor(f"x{i}", 2048, 1024) for i in range(operands)]
    op = call(f"aten.{name}", *data, out=(2048, 1024))
    assert total(kernels(op, machine())) == pytest.approx(_stream(tensors * MIB8))


def test_an_in_place_update_reads_two_tensors_and_writes_one() -> None:
    op = in_place("aten.add_", tensor("p", 2048, 1024), tensor("g", 2048, 1024), alpha=-0.1)
    assert total(kernels(op, machine())) == pytest.approx(_stream(3 * MIB8))


def test_an_expanded_operand_counts_its_distinct_bytes() -> None:
    row = replace(tensor("c", 2048, 1024), strides=(0, 1))
    op = call("aten.mul", tensor("x", 2048, 1024), row, out=(2048, 1024))
    small = call("aten.mul", tensor("x", 2048, 1024), tensor("c", 1024), out=(2048, 1024))
    assert total(kernels(op, machine())) == total(kernels(small, machine()))


def test_half_precision_moves_half_the_bytes() -> None:
    data = tensor("x", 4096, 4096, dtype="f16")
    op = Op("aten.relu", (data,), (replace(data, name="y", buffer="by"),))
    full = call("aten.relu", tensor("x", 4096, 4096), out=(4096, 4096))
    half, single = (total(kernels(o, machine())) - SMALL for o in (op, full))
    assert half == pytest.approx(single / 2)


def test_the_papers_elementwise_formula_counts_two_tensors_for_relu_backward() -> None:
    data = (tensor("g", 2048, 1024), tensor("y", 2048, 1024))
    op = call("aten.threshold_backward", *data, out=(2048, 1024))
    assert total(kernels(op, machine(mode="paper"))) == pytest.approx(20.5, abs=0.1)


def test_a_sparse_update_scales_and_scatters_its_rows() -> None:
    op = in_place("aten.add_", tensor("w", 100_000, 32), tensor("v", 640, 32), alpha=-0.1)
    found = kernels(op, machine())
    assert [k.family for k in found] == ["elementwise", "index", "index"]


def test_a_pinned_copy_runs_at_the_bus_rate_and_the_host_waits() -> None:
    op = Op("aten.to", (tensor("h", 1_638_400, device="cpu"),), (tensor("d", 1_638_400),))
    pinned = replace(machine(), pinned=True)
    (found,) = kernels(op, pinned)
    assert found.time == pytest.approx(530, abs=2)  # traced: 528 us for 6.55 MB
    assert found.launch == "memcpy" and found.blocking


def test_a_pageable_copy_is_slower_and_named_so() -> None:
    op = Op("aten.to", (tensor("h", 1_638_400, device="cpu"),), (tensor("d", 1_638_400),))
    (found,) = kernels(op, machine())
    assert found.time > 800 and "pageable" in found.name


def test_a_non_blocking_copy_lets_the_host_go_on() -> None:
    op = Op(
        "aten._to_copy",
        (tensor("h", 1024, device="cpu"),),
        (tensor("d", 1024),),
        {"non_blocking": True},
    )
    assert not kernels(op, machine())[0].blocking


def test_a_non_blocking_copy_of_much_pageable_memory_blocks_all_the_same() -> None:
    op = Op(
        "aten.copy_",
        (tensor("d", 1_638_400), tensor("h", 1_638_400, device="cpu")),
        (),
        {"non_blocking": True},
        frozenset({"d"}),
    )
    (pageable,) = kernels(op, machine())
    (pinned,) = kernels(op, replace(machine(), pinned=True))
    assert pageable.blocking and "pageable" in pageable.name
    assert not pinned.blocking and pinned.time < pageable.time


def test_a_non_blocking_copy_to_pageable_memory_blocks() -> None:
    op = Op(
        "aten._to_copy",
        (tensor("d", 1024),),
        (tensor("h", 1024, device="cpu"),),
        {"non_blocking": True},
    )
    assert kernels(op, machine())[0].blocking


def test_reading_a_value_on_the_host_blocks() -> None:
    op = Op("aten._local_scalar_dense", (tensor("loss"),))
    assert kernels(op, machine())[0].blocking


def test_a_conversion_that_returns_its_operand_is_free() -> None:
    assert kernels(Op("aten.to", (tensor("x", 4),)), machine()) == ()


def test_a_contiguous_device_copy_is_a_memcpy_and_a_strided_one_a_kernel() -> None:
    source = tensor("x", 64, 128)
    plain = Op("aten.clone", (source,), (tensor("y", 64, 128),))
    crossed = replace(source, shape=(128, 64), strides=(1, 128))
    strided = Op("aten.clone", (crossed,), (tensor("z", 128, 64),))
    assert kernels(plain, machine())[0].launch == "memcpy"
    assert kernels(strided, machine())[0].family == "transpose"


@pytest.mark.parametrize(
    ("source", "result", "crossing"),
    [("cpu", "gpu0", 4096), ("gpu0", "cpu", 4096), ("gpu0", "gpu1", 4096), ("gpu0", "gpu0", 0)],
)
def test_what_copies_bring_over_links(source: str, result: str, crossing: int) -> None:
    op = Op(
        "aten._to_copy", (tensor("x", 1024, device=source),), (tensor("y", 1024, device=result),)
    )
    assert [kernel.link_bytes for kernel in kernels(op, machine())] == [crossing]


def test_a_fill_writes_once() -> None:
    op = in_place("aten.zero_", tensor("g", 1024, 1024))
    assert total(kernels(op, machine())) == pytest.approx(_stream(1024 * 1024 * 4))


def test_the_papers_concat_formula() -> None:
    parts = (tensor("a", 2048, 128), tensor("b", 2048, 26 * 128))
    op = call("aten.cat", parts, out=(2048, 27 * 128))
    expected = 2 * 4 * 2048 * 27 * 128 / (0.79 * 816.953) / 1e3
    (kernel,) = kernels(op, machine(mode="paper"))
    assert kernel.time == pytest.approx(expected)
    assert expected == pytest.approx(87.7, abs=0.1)


def test_a_tall_column_sum_clears_semaphores_first() -> None:
    op = call("aten.sum", tensor("g", 2048, 1024), out=(1, 1024), dim=(0,))
    assert [k.launch for k in kernels(op, machine())] == ["memset", "kernel"]
    small = call("aten.sum", tensor("g", 2048, 1), out=(1, 1))
    assert [k.launch for k in kernels(small, machine())] == ["kernel"]


def test_losses_of_2021_fill_or_copy_beside_their_kernels() -> None:
    pair = (tensor("p", 2048, 1), tensor("t", 2048, 1))
    bce = call("aten.binary_cross_entropy", *pair, out=())
    mse = call("aten.mse_loss_backward", tensor("g"), *pair, out=(2048, 1))
    assert len(kernels(bce, machine(software=OLD))) == 3
    assert len(kernels(bce, machine(software=NEW))) == 2
    assert len(kernels(mse, machine(software=OLD))) == 2
    assert len(kernels(mse, machine(software=NEW))) == 1


def _index_put(pairs: int, **attributes: bool) -> Op:
    index = (None, tensor("i", pairs, dtype="i64"), tensor("j", pairs, dtype="i64"))
    target, values = tensor("z", 2048, 27, 27), tensor("v", 2048, pairs)
    return Op("aten._index_put_impl_", (target, index, values), (), attributes, frozenset("z"))


def test_the_gradient_of_an_index_launches_ten_kernels_beside_its_zeros() -> None:
    found = kernels(_index_put(351, accumulate=True), machine())
    assert len(found) == 10
    assert found[-1].time == pytest.approx(319, rel=0.03)  # traced on V100


def test_writing_at_indices_without_adding_is_one_kernel() -> None:
    assert len(kernels(_index_put(351), machine())) == 1


def test_indices_on_the_host_are_copied_first_and_waited_for() -> None:
    index = (None, tensor("i", 36, dtype="i64", device="cpu"))
    op = call("aten.index", tensor("z", 2048, 81), index, out=(2048, 36))
    first, second = kernels(op, machine())
    assert first.launch == "memcpy" and first.blocking
    assert second.family == "index"


def test_the_gradient_of_a_slice_fills_and_copies() -> None:
    op = call("aten.slice_backward", tensor("g", 2048, 27, 27), out=(2048, 27, 27))
    assert [k.family for k in kernels(op, machine())] == ["fill", "copy"]


def test_a_long_sort_takes_a_pass_for_each_byte_of_the_key() -> None:
    assert "3 passes" in sort_kernel(200_000, 20, machine()).name
    assert "passes" not in sort_kernel(351, 64, machine()).name


@pytest.mark.parametrize(
    ("sizes", "lists", "expected"),
    [([10] * 5, 1, 1), ([10] * 111, 1, 2), ([10] * 65, 2, 2), ([65536 * 321], 2, 2), ([], 1, 1)],
)
def test_a_list_update_needs_as_many_launches_as_torch_makes(
    sizes: list[int], lists: int, expected: int
) -> None:
    assert len(list_update_launches(sizes, lists)) == expected


def test_a_foreach_update_moves_what_its_tensors_hold() -> None:
    weights = tuple(tensor(f"w{i}", 1024, 1024) for i in range(3))
    gradients = tuple(tensor(f"g{i}", 1024, 1024) for i in range(3))
    written = frozenset(w.name for w in weights)
    op = Op("aten._foreach_add_", (weights, gradients), (), {"alpha": -0.1}, written)
    assert total(kernels(op, machine())) == pytest.approx(walked(9 * 1024 * 1024 * 4, 2))
