"""The verb ``replace`` as a function: it looks at users at once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace as changed

from irgraph.ir.op import Op
from irgraph.ops.verify import verify
from irgraph.verbs import RefusedError, replace
from tests.language.models import mlp


def test_an_op_is_replaced_where_it_stood() -> None:
    graph = mlp()
    old = graph.ops[1]
    new = Op("aten.abs", old.operands, old.results)
    done = replace(graph, [old], [new])
    assert verify(done.graph) == []
    assert done.graph.ops[1].name == "aten.abs"
    assert done.op.module == "bot.1"


def test_users_of_what_is_lost_are_shown() -> None:
    graph = mlp()
    with pytest.raises(RefusedError, match="a result that it removes is still in use") as caught:
        replace(graph, [graph.ops[1]], [])
    assert [told for _, told in caught.value.notes] == ["aten.addmm uses %y1"]


def test_a_result_of_another_type_is_refused() -> None:
    graph = mlp()
    old = graph.ops[1]
    made = changed(old.outputs[0], dtype="f16")
    with pytest.raises(RefusedError, match="%y1 would have another type"):
        replace(graph, [old], [Op("aten.abs", old.operands, (made,))])
