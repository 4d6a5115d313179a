"""``resize`` as a function: what follows, what is refused, and which op is shown."""

from __future__ import annotations

import pytest

from irgraph.ir.graph import Graph
from irgraph.text import parse
from irgraph.verbs import Axis, RefusedError, resize
from tests.language.models import mlp, model, training


def refused(graph: Graph, of: str | Axis | list[Axis], size: int) -> tuple[str, list[str]]:
    """Return why something is not resized, and the ops that are shown."""
    with pytest.raises(RefusedError) as caught:
        resize(graph, of, size)
    return caught.value.reason, [op.name for op, _ in caught.value.notes]


def shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors."""
    return {name: tuple(map(int, t.shape)) for name, t in graph.by_name.items()}


def test_a_width_takes_along_what_must_agree_with_it_and_nothing_else() -> None:
    done = resize(mlp(), Axis("w1", 0), 24)
    assert set(done.changed) == {"w1", "c1", "w2", "t1", "h1", "y1", "t2"}
    assert shapes(done.graph)["w1"] == (24, 8)
    assert shapes(done.graph)["w2"] == (8, 24)
    assert done.graph.by_name["t2"].strides == (1, 24)


def test_an_axis_that_is_a_dimension_resizes_that() -> None:
    graph = parse("""model "m" { format = 2  dims = {B = 8} }

device @gpu0 "v100"
input %x : f32[B, 4] in $x

%y = aten.sum(%x, dim = [1]) : f32[B] in $y
return %y
""")
    done = resize(graph, Axis("x", 0), 16).graph
    assert done.dims == {"B": 16} and shapes(done) == {"x": (16, 4), "y": (16,)}
    assert done == resize(graph, "B", 16).graph


def test_going_back_gives_the_same_graph() -> None:
    graph = training(3)
    for axis in (Axis("w1", 0), Axis("w1", 1), Axis("i1", 0)):
        size = graph.by_name[axis.tensor].shape[axis.index]
        there = resize(graph, axis, 4 * size).graph
        assert there != graph
        assert resize(there, axis, size).graph == graph


def test_the_size_that_is_there_changes_nothing() -> None:
    graph = mlp()
    assert resize(graph, Axis("w1", 0), 8).graph is graph
    assert resize(graph, "B", 4).graph is graph


def test_several_axes_of_one_size_go_together() -> None:
    graph = training(3)
    after = resize(graph, [Axis(f"w{k}", 0) for k in range(3)], 7).graph
    assert {shapes(after)[f"w{k}"] for k in range(3)} == {(7, 8)}
    assert {op.attributes["num_weights"] for op in after.walk() if "num_weights" in op.attributes}
    attributes = [op.attributes.get("num_weights") for op in after.leaves()]
    assert {count for count in attributes if count is not None} == {7}


def test_bags_keep_their_number_of_lookups() -> None:
    graph = model(
        "param %w : f32[9, 8] in $w\ninput %i : i64[20] in $i\ninput %o : i64[5] in $o\n"
        "%y, %a, %b, %m = aten._embedding_bag(%w, %i, %o)"
        " : f32[5, 8] in $y, i64[20] in $a, i64[5] in $b, i64[0] in $m\n"
    )
    more_bags = shapes(resize(graph, Axis("o", 0), 10).graph)
    assert (more_bags["i"], more_bags["a"], more_bags["y"]) == ((40,), (40,), (10, 8))
    more_lookups = shapes(resize(graph, Axis("i", 0), 50).graph)
    assert (more_lookups["a"], more_lookups["o"], more_lookups["y"]) == ((50,), (5,), (5, 8))


def test_what_holds_notes_loses_them() -> None:
    graph = model("input %x : f32[8] in $x\n%y = aten.neg(%x) : f32[8] in $y [time = 2us]\n")
    assert resize(graph, Axis("x", 0), 9).graph.ops[0].notes == {}


@pytest.mark.parametrize(
    ("of", "size", "reason"),
    [
        ("BB", 3, "the model has no dimension 'BB'; did you mean 'B'?"),
        ("B", 0, "a size must be at least 1, not 0"),
        (Axis("w11", 0), 3, "the model has no tensor %w11; did you mean 'w1'?"),
        (Axis("w1", 2), 3, "%w1 has 2 axes, so none 2"),
        (
            [Axis("w1", 0), Axis("x0", 0)],
            3,
            "the axes have different sizes: resize axes of equal size together",
        ),
    ],
)
def test_what_there_is_not(of: str | Axis | list[Axis], size: int, reason: str) -> None:
    assert refused(mlp(), of, size) == (reason, [])


X = """
input %x : f32[6, 8] in $x
input %y : f32[6, 2] in $y
input %z : f32[6, 6] in $z
input %z2 : f32[6, 3] in $z2
input %x3 : f32[16, 18, 4] in $x3
"""


@pytest.mark.parametrize(
    ("text", "axis", "size", "reason"),
    [
        (
            "%u = aten._unsafe_view(%x3, size = [96, 12]) : f32[96, 12] in $u\n",
            Axis("x3", 2),
            12,
            "aten._unsafe_view: ambiguous which axis grows, %u.shape[1] = 12 or %u.shape[0] = 96",
        ),
        (
            "%a, %b = aten.unbind(%y, dim = 1) : f32[6; 2] in $y, f32[6; 2] in $y+4\n",
            Axis("y", 1),
            3,
            "aten.unbind fixes %y.shape[1] = 2",
        ),
        (
            "%v = aten.view(%x, size = [6, 2, 4]) : f32[6, 2, 4] in $x\n"
            "%a, %b = aten.unbind(%v, dim = 1) : f32[6, 4; 8, 1] in $x, f32[6, 4; 8, 1] in $x+16\n",
            Axis("x", 1),
            9,
            "aten.view needs multiples of 2: nearest valid sizes: 8, 10",
        ),
        (
            "%u = aten.view(%z, size = [36]) : f32[36] in $z\n"
            "%v = aten.view(%u, size = [6, 6, 1]) : f32[6, 6, 1] in $z\n",
            Axis("z", 0),
            7,
            "aten.view: ambiguous which axis grows, %v.shape[1] = 6 or %v.shape[0] = 6",
        ),
        (
            "%k = aten.cat([%x, %z2], dim = 1) : f32[6, 11] in $k\n",
            Axis("k", 1),
            12,
            "aten.cat: ambiguous which of its parts (8, 3) grows with %k.shape[1] = 11:"
            " resize one of them",
        ),
        (
            "%m = my.op(%x) : f32[6, 8] in $m\n",
            Axis("x", 1),
            9,
            "my.op fixes %x.shape[1] = 8; torch has no such op, or accepts no other size",
        ),
    ],
    ids=["merged-and-split", "results", "parts", "which-axis", "which-part", "unknown-op"],
)
def test_the_op_that_fixes_a_size_is_shown(text: str, axis: Axis, size: int, reason: str) -> None:
    why, at = refused(model(X + text), axis, size)
    assert (why, at) == (reason, [reason.split()[0].rstrip(":")])


def test_an_axis_that_follows_from_a_dimension_takes_multiples_of_it() -> None:
    graph = model("input %x : f32[5*B] in $x\n%y = aten.neg(%x) : f32[5*B] in $y\n")
    after = resize(graph, Axis("x", 0), 28).graph
    assert [str(t.shape[0]) for t in after.by_name.values()] == ["7*B", "7*B"]
    why, _ = refused(graph, Axis("x", 0), 30)
    assert why == "its size is 5*B: the new size must be a multiple of B = 4"


def test_tensors_side_by_side_in_one_buffer_do_not_grow_into_one_another() -> None:
    graph = model(
        "input %a : f32[4] in $m\ninput %b : f32[4] in $m+16\n%y = aten.neg(%a) : f32[4] in $y\n"
    )
    assert refused(graph, Axis("a", 0), 8) == ("%b follows %a in $m", [])
    assert shapes(resize(graph, Axis("b", 0), 8).graph)["b"] == (8,)
