"""Graphs under other dimensions."""

from __future__ import annotations

import pytest

from irgraph.ir.dim import make
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.resize import fixed_numbers, fixed_settings, unresized_warnings, with_dims
from irgraph.ir.tensor import Tensor

DIMS = {"B": 4, "L": 3}
BATCH = make([(("B",), 1)], DIMS)
INDICES = make([(("B", "L"), 1)], DIMS)


def graph() -> Graph:
    x = Tensor("x", "f32", (BATCH, 8), "b0", strides=(1, BATCH))
    y = Tensor("y", "i64", (INDICES,), "b1", offset=make([(("B",), 16)], DIMS))
    inner = Op("aten.view", operands=(x,), attributes={"size": (BATCH, 8), "flag": True})
    op = Op("aten.outer", operands=((x, 2),), results=(y, None, (x,)), body=(inner,))
    return Graph("g", DIMS, tensors=(Declared("input", x),), ops=(op,))


def test_every_size_follows_its_dimension() -> None:
    after = with_dims(graph(), {"B": 10})
    assert after.dims == {"B": 10, "L": 3}
    (declared,) = after.tensors
    assert declared.tensor.shape == (10, 8)
    (op,) = after.ops
    y, nothing, listed = op.results
    assert isinstance(y, Tensor)
    assert (y.shape, y.offset) == ((30,), 160)
    assert nothing is None
    assert isinstance(listed, tuple)
    assert listed[0].strides == (1, 10)
    assert op.body[0].attributes == {"size": (10, 8), "flag": True}
    assert op.body[0].attributes["flag"] is True


def test_going_back_gives_the_same_graph() -> None:
    assert with_dims(with_dims(graph(), {"B": 10}), {"B": 4}) == graph()


def test_an_unknown_dimension_is_named() -> None:
    with pytest.raises(KeyError, match="N"):
        with_dims(graph(), {"N": 1})


def test_a_dimension_is_at_least_one() -> None:
    with pytest.raises(
        ValueError, match="the dimension B must be a whole number of at least 1, not 0"
    ):
        with_dims(Graph("m", dims={"B": 4}), {"B": 0})


def test_lists_that_follow_a_dimension_change_and_others_stay_the_same_object() -> None:
    x = Tensor("x", "f32", (BATCH,), "b0")
    plain = Tensor("p", "f32", (8,), "b1")
    attributes: dict[str, Value] = {"size": (BATCH,), "fixed": (8, 2), "both": (8, BATCH)}
    op = Op(
        "aten.outer", operands=((x,), (plain,)), results=((x,), (plain,)), attributes=attributes
    )
    before = Graph("g", DIMS, ops=(op,))
    (after,) = with_dims(before, {"B": 10}).ops
    assert after.attributes == {"size": (10,), "fixed": (8, 2), "both": (8, 10)}
    assert after.attributes["fixed"] is attributes["fixed"]
    assert after.operands[1] is op.operands[1] and after.results[1] is op.results[1]
    assert [t.shape for t in after.inputs] == [(10,), (8,)]
    assert [t.shape for t in after.outputs] == [(10,), (8,)]


def test_what_does_not_follow_from_a_dimension_is_kept_with_the_model() -> None:
    notes = ("aten.view of %x: 12", "aten.full: 7")
    with_notes = Graph("g", DIMS, settings=fixed_settings("B", notes, DIMS["B"]))
    assert fixed_numbers(with_notes, "B") == notes
    assert fixed_numbers(with_notes, "L") == ()
    assert fixed_settings("B", (), 8) == {}


def test_numbers_that_a_new_size_leaves_behind_are_told() -> None:
    notes = ("aten.view of %x: 12", "aten.full: 7")
    graph = Graph("g", DIMS, settings=fixed_settings("B", notes, DIMS["B"]))
    (line,) = unresized_warnings(with_dims(graph, {"B": 64}))
    assert line == (
        f"B = 64, but some numbers hold at B = {DIMS['B']} alone and are as they were there, with "
        "the work that follows from them: aten.view of %x: 12, and 1 more. Capture the step at "
        "that size"
    )
    assert unresized_warnings(graph) == unresized_warnings(with_dims(graph, {"L": 3})) == []
    assert unresized_warnings(graph, {"B": 64}, {"B": DIMS["B"]}) == [line]
    assert unresized_warnings(Graph("g", DIMS)) == []


def test_an_axis_that_would_get_negative_is_refused() -> None:
    left = make([(("B",), 1), ((), -3)], DIMS)
    made = Tensor("y", "f32", (left, 8), "b1")
    before = Graph("g", DIMS, ops=(Op("aten.slice", results=(made,)),))
    assert with_dims(before, {"B": 3}).ops[0].outputs[0].shape == (0, 8)
    with pytest.raises(ValueError, match=r"%y would have -1 elements along an axis \(B-3\)"):
        with_dims(before, {"B": 2})
