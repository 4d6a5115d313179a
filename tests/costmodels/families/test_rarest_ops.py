"""Grouped products, losses of alignments, packed sequences, sparse gradients that are added up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from costmodels.families import rules
from irgraph.ir.op import Op
from tests.costmodels.families.helpers import call, kernels, machine, tensor, total


def grouped(rows: int, groups: int, dtype: str = "bf16") -> Op:
    given = (tensor("x", rows, 512, dtype=dtype), tensor("w", groups, 512, 1024, dtype=dtype))
    return call("aten._grouped_mm", *given, tensor("ends", groups, dtype="i32"), out=(rows, 1024))


def test_grouped_products_are_one_kernel_since_hopper_and_one_a_group_before() -> None:
    assert len(kernels(grouped(4096, 8), machine("h100"))) == 1
    assert len(kernels(grouped(4096, 8), machine("a100"))) == 8
    assert len(kernels(grouped(4096, 8, "f32"), machine("h100"))) == 8


def test_grouped_products_compute_as_much_as_one_product_of_all_rows() -> None:
    one = call("aten.mm", tensor("x", 32768, 512), tensor("w", 512, 1024), out=(32768, 1024))
    whole, parts = (total(kernels(op, machine())) for op in (one, grouped(32768, 8, "f32")))
    assert parts == pytest.approx(whole, rel=0.3)


def test_gradients_of_grouped_weights_share_the_depth() -> None:
    given = (tensor("x", 512, 32768), tensor("g", 32768, 1024), tensor("e", 8, dtype="i32"))
    op = call("aten._grouped_mm", *given, out=(8, 512, 1024))
    one = call("aten.mm", *given[:2], out=(512, 1024))
    assert total(kernels(op, machine())) == pytest.approx(total(kernels(one, machine())), rel=0.5)


def test_a_loss_of_alignments_takes_as_long_as_its_frames() -> None:
    def loss(frames: int, batch: int = 8) -> float:
        scores, words = tensor("s", frames, batch, 32), tensor("w", batch, 10, dtype="i64")
        return total(kernels(call("aten._ctc_loss", scores, words, out=(batch,)), machine()))

    assert loss(2000) > 1.8 * loss(1000)
    assert loss(1000, 8) == loss(1000, 16)


def test_rows_of_a_sparse_gradient_are_sorted_and_added_up() -> None:
    few, many = (call("aten._coalesce", tensor("v", n, 64), out=(9, 64)) for n in (1000, 100000))
    assert total(kernels(many, machine())) > 4 * total(kernels(few, machine()))
    whole = Op("aten._coalesce", (replace(tensor("v", 100, 64), strides=(0, 0)),))
    assert rules()["aten._coalesce"](whole, machine()) is None


@pytest.mark.parametrize("name", ["aten.is_coalesced", "aten._assert_tensor_metadata"])
def test_what_looks_at_a_tensors_type_launches_nothing(name: str) -> None:
    assert kernels(Op(name, (tensor("x", 4),)), machine()) == ()


def test_the_host_waits_twice_for_counts_of_values() -> None:
    op = call("aten.bincount", tensor("x", 4096, dtype="i64"), out=(8,))
    assert sum(kernel.blocking for kernel in kernels(op, machine())) == 2
