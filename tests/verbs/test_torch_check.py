"""Torch is asked about the sizes of resized ops once."""

from __future__ import annotations

from importlib import resources

import pytest

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.resize import with_dims
from irgraph.text import parse
from irgraph.verbs import torch_check
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.torch_check import check_sizes

STEP = resources.files("costmodels.evaluate") / "data" / "dlrm_default.ir"

HALVES = """model "m" { format = 1  dims = {B = 8} }

device @gpu0 "v100"
input %x : f32[B, 4] in $x
input %u : f32[8, 4] in $u

%y = aten.relu(%x) : f32[B, 4] in $y
%z = aten.add(%y, %u) : f32[B, 4] in $z
"""


def test_what_torch_took_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_check, "confirms_resize", lambda original, resized: False)
    step = parse(STEP.read_text(encoding="utf-8"))
    other = with_dims(step, {"B": 771})
    check_sizes(step, other)
    check_sizes(other, step)
    monkeypatch.setattr(torch_check, "_mismatch", lambda op, graph: _asked(op, graph, step))
    check_sizes(step, other)
    # torch takes the ops as they were, and is asked about them at a size that is new
    with pytest.raises(RefusedError, match="asked about"):
        check_sizes(step, with_dims(step, {"B": 773}))


def _asked(op: Op, graph: Graph, step: Graph) -> str:
    return "" if graph is step else f"asked about {op.name}"


def test_a_size_that_does_not_broadcast_is_refused_each_time() -> None:
    graph = parse(HALVES)
    for _ in range(2):
        with pytest.raises(RefusedError, match=r"aten\.add does not take this size"):
            check_sizes(graph, with_dims(graph, {"B": 9}))
