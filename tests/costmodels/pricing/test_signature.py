"""Calls with the same signature have the same price, whatever rules read of them."""

from __future__ import annotations

from costmodels.pricing.signature import Signatures
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor


def signature(op: Op) -> object:
    return Signatures().signature(op)


def stacked(*offsets: int, buffer: str = "b") -> Op:
    parts = tuple(Tensor(f"x{at}", "f32", (4,), buffer, None, at) for at in offsets)
    return Op("aten.stack", (parts,), (Tensor("y", "f32", (len(parts), 4), "c"),))


def test_where_a_buffer_begins_does_not_matter() -> None:
    assert signature(stacked(0, 16, 32)) == signature(stacked(64, 80, 96, buffer="d"))


def test_distances_in_a_buffer_matter() -> None:
    assert signature(stacked(0, 16, 32)) != signature(stacked(0, 16, 48))
    assert signature(stacked(0, 16)) != signature(stacked(16, 0))


def test_which_operands_are_the_same_matters() -> None:
    x, y = (Tensor(name, "f32", (4,), name) for name in "xy")
    made = (Tensor("z", "f32", (4,), "z"),)
    assert signature(Op("aten.mul", (x, x), made)) != signature(Op("aten.mul", (x, y), made))
    both = Op("aten.mul", (x, y), made)
    assert signature(both) == signature(Op("aten.mul", (y, x), made, module="m"))
    assert signature(both) != signature(Op("aten.mul", (x, y), made, written=frozenset("x")))


def test_attributes_matter_by_name() -> None:
    x = (Tensor("x", "f32", (4,), "x"),)
    assert signature(Op("a.b", x, attributes={"p": "q"})) != signature(
        Op("a.b", x, attributes={"q": "p"})
    )
    assert signature(Op("a.b", x, attributes={"p": 1})) != signature(Op("a.b", x))
