"""What ops were found sound is known again, and asked anew in graphs of which rules read more."""

from __future__ import annotations

import pickle

from msgspec.structs import replace

from irgraph.facts import lasting_facts
from irgraph.ir.edit import Edit
from irgraph.ir.graph import Device, Graph, Stream
from irgraph.ir.op import Op
from irgraph.ir.resize import with_dims
from irgraph.ir.tensor import Tensor
from irgraph.ops.rules.finding import Finding
from irgraph.ops.verify import VERIFIED_SLOT, verify
from irgraph.text import parse
from tests.strategies import random_graph

TEXT = """model "m" { format = 1  dims = {B = 8} }

device @gpu0 "v100"
device @gpu1 "v100"
stream copy @gpu0
input %x : f32[B, 4] in $b1

%y = aten.relu(%x) : f32[B, 4] in $b2 on main/copy
%z = aten.to(%x, device = @gpu1) : f32[B, 4] @gpu1 in $b3
%w = other.op(%y) : f32[B, 4] in $b4
"""


def said(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.rule, finding.message) for finding in findings]


def fresh(graph: Graph) -> Graph:
    """Return an equal graph of other ops, of which nothing is known."""
    made: Graph = pickle.loads(pickle.dumps(graph))
    assert not any(VERIFIED_SLOT in op.__dict__ for op in made.walk())
    return made


def test_sound_ops_are_asked_anew_where_their_graph_says_something_else() -> None:
    graph = parse(TEXT)
    assert verify(graph) == []
    assert all(VERIFIED_SLOT in op.__dict__ for op in graph.walk())
    for changed, rules in (
        (replace(graph, streams=()), {"streams"}),
        (replace(graph, streams=(Stream("copy", "gpu7"),)), {"streams"}),
        (replace(graph, devices=(Device("gpu0", "v100"),)), {"devices"}),
        (replace(graph, dims={"B": 9}), {"dims"}),
        (replace(graph, dims={}), {"dims"}),
        (replace(graph, ops=graph.ops[1:]), {"names"}),
        (replace(graph, ops=(*graph.ops, graph.ops[0])), {"names", "tree"}),
        (replace(graph, tensors=()), {"names"}),
    ):
        found = verify(changed)
        assert {finding.rule for finding in found} == rules
        assert said(found) == said(verify(fresh(changed)))
        assert verify(graph) == []


def test_what_is_new_is_found_beside_what_is_sound() -> None:
    for seed in range(40):
        graph = random_graph(seed)
        assert verify(graph) == []
        first = next(graph.leaves())
        edit = Edit(graph)
        made = Tensor("made", "f33", (2, -1), "made", device="gpu9")
        edit.insert(Op("aten.relu", (), (made,), written=frozenset({"lost"})), before=first)
        broken = edit.commit()
        assert said(verify(broken)) == said(verify(fresh(broken))) != []
        assert said(verify(broken)) == said(verify(fresh(broken)))


def test_resized_forms_share_what_holds_at_every_size() -> None:
    graph = parse(TEXT)
    assert verify(graph) == []
    resized = with_dims(graph, {"B": 16})
    changed = [op for op in resized.walk() if op not in set(graph.walk())]
    assert changed
    assert all(VERIFIED_SLOT in lasting_facts(op) for op in changed)
    assert not any(VERIFIED_SLOT in op.__dict__ for op in changed)
    assert verify(resized) == []
    for broken, rules in (
        (replace(resized, streams=()), {"streams"}),
        (replace(resized, devices=(Device("gpu0", "v100"),)), {"devices"}),
        (replace(resized, dims={"B": 9}), {"dims"}),
    ):
        assert {finding.rule for finding in verify(broken)} == rules
        assert said(verify(broken)) == said(verify(fresh(broken)))


OVERLAP = """model "m" { format = 1  dims = {B = 8} }

device @gpu0 "v100"
input %x : f32[B] in $b
input %y : f32[B] in $c

%z = aten.add(%y, %x) : f32[B] in $b+64
"""


def test_operands_that_are_overwritten_at_a_new_size_only_are_found() -> None:
    graph = parse(OVERLAP)
    assert verify(graph) == []
    assert {finding.rule for finding in verify(with_dims(graph, {"B": 32}))} == {"written"}
