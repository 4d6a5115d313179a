"""Schemas in torch's notation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from irgraph.ir import schema as schema_module
from irgraph.ir.op import Op
from irgraph.ir.schema import SchemaError, bind, known_ops, parse_schema, resolve, schemas_of
from irgraph.ir.tensor import Tensor

X = Tensor("x", "f32", (4,), "b1")
Y = Tensor("y", "f32", (4,), "b2")


def test_arguments_defaults_and_alias_marks_are_read() -> None:
    schema = parse_schema(
        "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
    )
    self_, other, alpha = schema.arguments
    assert (schema.name, schema.overload) == ("aten.add_", "Tensor")
    assert (self_.written, self_.alias, other.written) == (True, "a", False)
    assert (alpha.default, alpha.keyword) == ("1", True)
    assert schema.fresh_returns == ()


def test_lists_and_optional_types_are_told_apart() -> None:
    schema = schemas_of("aten.cat")[0]
    assert schema.arguments[0].is_list and schema.arguments[0].is_tensor
    bias = schemas_of("aten.linear")[0].arguments[2]
    assert bias.optional and bias.default == "None"


def test_a_default_with_commas_stays_whole() -> None:
    schema = parse_schema('a::f(int[2] stride=[1, 1], str s="a, b") -> ()')
    assert [a.default for a in schema.arguments] == ["[1, 1]", '"a, b"']
    assert schema.returns == ()


def test_every_shipped_schema_can_be_read() -> None:
    names = known_ops()
    assert len(names) > 1500
    assert all(schemas_of(name) for name in names)


def test_every_line_of_the_shipped_file_is_answered() -> None:
    path = Path(schema_module.__file__).parent / "torch_schemas" / "schemas.txt"
    heads = re.findall(r"^\S+ (\w+)::(\w+)(?:\.(\w+))?\(", path.read_text("utf-8"), re.MULTILINE)
    assert len(heads) == sum("::" in line for line in path.read_text("utf-8").splitlines())
    for library, name, overload in heads:
        known = {one.overload for one in schemas_of(f"{library}.{name}")}
        assert overload in known, (library, name, overload)


def test_composite_and_random_ops_are_marked() -> None:
    assert schemas_of("aten.linear")[0].composite
    assert not schemas_of("aten.addmm")[0].composite
    assert schemas_of("aten.bernoulli")[0].random


@pytest.mark.parametrize(
    ("op", "overload"),
    [
        (Op("aten.add", (X, Y)), "Tensor"),
        (Op("aten.add", (X,), attributes={"other": 1}), "Scalar"),
        (Op("aten.add_", (X, Y), attributes={"alpha": 2}, written=frozenset({"x"})), "Tensor"),
        (Op("aten.sum", (X,)), ""),
        (Op("aten.sum", (X,), attributes={"dim": (0,), "keepdim": True}), "dim_IntList"),
        (Op("aten.cat", ((X, Y),), attributes={"dim": 1}), ""),
    ],
)
def test_the_overload_follows_from_the_operands(op: Op, overload: str) -> None:
    schema = resolve(op)
    assert schema is not None
    assert schema.overload == overload
    assert [value for _, value in bind(schema, op)][: len(op.operands)] == list(op.operands)


def test_a_model_may_bring_schemas() -> None:
    op = Op("my.op", (X,), written=frozenset({"x"}))
    assert resolve(op) is None
    assert resolve(op, ("my::op(Tensor(a!) x) -> ()",)) is not None


def test_nonsense_is_refused_with_the_text() -> None:
    with pytest.raises(SchemaError, match="not a schema in torch's notation: 'hello'"):
        parse_schema("hello")


def test_collectives_write_their_first_argument() -> None:
    (schema,) = schemas_of("c10d.allreduce_")
    assert [argument.name for argument in schema.arguments if argument.written] == ["tensors"]


def test_spaces_behind_commas_may_be_left_out() -> None:
    text = "made::up(Tensor a,{0}int[2] n=[1,{0}2],{0}*,{0}Tensor c) -> ()"
    tight, wide = (text.format(space) for space in ("", " "))
    read = [(a.name, a.type, a.keyword) for a in parse_schema(tight).arguments]
    assert read == [("a", "Tensor", False), ("n", "int[]", False), ("c", "Tensor", True)]
    assert read == [(a.name, a.type, a.keyword) for a in parse_schema(wide).arguments]


def test_marks_stand_only_where_they_are_written() -> None:
    plain = parse_schema("made::up(Dict(str, Tensor) d, int n, *, Tensor? t=None) -> Tensor")
    assert not any(a.written for a in (*plain.arguments, *plain.returns))
    assert [a.keyword for a in plain.arguments] == [False, False, True]
    assert (plain.composite, plain.random, plain.pointwise) == (False, False, False)
