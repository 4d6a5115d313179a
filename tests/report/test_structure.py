"""Structural differences of graphs."""

from __future__ import annotations

from importlib import resources

import pytest
from msgspec.structs import replace

from irgraph.ir.edit import map_tensors
from irgraph.ir.graph import Graph
from irgraph.ir.tensor import Tensor
from irgraph.manage.run import run_stages
from irgraph.manage.stage import PipelineStep, stages
from irgraph.predict.prediction import predict
from irgraph.report.structure import group_changes, structural_diff, structure_lines
from irgraph.text import parse, print_graph
from tests.language.models import mlp, model

THREE = """
input %x : f32[B, 8] in $x
%a = aten.relu(%x) : f32[B, 8] in $a from "et#1"
%b = aten.sigmoid(%x) : f32[B, 8] in $b from "et#2"
%c = aten.tanh(%x) : f32[B, 8] in $c from "et#3"
"""


def dlrm() -> Graph:
    source = resources.files("costmodels.evaluate") / "data" / "dlrm_default.ir"
    return parse(source.read_text(encoding="utf-8"))


def kinds(before: Graph, after: Graph) -> list[tuple[str, str]]:
    return [(change.kind, change.op.name) for change in structural_diff(before, after)]


def test_equal_graphs_do_not_differ() -> None:
    assert kinds(mlp(), mlp()) == []
    assert structure_lines(dlrm(), dlrm()) == ["  no difference"]


def test_names_of_tensors_alone_are_no_difference_where_origins_tell() -> None:
    graph = model(THREE)
    renamed = replace(graph, ops=tuple(map_tensors(op, _other) for op in graph.ops))
    assert kinds(graph, renamed) == []


def _other(tensor: Tensor) -> Tensor:
    return tensor if tensor.name == "x" else replace(tensor, name=f"{tensor.name}9")


def test_ops_added_and_removed_are_told_outermost_only() -> None:
    graph = mlp()
    assert kinds(graph, replace(graph, ops=graph.ops[1:])) == [("removed", "aten.linear")]
    assert kinds(replace(graph, ops=graph.ops[1:]), graph) == [("added", "aten.linear")]


def test_the_one_that_moved_is_told_not_those_it_passed() -> None:
    graph = model(THREE)
    a, b, c = graph.ops
    assert kinds(graph, replace(graph, ops=(b, c, a))) == [("moved", "aten.relu")]


def test_another_stream_is_a_move() -> None:
    graph = model("stream copy @gpu0\n" + THREE)
    moved = replace(graph, ops=(replace(graph.ops[0], stream="copy"), *graph.ops[1:]))
    (change,) = structural_diff(graph, moved)
    assert (change.kind, change.detail) == ("moved", "main/default -> main/copy")


@pytest.mark.long
def test_other_types_are_told_with_their_present_sizes() -> None:
    resized = run_stages(model(THREE), stages([PipelineStep("text", "resize B = 64")])).graph
    assert {change.detail for change in structural_diff(model(THREE), resized)} == {
        "f32[4, 8] -> f32[64, 8]"
    }


def test_other_attributes_and_operands_are_rewired() -> None:
    graph = model("input %x : f32[B] in $x\naten.add_(%x!, %x, alpha = 2)\n")
    op = replace(graph.ops[0], attributes={"alpha": 3})
    (change,) = structural_diff(graph, replace(graph, ops=(op,)))
    assert (change.kind, change.detail) == ("rewired", "alpha = 2 -> 3")


def test_alike_changes_are_one_row() -> None:
    fused = run_stages(dlrm(), stages([PipelineStep("pass", "fuse-embedding")])).graph
    groups = {
        (g.kind, g.name): len(g.changes) for g in group_changes(structural_diff(dlrm(), fused))
    }
    assert groups["removed", "aten.embedding_bag"] == 8
    assert groups["added", "irgraph.batched_embedding"] == 1
    assert not any(kind == "moved" for kind, _ in groups)


@pytest.mark.parametrize("step", ["fuse-embedding", "fuse-epilogue", "drop-dropout"])
def test_times_of_all_changes_are_the_change_of_device_work(step: str) -> None:
    fused = run_stages(dlrm(), stages([PipelineStep("pass", step)])).graph
    both = predict(dlrm()), predict(parse(print_graph(fused)))
    changes = structural_diff(
        both[0].priced.graph, both[1].priced.graph, (both[0].priced, both[1].priced)
    )
    told = sum(change.times[1] - change.times[0] for change in changes)
    work = [sum(kernel.time for kernel in p.kernels()) for p in both]
    assert told == pytest.approx(work[1] - work[0], abs=1e-6)
