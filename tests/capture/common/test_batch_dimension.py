"""Finding the batch dimension in captures at several sizes."""

from __future__ import annotations

import pytest

from irgraph.anonymise.models import anonymous_graph
from irgraph.capture.common.batch_dimension import DifferentStructureError, with_batch
from irgraph.ir.dim import Dim
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.op import Op
from irgraph.ir.resize import fixed_dims, fixed_numbers
from irgraph.ir.tensor import Tensor
from irgraph.language import load_script, run
from irgraph.text import parse, print_graph


def graph(rows: int, name: str = "aten.elu", **attributes: float) -> Graph:
    """Return a graph over a tensor of some rows, a slice of it and a call."""
    x = Tensor("x", "f32", (rows, 4), "b1")
    y = Tensor("y", "f32", (rows, 4), "b2")
    z = Tensor("z", "f32", (rows,), "b1", (4,), 4 * rows)
    ops = (
        Op(name, (x,), (y,), attributes),
        Op("aten.select", (x,), (z,), {"dim": 1, "index": rows - 1}, origin="live#2"),
    )
    return Graph("g", tensors=(Declared("input", x),), ops=ops)


def test_sizes_offsets_and_arguments_become_expressions() -> None:
    found, odd = with_batch({8: graph(8), 4: graph(4), 2: graph(2)}, 8)
    x, z = found.tensors[0].tensor, found.ops[1].outputs[0]
    assert odd == []
    assert found.dims == {"B": 8}
    assert [str(size) for size in (*x.shape, z.offset)] == ["B", "4", "4*B"]
    assert str(found.ops[1].attributes["index"]) == "B-1"


def test_one_tensor_stays_one_object() -> None:
    found, _ = with_batch({8: graph(8), 4: graph(4)}, 8)
    assert found.ops[0].operands[0] is found.tensors[0].tensor


def test_numbers_that_are_not_linear_stay_plain_and_are_told() -> None:
    sizes = {8: graph(64), 4: graph(16), 2: graph(4)}
    found, odd = with_batch(sizes, 8)
    assert not isinstance(found.tensors[0].tensor.shape[0], Dim)
    assert "aten.elu (): 64 is not linear in the batch size (and 3 more)" in odd


def test_numbers_of_one_reason_share_a_note() -> None:
    sizes = {size: graph(size, scale=size * size, shift=size**3) for size in (8, 4, 2)}
    found, odd = with_batch(sizes, 8)
    assert odd == ["aten.elu (): 512 is not linear in the batch size (and 1 more)"]
    assert len(fixed_numbers(found, "B")) == 2


def test_floats_that_differ_are_told() -> None:
    _, odd = with_batch({8: graph(8, scale=0.125), 4: graph(4, scale=0.25)}, 8)
    assert odd == ["aten.elu (): 0.125 depends on the batch size"]


def test_nan_is_the_same_at_every_size() -> None:
    def attributes() -> dict[str, float]:
        return {"scale": float("nan")}  # a nan of its own each time, as in captures

    found, odd = with_batch({n: graph(n, **attributes()) for n in (8, 4)}, 8)
    assert odd == []
    assert found.settings == {}


def test_nothing_depends_on_the_batch() -> None:
    found, odd = with_batch({8: graph(8), 4: graph(8)}, 8)
    assert (dict(found.dims), odd) == ({}, [])


def test_other_calls_are_another_structure() -> None:
    with pytest.raises(DifferentStructureError, match=r"is aten\.elu, then aten\.tanh"):
        with_batch({8: graph(8), 4: graph(4, "aten.tanh")}, 8)


def test_other_arguments_are_another_structure() -> None:
    with pytest.raises(DifferentStructureError, match="has different arguments"):
        with_batch({8: graph(8), 4: graph(4, scale=2.0)}, 8)


def test_more_calls_are_another_structure() -> None:
    short = Graph("g", tensors=graph(4).tensors, ops=graph(4).ops[:1])
    with pytest.raises(DifferentStructureError, match="makes 2 calls at one size, 1 at another"):
        with_batch({8: graph(8), 4: short}, 8)


def test_a_model_keeps_what_does_not_follow_and_a_resize_repeats_it() -> None:
    # one number follows from the batch size, another is its square
    sizes = {n: graph(n, scale=n * n) for n in (8, 4, 2)}
    found, odd = with_batch(sizes, 8)
    again = parse(print_graph(found))
    assert (
        fixed_numbers(again, "B")
        == tuple(odd)
        == ("aten.elu (): 64 is not linear in the batch size",)
    )
    report = str(run(load_script("resize B = 16"), again).report)
    assert "warning: 1 captured number did not follow" in report
    assert "note: aten.elu (): 64 is not linear in the batch size" in report
    assert "every size that is an expression over it follows" in report
    by_axis = run(load_script("resize %x.shape[0] of aten.elu(%x, ...) = 16"), again).report
    assert "1 captured number did not follow" in str(by_axis)
    assert fixed_dims(again) == fixed_dims(anonymous_graph(again)) == {"B": 8}
    (hidden,) = fixed_numbers(anonymous_graph(again), "B")
    assert hidden == "an op: 64 is not linear in the batch size"
