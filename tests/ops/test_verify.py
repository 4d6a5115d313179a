"""Every rule of the verifier finds what it is for, and names the place."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from irgraph.ir.dim import Dim
from irgraph.ir.graph import Declared, Graph, Stream
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import DeviceRef, Tensor
from irgraph.ops.verify import VerifyError, check, describe, verify

X = Tensor("x", "f32", (4,), "b1")
Y = Tensor("y", "f32", (4,), "b2")
BASE = Graph("m", tensors=(Declared("input", X),))


def messages(*ops: Op, graph: Graph = BASE) -> list[str]:
    return [finding.message for finding in verify(replace(graph, ops=ops))]


def test_a_sound_graph_has_no_findings() -> None:
    assert messages(Op("aten.relu", (X,), (Y,))) == []


def test_use_before_definition() -> None:
    assert messages(Op("aten.relu", (Y,), ())) == ["%y is used before it is defined"]


def test_two_definitions() -> None:
    op = Op("aten.relu", (X,), (Y,))
    assert messages(op, replace(op)) == ["%y is defined a second time"]


def test_a_use_that_is_not_what_was_defined() -> None:
    other = replace(X, shape=(5,))
    message = "%x differs from its definition"
    assert messages(Op("aten.sum", (other,), (replace(Y, shape=()),))) == [message]


def test_a_scope_whose_result_nobody_inside_defines() -> None:
    scope = Op("aten.linear", (X, X), (Y,), body=(Op("aten.relu", (X,), ()),))
    assert messages(scope) == ["no op inside defines its result %y"]


def test_a_written_tensor_that_is_no_operand() -> None:
    op = Op("aten.relu_", (X,), (), written=frozenset({"q", "x"}))
    assert messages(op) == ["writes %q!, which is no operand of it"]


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (replace(Y, dtype="f99"), "%y has the unknown type f99"),
        (replace(Y, device="gpu7"), "%y is on undeclared @gpu7"),
        (replace(Y, buffer="b1", device="cpu"), "%y puts $b1 on both @gpu0 and @cpu"),
        (replace(Y, strides=(1, 1)), "%y does not have one stride per axis"),
        (replace(Y, offset=-4), "%y has a negative size or offset"),
        (replace(Y, shape=(Dim(4, ((("Q",), 1),)),)), "%y: Q uses the undeclared dimension Q"),
    ],
)
def test_tensors_that_make_no_sense(tensor: Tensor, message: str) -> None:
    assert message in messages(Op("aten.relu", (X,), (tensor,)))


def test_a_size_that_its_expression_does_not_give() -> None:
    tensor = replace(Y, shape=(Dim(4, ((("B",), 1),)),))
    graph = replace(BASE, dims={"B": 5})
    assert messages(Op("aten.relu", (X,), (tensor,)), graph=graph) == ["%y: B is 5, not 4"]


def test_undeclared_streams() -> None:
    assert messages(Op("aten.relu", (X,), (Y,), stream="s")) == ["runs on the undeclared stream s"]
    graph = replace(BASE, streams=(Stream("s", "gpu9"),))
    assert messages(graph=graph) == ["stream s is on undeclared @gpu9"]


def test_one_op_in_two_places() -> None:
    op = Op("ProfilerStep#1")
    assert messages(op, op) == ["the same op occurs in two places"]


def test_our_own_ops_must_fit_their_schemas() -> None:
    assert messages(Op("irgraph.nonsense", (X,), (Y,))) == ["irgraph has no op of that name"]
    wrong = Op("irgraph.batched_embedding", (X,), ((Y,),))
    assert messages(wrong) == ["lacks its argument indices"]


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (Op("aten.mm", (X,), (Y,)), "lacks its argument mat2"),
        (Op("aten.mm", (X,) * 9, (Y,)), "takes 3 operands at most, not 9"),
        (Op("aten.relu", (X,), (Y,), {"inplace": True}), "has no argument inplace"),
        (Op("aten.relu", ((X,),), (Y,)), "its operands do not fit its schema"),
        (Op("aten.relu", (X,), (Y, replace(Y, name="z"))), "gives 1 result, not 2"),
        (Op("aten.relu_", (X,)), "writes %x, which is not marked: %x!"),
        (
            Op("aten.relu", (X,), (Y,), written=frozenset({"x"})),
            "only reads %x, which is marked as written",
        ),
    ],
    ids=["few", "many", "unknown", "list", "results", "unmarked", "marked"],
)
def test_calls_of_torchs_ops_must_fit_their_schemas(op: Op, message: str) -> None:
    assert messages(op) == [message]


def test_a_list_that_is_written_must_be_marked() -> None:
    empty, full = Op("aten._foreach_neg_", ((),)), Op("aten._foreach_neg_", ((X,),))
    assert messages(empty, full) == ["writes %x, which is not marked: %x!"]


def test_a_schema_that_the_model_brings_counts() -> None:
    schema = "aten::mm.old(Tensor self) -> Tensor"
    assert messages(Op("aten.mm", (X,), (Y,)), graph=replace(BASE, schemas=(schema,))) == []


def test_operands_known_by_shape_alone_fit_anything() -> None:
    graph = replace(BASE, settings={"operands": "by shape"})
    assert messages(Op("aten.mm", (X,), written=frozenset({"x"})), graph=graph) == []


@pytest.mark.parametrize(
    ("attributes", "device", "found"),
    [
        ({}, "cpu", ["makes %y on @gpu0, not on @cpu"]),
        ({"device": DeviceRef("cpu")}, "gpu0", ["makes %y on @cpu, not on @gpu0"]),
        ({"device": DeviceRef("cpu")}, "cpu", []),
        ({"device": DeviceRef("gpu7")}, "gpu0", ["names the undeclared @gpu7"]),
    ],
    ids=["unnamed", "other", "named", "undeclared"],
)
def test_results_lie_where_their_op_makes_them(
    attributes: dict[str, Value], device: str, found: list[str]
) -> None:
    op = Op("aten.clone" if not attributes else "aten.to", (X,), (replace(Y, device=device),))
    assert messages(replace(op, attributes=attributes)) == found


def test_an_op_that_makes_new_tensors_makes_none_over_its_operands() -> None:
    over, beside = replace(Y, buffer="b1"), replace(Y, buffer="b1", offset=16)
    assert messages(Op("aten.relu", (X,), (over,))) == ["makes %y in $b1, over its operand %x"]
    assert messages(Op("aten.relu", (X,), (beside,))) == []
    assert messages(Op("aten.view", (X,), (over,), {"size": (4,)})) == []


def test_declared_schemas_must_be_readable() -> None:
    graph = replace(BASE, schemas=("nonsense",))
    assert messages(graph=graph) == ["not a schema in torch's notation: 'nonsense'"]


def test_all_findings_are_reported_with_their_places() -> None:
    ops = (
        Op("aten.relu", (Y,), (), line=7, origin="et.json#3"),
        Op("aten.relu", (X,), (), stream="s"),
    )
    graph = replace(BASE, ops=ops, source="a.ir")
    with pytest.raises(VerifyError) as caught:
        check(graph)
    assert len(caught.value.findings) == 2
    assert describe(graph, caught.value.findings[0]) == (
        "a.ir:7: aten.relu: %y is used before it is defined (from et.json#3) [names]"
    )
