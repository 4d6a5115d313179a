"""FBGEMM's lookups, and the updates that their autograd nodes stand for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from costmodels.devices.library import load_device
from costmodels.families import rules
from costmodels.pricing.price import price
from irgraph.ir.cost import Kernel
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from tests.costmodels.families.helpers import kernels, machine, tensor, total

LOOKUP = Op(
    "fbgemm.split_embedding_codegen_lookup_sgd_function",
    (tensor("p", 0), tensor("w", 4 * 1_000_000 * 32)),
    (tensor("y", 2048, 128),),
    {
        "total_D": 128,
        "max_D": 32,
        "indices": tensor("i", 4 * 20_480, dtype="i64"),
        "offsets": tensor("o", 4 * 2048 + 1, dtype="i64"),
        "total_hash_size_bits": 22,
    },
)


def _node(kind: str, gradient: Tensor) -> Op:
    """Return an autograd node as execution traces have it: a gradient, and allocations below."""
    body = (Op("aten.empty", (), (tensor("e", 8),)),)
    return Op(f"autograd.CppNode<SplitLookupFunction_{kind}_Op>", (gradient,), (), body=body)


def _of(graph: Graph, op: Op) -> tuple[Kernel, ...]:
    return price(graph, load_device("v100")).of(op)


def test_a_lookup_is_one_kernel_over_equal_tables() -> None:
    (found,) = kernels(LOOKUP, machine())
    assert found.name == "lookup B2048 T4 L10 D32"


def test_an_update_takes_its_sizes_from_the_lookup_it_belongs_to() -> None:
    node = _node("sgd", tensor("g", 2048, 128))
    found = _of(Graph("m", ops=(LOOKUP, node)), node)
    assert found[-1].name == "sgd update T4 L10 D32"
    assert any(k.name.startswith("sort 81920 pairs, 3 passes") for k in found)
    # 80,000 distinct rows of 128 bytes read and written, beside gradients
    assert total(found) > 2 * 80_000 * 128 / 817e3


def test_updates_are_paired_in_reverse() -> None:
    other = replace(LOOKUP, attributes={**LOOKUP.attributes, "indices": tensor("j", 4 * 2048)})
    nodes = [_node("sgd", tensor(f"g{i}", 2048, 128)) for i in range(2)]
    priced = price(Graph("m", ops=(LOOKUP, other, *nodes)), load_device("v100"))
    assert [priced.of(node)[-1].name for node in nodes] == [
        "sgd update T4 L1 D32",
        "sgd update T4 L10 D32",
    ]


@pytest.mark.parametrize(
    ("kind", "tensors"), [("sgd", 1), ("rowwise_adagrad", 1), ("adagrad", 2), ("adam", 3)]
)
def test_an_optimizers_states_are_updated_too(kind: str, tensors: int) -> None:
    op, plain = (replace(LOOKUP, name=f"fbgemm.backward_{k}") for k in (kind, "sgd"))
    update, least = (kernels(o, machine())[-1].time for o in (op, plain))
    assert update / least == pytest.approx(tensors, rel=0.25)


def test_a_dense_gradient_fills_all_tables() -> None:
    found = kernels(replace(LOOKUP, name="fbgemm.backward_dense"), machine())
    assert found[0].family == "fill" and found[0].time > 4 * 32e6 * 4 / 900e3


def test_an_update_without_its_lookup_is_not_free() -> None:
    node = _node("sgd", tensor("g", 2048, 128))
    (found,) = _of(Graph("m", ops=(node,)), node)
    assert found.outside and found.time > 0


def test_indices_are_prepared_by_several_small_kernels() -> None:
    op = Op("fbgemm.permute_2D_sparse_data", (tensor("p", 24, dtype="i32"),))
    assert len(kernels(op, machine())) == 6


def test_no_other_rule_prices_these_ops() -> None:
    assert rules()[LOOKUP.name].__module__ == "costmodels.families.fbgemm"
