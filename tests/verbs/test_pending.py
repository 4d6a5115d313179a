"""Fusions collected and made together give what they give one after the other."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.text import print_graph
from irgraph.verbs import RefusedError, fuse
from irgraph.verbs.pending_fusions import PendingFusions
from tests.verbs.test_fuse_verb import chosen, graph_of, whole


def one_by_one(graph: Graph, all_groups: list[list[list[Op]]]) -> Graph:
    for groups in all_groups:
        try:
            graph = fuse(graph, groups, whole(groups)).graph
        except (RefusedError, ValueError):
            continue
    return graph


def together(graph: Graph, all_groups: list[list[list[Op]]]) -> Graph:
    pending = PendingFusions(graph)
    for groups in all_groups:
        try:
            pending.fuse(groups, [whole(groups)], caller="fuse")
        except (RefusedError, ValueError):
            continue
    return pending.commit()


def neighbours(graph: Graph, seed: int) -> list[list[list[Op]]]:
    """Return pairs of leaves that stand next to each other, and some that do not."""
    leaves = list(graph.leaves())
    pairs = [[[a, b]] for a, b in zip(leaves[::2], leaves[1::2], strict=False)]
    return [*pairs, chosen(graph, seed)] if seed % 2 else [chosen(graph, seed), *pairs]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9))
def test_fusions_made_together_are_those_made_one_by_one(seed: int) -> None:
    graph = graph_of(seed)
    groups = neighbours(graph, seed)
    assert print_graph(together(graph, groups)) == print_graph(one_by_one(graph, groups))


def test_what_lies_apart_is_made_in_one_rebuild() -> None:
    graph = graph_of(1)
    leaves = list(graph.ops[:1]), list(graph.ops[2:3])
    pending = PendingFusions(graph)
    for ops in leaves:
        assert pending.fuse([ops], [whole([ops])], caller="fuse").graph is graph
    assert pending.commit() is not graph
