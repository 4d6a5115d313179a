"""What torch would refuse of a call is said before it runs, and nothing else."""

from __future__ import annotations

import pytest

from irgraph.ir.op import Op
from irgraph.ir.schema import schemas_of
from irgraph.ir.tensor import Tensor
from irgraph.ops.rules.call_errors import call_error, schema_error


def tensor(name: str, *shape: int, strides: tuple[int, ...] | None = None) -> Tensor:
    return Tensor(name, "f32", shape, f"b{name}", strides=strides)


A, B = tensor("a", 4, 3), tensor("b", 2)


@pytest.mark.parametrize(
    ("given", "missing"),
    [({}, "dim0"), ({"dim0": 0}, "dim1"), ({"dim1": 0}, "dim0")],
)
def test_the_first_argument_that_is_missing_is_named(given: dict[str, int], missing: str) -> None:
    op = Op("aten.transpose", (A,), (B,), attributes=given)
    assert schema_error(op, schemas_of("aten.transpose")[:1]) == f"lacks its argument {missing}"


@pytest.mark.parametrize(
    ("lists", "wrong"),
    [
        (((A, B), (tensor("c", 4, 3), tensor("d", 2))), ""),
        (((A, B), (tensor("c", 4, 1), tensor("d", 1))), ""),
        (((A, B), (tensor("c", 4, 3), tensor("d", 5, 2))), "makes [5, 2], not %b, [2]"),
    ],
)
def test_lists_are_written_member_by_member(
    lists: tuple[tuple[Tensor, ...], ...], wrong: str
) -> None:
    op = Op("aten._foreach_add_", lists, (), written=frozenset({"a", "b"}))
    assert call_error(op) == wrong


def test_a_list_takes_a_single_number_for_all() -> None:
    written = frozenset({"a", "b"})
    assert call_error(Op("aten._foreach_mul_", ((A, B), tensor("s")), (), written=written)) == ""
    given = Op("aten._foreach_mul_", ((A, B), tensor("s", 2)), (), written=written)
    assert call_error(given) == "takes a single number for all, not %s, [2]"
    itself = Op("aten._foreach_mul_", ((A,), A), (), written=frozenset({"a"}))
    assert call_error(itself), "a tensor of the list is no single number either"


@pytest.mark.parametrize(("rows", "refused"), [(1, False), (2, True)])
def test_rows_that_are_the_same_bytes_are_not_written(rows: int, refused: bool) -> None:
    target = tensor("t", rows, 3, strides=(0, 1))
    found = call_error(Op("aten.relu_", (target,), (), written=frozenset({"t"})))
    assert ("the same bytes" in found) is refused
