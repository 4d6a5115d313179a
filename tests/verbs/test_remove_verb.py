"""When a tensor may stand for another whose op is removed."""

from __future__ import annotations

import pytest

from irgraph.ir.graph import Graph
from irgraph.ops.verify import verify
from irgraph.text import print_op
from irgraph.verbs import RefusedError
from irgraph.verbs.remove import Removal, check_removal, remove
from tests.language.models import model

COPY = "input %x : f32[4] in $x\n%y = aten.clone(%x) : f32[4] in $y\n"
FRESH = "input %s : f32[4] in $s\n%x = aten.neg(%s) : f32[4] in $x\n"


def removal(graph: Graph, old: str = "y", new: str = "x") -> Removal:
    """Return the removal of the op that makes one tensor; another stands for it."""
    op = next(op for op in graph.ops if old in {t.name for t in op.outputs})
    return Removal((op,), ((graph.by_name[old], graph.by_name[new]),))


def refused(text: str) -> str:
    """Return why ``%x`` cannot stand for ``%y``."""
    graph = model(text)
    with pytest.raises(RefusedError) as caught:
        check_removal(graph, removal(graph))
    return caught.value.reason


def removed(text: str) -> list[str]:
    """Return the ops after the removal, which must be legal and sound."""
    graph = model(text)
    check_removal(graph, removal(graph))
    after = remove(graph, [removal(graph)])
    assert verify(after) == []
    return [print_op(op) for op in after.ops]


def test_users_read_the_substitute() -> None:
    assert removed(COPY + "%z = aten.neg(%y) : f32[4] in $z\n") == [
        "%z = aten.neg(%x) : f32[4] in $z"
    ]


def test_views_of_what_went_become_views_of_the_substitute() -> None:
    text = COPY.replace("in $x", "in $x+64") + (
        "%v = aten.slice(%y, dim = 0, start = 2) : f32[2] in $y+8\n"
        "%z = aten.neg(%v) : f32[2] in $z\n"
    )
    assert removed(text)[0] == "%v = aten.slice(%x, dim = 0, start = 2) : f32[2] in $x+72"


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ("f16[4]", "%x cannot replace %y: its dtype is f32, not f16"),
        ("f32[2, 2]", "%x cannot replace %y: its shape is [4], not [2, 2]"),
        ("f32[4] @cpu", "%x cannot replace %y: its device is gpu0, not cpu"),
        ("f32[4; 0]", "%x cannot replace %y: its strides is None, not [0]"),
    ],
)
def test_types_must_agree(result: str, reason: str) -> None:
    assert (
        refused(COPY.replace("%y = aten.clone(%x) : f32[4]", f"%y = aten.clone(%x) : {result}"))
        == reason
    )


def test_a_write_while_the_result_is_in_use_is_refused() -> None:
    text = COPY + "aten.neg_(%x!)\n%z = aten.neg(%y) : f32[4] in $z\n"
    assert refused(text) == "%x is written while %y is still in use"


def test_a_write_after_the_last_use_is_none_of_our_business() -> None:
    text = COPY + "%z = aten.neg(%y) : f32[4] in $z\naten.neg_(%x!)\n"
    assert removed(text)[-1] == "aten.neg_(%x!)"


def test_a_view_keeps_the_result_in_use() -> None:
    text = COPY + (
        "%v = aten.view(%y, size = [4]) : f32[4] in $y\naten.neg_(%x!)\n"
        "%z = aten.neg(%v) : f32[4] in $z\n"
    )
    assert refused(text) == "%x is written while %y is still in use"


def test_a_write_to_the_result_must_not_reach_what_lasts() -> None:
    assert refused(COPY + "aten.neg_(%y!)\n") == ("%y is written in place; that would write %x")


def test_a_write_to_the_result_must_not_reach_other_readers() -> None:
    text = FRESH + (
        "%y = aten.clone(%x) : f32[4] in $y\naten.neg_(%y!)\n%z = aten.neg(%x) : f32[4] in $z\n"
    )
    assert refused(text) == "%y is written in place; that would write %x"


def test_a_write_to_the_result_is_fine_where_nobody_else_looks() -> None:
    text = FRESH + "%y = aten.clone(%x) : f32[4] in $y\naten.neg_(%y!)\n"
    assert removed(text)[-1] == "aten.neg_(%x!)"


def test_a_view_can_give_way_to_the_same_bytes_only() -> None:
    same = "input %x : f32[4] in $x\n%y = aten.view(%x, size = [4]) : f32[4] in $x\n"
    assert removed(same + "aten.neg_(%y!)\n") == ["aten.neg_(%x!)"]
    other = same.replace("f32[4] in $x\n%y", "f32[4] in $x\ninput %b : f32[8] in $b\n%y")
    other = other.replace(
        "aten.view(%x, size = [4]) : f32[4] in $x", "aten.slice(%b, dim = 0) : f32[4] in $b"
    )
    assert refused(other) == "%y shares bytes with other tensors; %x does not"


def test_the_substitute_must_stay_and_the_result_go() -> None:
    graph = model(FRESH + "%y = aten.clone(%x) : f32[4] in $y\n")
    x, y = graph.by_name["x"], graph.by_name["y"]
    with pytest.raises(RefusedError, match="%x is one of its results"):
        check_removal(graph, Removal(graph.ops, ((y, x),)))
    with pytest.raises(RefusedError, match="%x is not one of its results"):
        check_removal(graph, Removal((graph.ops[1],), ((x, y),)))
