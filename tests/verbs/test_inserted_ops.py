"""``insert``: where new ops stand, and who takes what they make."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.verify import verify
from irgraph.text import print_op
from irgraph.verbs import RefusedError
from irgraph.verbs.insert import Insertion, check_insertion, insert
from tests.language.models import model

STEP = """input %x : f32[4] in $x
%a = aten.neg(%x) : f32[4] in $a
%b = aten.relu(%a) : f32[4] in $b
%c = aten.add(%a, %b) : f32[4] in $c
"""


def tensor(name: str, buffer: str = "") -> Tensor:
    return Tensor(name, "f32", (4,), buffer or name)


def copy(source: Tensor) -> Op:
    return Op("aten.clone", (source,), (tensor("n"),))


def made_by(graph: Graph, name: str) -> Op:
    return next(op for op in graph.leaves() if name in {t.name for t in op.outputs})


def inserted(text: str, of: str, at: str, swap: bool = True, after: bool = True) -> list[str]:
    """Copy a tensor beside the op that makes ``at``; who comes later takes the copy."""
    graph = model(text)
    old = graph.by_name[of]
    swaps = ((old, tensor("n")),) if swap else ()
    insertion = Insertion((copy(old),), made_by(graph, at), after, swaps)
    check_insertion(graph, insertion)
    whole, new = insert(graph, [insertion])
    assert verify(whole) == []
    assert [op.name for op in new] == ["aten.clone"]
    assert set(new) <= set(whole.leaves())
    return [print_op(op) for op in whole.ops]


def refused(text: str, of: str, at: str, after: bool = True) -> str:
    with pytest.raises(RefusedError) as caught:
        inserted(text, of, at, after=after)
    return caught.value.reason


COPY_A = "%n = aten.clone(%a) : f32[4] in $n"


def test_a_new_op_stands_behind_or_before_another() -> None:
    behind = inserted(STEP, "a", "b", swap=False)
    before = inserted(STEP, "a", "b", swap=False, after=False)
    assert behind[2] == before[1] == COPY_A
    assert sorted(behind) == sorted(before) and len(behind) == 4


def test_who_comes_later_uses_the_substitute_and_who_came_before_does_not() -> None:
    found = inserted(STEP, "a", "b")
    assert found[1] == "%b = aten.relu(%a) : f32[4] in $b"
    assert found[3] == "%c = aten.add(%n, %b) : f32[4] in $c"
    assert inserted(STEP, "a", "a")[2] == "%b = aten.relu(%n) : f32[4] in $b"


def test_new_ops_take_place_and_stream_from_the_one_beside() -> None:
    text = STEP.replace("in $b\n", 'in $b on backward/s in module "top" phase backward\n')
    graph = model(text.replace("input", "stream s @gpu0\ninput"))
    at = made_by(graph, "b")
    _, (new,) = insert(graph, [Insertion((copy(tensor("a")),), at)])
    assert (new.thread, new.stream, new.module, new.phase) == (
        at.thread,
        at.stream,
        at.module,
        at.phase,
    )


CALLED = """input %x : f32[4] in $x
autograd.X() {
  %a = aten.selu(%x) : f32[4] in $a {
    %a = aten.elu(%x) : f32[4] in $a
  }
}
%b = aten.relu(%a) : f32[4] in $b
"""


def test_a_new_op_stands_beside_the_call_of_a_called_op_but_inside_a_node() -> None:
    graph = model(CALLED)
    inner = graph.ops[0].body[0].body[0]
    for after in (True, False):
        whole, (new,) = insert(graph, [Insertion((copy(tensor("x")),), inner, after)])
        names = [op.name for op in whole.ops[0].body]
        assert names == (["aten.selu", "aten.clone"] if after else ["aten.clone", "aten.selu"])
        assert whole.ops[0].body[1 if after else 0] is new


def test_what_is_not_made_before_cannot_be_used() -> None:
    assert refused(STEP, "b", "b", after=False) == "%b is not defined yet at that point"
    assert refused(STEP, "c", "b") == "%c is not defined yet at that point"
    assert inserted(STEP, "b", "b", swap=False)
    assert inserted(STEP, "x", "a", swap=False, after=False)


def test_the_op_that_makes_it_later_is_named() -> None:
    graph = model(STEP)
    insertion = Insertion((copy(graph.by_name["b"]),), made_by(graph, "b"), after=False)
    with pytest.raises(RefusedError) as caught:
        check_insertion(graph, insertion)
    assert caught.value.notes == ((made_by(graph, "b"), "aten.relu defines it"),)


def test_a_new_op_may_write_what_others_read_only_to_exchange_it() -> None:
    graph = model(STEP)
    known = graph.by_name["a"]
    shift = Op("aten.neg_", (known,), written=frozenset({"a"}))
    with pytest.raises(RefusedError, match="%a would be written, and is used elsewhere"):
        check_insertion(graph, Insertion((shift,), made_by(graph, "a")))
    check_insertion(graph, Insertion((replace(shift, name="c10d.allreduce_"),), graph.ops[0]))


def test_a_called_ops_results_are_there_behind_its_call_and_not_before() -> None:
    assert refused(CALLED, "a", "a", after=False) == "%a is not defined yet at that point"
    assert inserted(CALLED, "a", "a")[-1] == "%b = aten.relu(%n) : f32[4] in $b"


VIEWED = """input %x : f32[4] in $x
%a = aten.neg(%x) : f32[4] in $a
%v = aten.view(%a, size = [4]) : f32[4] in $a
%b = aten.relu(%a) : f32[4] in $b
%c = aten.relu(%v) : f32[4] in $c
"""


def test_a_view_that_is_older_must_not_be_in_use() -> None:
    reason = "%v shares bytes with %a and is still used"
    assert refused(VIEWED, "a", "v") == refused(VIEWED, "a", "b") == reason
    # behind all users, and before the view is taken, nothing is in the way
    assert inserted(VIEWED, "a", "c")[-1] == COPY_A
    assert inserted(VIEWED, "a", "a")[2] == "%v = aten.view(%n, size = [4]) : f32[4] in $n"
    returned = VIEWED + "return %v\n"
    assert refused(returned, "a", "c") == reason


def test_what_is_returned_or_outlives_the_step_stays_itself() -> None:
    lasting = "state %s : f32[4] in $s\n" + STEP.replace("aten.add(%a", "aten.add(%s")
    assert inserted(lasting, "s", "b")[-1] == "%c = aten.add(%n, %b) : f32[4] in $c"
    assert refused(lasting + "return %s\n", "s", "b") == "%s is returned, and would be a copy"
    written = lasting + "aten.neg_(%s!)\n"
    assert refused(written, "s", "b") == ("%s outlives the step, and %n would be written instead")
    own = STEP + "aten.neg_(%a!)\n"
    assert inserted(own, "a", "b")[-1] == "aten.neg_(%n!)"
    assert inserted(STEP + "return %b\n", "b", "b")[-1] == "%c = aten.add(%a, %n) : f32[4] in $c"


def test_a_result_is_returned_as_its_substitute() -> None:
    graph = model(STEP + "return %b\n")
    swaps = ((graph.by_name["b"], tensor("n")),)
    whole, _ = insert(graph, [Insertion((copy(tensor("b")),), made_by(graph, "b"), True, swaps)])
    assert [t.name for t in whole.returned or ()] == ["n"]


def test_a_substitute_in_the_same_bytes_leaves_views_alone() -> None:
    graph = model(VIEWED)
    new = Op("aten.view", (tensor("a"),), (tensor("n", "a"),), {"size": (4,)})
    swaps = ((graph.by_name["a"], tensor("n", "a")),)
    insertion = Insertion((new,), made_by(graph, "v"), True, swaps)
    check_insertion(graph, insertion)
    whole, _ = insert(graph, [insertion])
    assert [print_op(op) for op in whole.ops[-2:]] == [
        "%b = aten.relu(%n) : f32[4] in $b",
        "%c = aten.relu(%v) : f32[4] in $c",
    ]


def test_a_view_taken_later_lies_as_far_into_the_substitute() -> None:
    text = VIEWED.replace("in $a\n", "in $a+64\n").replace("size = [4]", "size = [2]")
    text = text.replace("[2]) : f32[4] in $a+64", "[2]) : f32[2] in $a+72")
    text = text.replace("relu(%v) : f32[4]", "relu(%v) : f32[2]")
    assert inserted(text, "a", "a")[2] == "%v = aten.view(%n, size = [2]) : f32[2] in $n+8"


def test_new_ops_may_use_each_other() -> None:
    graph = model(STEP)
    second = Op("aten.neg", (tensor("n"),), (tensor("m"),))
    at = made_by(graph, "b")
    check_insertion(graph, Insertion((copy(tensor("a")), second), at))
    with pytest.raises(RefusedError, match="%n is not defined yet"):
        check_insertion(graph, Insertion((second, copy(tensor("a"))), at))
