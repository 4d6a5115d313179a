"""Types of results, as torch's meta device gives them."""

from __future__ import annotations

import pytest

from irgraph.ir.dim import make
from irgraph.ir.op import Op, tensors_in
from irgraph.ir.tensor import DType, Tensor
from irgraph.ops.inference import ShapeError, infer
from tests.language.models import mlp

DIMS = {"B": 6}
B = make([(("B",), 1)], DIMS)
X = Tensor("x", "f32", (B, 8), "x")


def text(*sizes: int) -> list[str]:
    return list(map(str, sizes))


def shape(op: Op) -> list[str]:
    (result,) = tensors_in(infer(op, dims=DIMS))
    return text(*result.shape)


def test_every_op_of_a_model_is_typed_as_it_was() -> None:
    graph = mlp()
    for op in graph.leaves():
        found = tensors_in(infer(op, dims=graph.dims))
        for told, known in zip(found, op.outputs, strict=True):
            assert told.shape == known.shape
            assert text(*told.shape) == text(*known.shape)
            assert (told.dtype, told.strides) == (known.dtype, known.strides)


def test_sizes_that_follow_from_a_dimension_stay_expressions() -> None:
    assert shape(Op("aten.cat", ((X, X),))) == ["2*B", "8"]
    assert shape(Op("aten.flatten", (X,))) == ["8*B"]
    assert shape(Op("aten.mm", (X, Tensor("w", "f32", (8, B), "w")))) == ["B", "B"]
    assert shape(Op("aten.constant_pad_nd", (X,), attributes={"pad": (0, 0, 0, 1)})) == ["B+1", "8"]


def test_views_lie_in_the_buffer_of_their_operand() -> None:
    (result,) = tensors_in(
        infer(Op("aten.slice", (X,), attributes={"dim": 1, "start": 2}), dims=DIMS)
    )
    assert (result.buffer, result.offset, result.strides) == ("x", 8, (8, 1))


def test_element_types_are_given_by_name() -> None:
    (result,) = tensors_in(
        infer(Op("aten.to", (X,), attributes={"dtype": DType("bf16")}), dims=DIMS)
    )
    assert (result.dtype, result.buffer) == ("bf16", "")


def test_several_results_and_none() -> None:
    weights, places = Tensor("w", "f32", (9, 4), "w"), Tensor("i", "i64", (6,), "i")
    found = infer(Op("aten.embedding_bag", (weights, places, places)))
    assert list(next(tensors_in(found)).shape) == [6, 4]
    assert infer(Op("aten.relu_", (X,), written=frozenset({"x"})), dims=DIMS) == ()


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (Op("aten.mm", (X, X)), "torch refuses it: "),
        (Op("aten.nope", (X,)), "aten.nope has no schema that takes these operands"),
        (Op("sync.record"), "torch has no sync.record"),
        (Op("aten.view", (X,), attributes={"size": (6, 8)}), "its arguments fit only while B = 6"),
    ],
)
def test_what_cannot_be_typed_says_why(op: Op, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        infer(op, dims=DIMS)
