"""Edits commit whole and leave sound graphs."""

from __future__ import annotations

from msgspec.structs import replace

from irgraph.ir.edit import Edit, map_tensors
from irgraph.ir.op import Op
from irgraph.ops.verify import verify
from irgraph.text import parse, print_graph

MODEL = """model "m" { format = 1 }

device @gpu0 "v100"
input %x : f32[4, 4] in $b1
param %w : f32[4, 4] in $b2

"block"() {
  %h = aten.linear(%x, %w) : f32[4, 4] in $b3 {
    %t = aten.t(%w) : f32[4, 4; 1, 4] in $b2
    %h = aten.mm(%x, %t) : f32[4, 4] in $b3
  }
}
%y = aten.relu(%h) : f32[4, 4] in $b4
%z = aten.sigmoid(%y) : f32[4, 4] in $b5
"""


def named(name: str) -> tuple[Edit, Op]:
    graph = parse(MODEL)
    return Edit(graph), next(op for op in graph.walk() if op.name == name)


def test_nothing_to_do_gives_the_same_graph() -> None:
    graph = parse(MODEL)
    assert Edit(graph).commit() is graph


def test_an_emptied_scope_goes_with_its_last_op() -> None:
    edit, linear = named("aten.linear")
    edit.remove(linear)
    assert [op.name for op in edit.commit().ops] == ["aten.relu", "aten.sigmoid"]


def test_a_composite_that_lost_its_result_is_no_call_any_more() -> None:
    edit, mm = named("aten.mm")
    made = Op("irgraph.addmm_relu", mm.operands, mm.results)
    edit.remove(mm)
    relu = edit.graph.ops[1]
    edit.insert(made, before=relu)
    names = [op.name for op in edit.commit().walk()]
    assert names == ["block", "aten.t", "irgraph.addmm_relu", "aten.relu", "aten.sigmoid"]


def test_renamed_uses_follow_to_the_end() -> None:
    edit, relu = named("aten.relu")
    edit.remove(relu)
    edit.rename(relu.outputs[0], relu.inputs[0])
    graph = edit.commit()
    assert "aten.sigmoid(%h)" in print_graph(graph)
    assert verify(graph) == []


def test_the_old_graph_stays_as_it_was() -> None:
    edit, relu = named("aten.relu")
    before = print_graph(edit.graph)
    edit.remove(relu)
    edit.insert(Op("aten.relu_", relu.operands, written=frozenset({"h"})), after=edit.graph.ops[0])
    edit.commit()
    assert print_graph(edit.graph) == before


def test_new_ops_stand_in_the_order_in_which_they_were_put() -> None:
    edit, sigmoid = named("aten.sigmoid")
    for i in range(3):
        edit.insert(Op(f"label {i}"), before=sigmoid)
    edit.insert(Op("label end"))
    names = [op.name for op in edit.commit().ops][2:]
    assert names == ["label 0", "label 1", "label 2", "aten.sigmoid", "label end"]


def test_a_scope_that_hands_back_its_operand_has_no_result() -> None:
    edit, mm = named("aten.mm")
    edit.insert(Op("aten.neg", mm.inputs[:1]), before=mm)
    edit.remove(mm)
    edit.rename(mm.outputs[0], mm.inputs[0])
    graph = edit.commit()
    assert verify(graph) == []
    linear = next(op for op in graph.walk() if op.name == "aten.linear")
    assert linear.results == ()
    assert "aten.relu(%x)" in print_graph(graph)


def test_an_op_forgets_its_measured_time_where_its_work_changes() -> None:
    note = " [time = 5us, by = measured, kernels = 1]"
    relu = parse(MODEL.replace("in $b4", "in $b4" + note)).ops[1]
    renamed = map_tensors(relu, lambda t: replace(t, name=t.name + "1"))
    assert renamed.notes == relu.notes
    narrow = map_tensors(relu, lambda t: replace(t, dtype="bf16"))
    assert relu.notes
    assert narrow.notes == {}
