"""The verb ``insert`` as a function."""

from __future__ import annotations

import pytest

from irgraph.ir.op import Op
from irgraph.ops.verify import verify
from irgraph.verbs import Insertion, RefusedError, check_insertion, insert
from tests.language.models import mlp

GRAPH = mlp()
LINEAR, RELU = GRAPH.ops[:2]
PRODUCT = LINEAR.body[-1]
(GIVEN,), (MADE,) = RELU.inputs, RELU.outputs


def new(given: str, name: str = "n") -> Op:
    """Return an op that reads a tensor of the graph, and makes one like it."""
    tensor = GRAPH.by_name[given]
    made = type(tensor)(name, tensor.dtype, tensor.shape, name)
    return Op("aten.abs", (tensor,), (made,))


def test_what_comes_later_uses_the_new_tensor() -> None:
    op = new("y1")
    added = Insertion((op,), RELU, swaps=((MADE, op.outputs[0]),))
    check_insertion(GRAPH, added)
    graph, (made,) = insert(GRAPH, [added])
    assert verify(graph) == []
    assert graph.ops[2] is made and made.inputs == (MADE,)
    users = [t.name for op in graph.ops[3:] for t in op.inputs]
    assert "n" in users and "y1" not in users


def test_an_op_beside_a_part_of_a_call_stands_beside_the_call_in_its_module() -> None:
    graph, (made,) = insert(GRAPH, [Insertion((new("x0"),), PRODUCT, after=False)])
    assert graph.ops[:2] == (made, LINEAR)
    assert made.module == PRODUCT.module


def test_a_tensor_that_is_not_there_yet_is_refused() -> None:
    with pytest.raises(RefusedError, match="y1"):
        check_insertion(GRAPH, Insertion((new("y1"),), RELU, after=False))
