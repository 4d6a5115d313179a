"""Graphs of Model Explorer: every op and every operand, by names that a rewrite keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import irgraph
from irgraph.exchange.explorer import explorer_graph, overlays
from irgraph.exchange.explorer.names import namespaces, node_ids
from irgraph.exchange.explorer.overlays import changes
from irgraph.ir.tensor import overlap
from irgraph.report.structure import structural_diff
from tests.cli.conftest import Ran
from tests.strategies import random_graph

GOLDEN = Path(__file__).parents[1] / "golden" / "passes"
DATA = resources.files("costmodels.evaluate") / "data"
DLRM = str(DATA / "dlrm_default.ir")


MODELS = [*sorted(GOLDEN.glob("*.ir")), Path(DLRM)]


def edges_of(graph: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Return source, target and operand of every edge."""
    return {
        (edge["sourceNodeId"], node["id"], edge["targetNodeInputId"])
        for node in graph["nodes"]
        for edge in node.get("incomingEdges", [])
    }


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_every_op_and_every_operand_is_there(path: Path) -> None:
    check_whole(irgraph.load(path))


@pytest.mark.parametrize("seed", range(20))
def test_so_they_are_in_random_graphs(seed: int) -> None:
    check_whole(random_graph(seed))


def check_whole(graph: irgraph.Graph) -> None:
    """Go over leaves in order, and keep who defined what: every operand is an edge from there."""
    drawn = explorer_graph(graph)
    ids, nodes = node_ids(graph), {node["id"]: node for node in drawn["nodes"]}
    ops = list(graph.walk())
    ends = 1 if graph.returned else 0
    assert len(nodes) == len(drawn["nodes"]) == len(ops) + len(graph.tensors) + ends
    assert {nodes[ids[op]]["label"] for op in ops} == {op.name for op in ops}
    edges = edges_of(drawn)
    definers = {d.tensor.name: f"tensor %{d.tensor.name}" for d in graph.tensors}
    for leaf in graph.leaves():
        for at, tensor in enumerate(leaf.inputs):
            assert (definers[tensor.name], ids[leaf], str(at)) in edges
        for made in leaf.outputs:
            definers[made.name] = ids[leaf]
        for op in ops:
            if op.body and list(op.leaves())[-1] is leaf:
                for made in op.outputs:
                    definers.setdefault(made.name, ids[op])
    assert {source for source, _, _ in edges} <= set(nodes)


@pytest.mark.parametrize("path", MODELS[-3:], ids=lambda path: path.stem)
def test_what_is_written_in_place_leads_to_its_readers(path: Path) -> None:
    graph = irgraph.load(path)
    ids, edges = node_ids(graph), edges_of(explorer_graph(graph))
    leaves = list(graph.leaves())
    for at, reader in enumerate(leaves):
        for tensor in reader.inputs:
            before = [
                leaf
                for leaf in leaves[:at]
                if any(t.name in leaf.written and overlap(t, tensor) for t in leaf.inputs)
            ]
            if before and tensor.name in {t.name for t in before[-1].inputs}:
                sources = {edge[0] for edge in edges if edge[1] == ids[reader]}
                assert ids[before[-1]] in sources


def test_layers_fold_by_phase_module_and_call() -> None:
    text = """model "m" { format = 1 }

device @gpu0 "v100"
input %x : f32[4, 8] in $a
param %w "bot.0.weight" : f32[8, 8] in $w

"a/b"() {
  %y = aten.linear(%x, %w) : f32[4, 8] in $y in module "bot.0" {
    %t = aten.t(%w) : f32[8, 8; 1, 8] in $w
    %y = aten.mm(%x, %t) : f32[4, 8] in $y
  }
}
"""
    graph = irgraph.parse(text)
    found = [namespaces(graph)[op] for op in graph.walk()]
    label = "forward/a\N{DIVISION SLASH}b #1"
    assert found == [label, *[f"{label}/bot/0/aten.linear #1"] * 3]


def test_names_are_data() -> None:
    """What a name holds stays in the texts of the node that has it."""
    evil = "<script>alert(1)</script>/../\\u0000'\""
    graph = irgraph.load(DLRM)
    renamed = irgraph.print_graph(graph).replace('"bot_mlp.0.weight"', json.dumps(evil))
    drawn = explorer_graph(irgraph.parse(renamed))
    found = [n for n in drawn["nodes"] if {"key": "label", "value": evil} in n.get("attrs", [])]
    assert len(found) == 1
    assert len(found[0]["namespace"].split("/")) <= 1 + len(evil.split("."))
    assert json.loads(json.dumps(drawn)) == drawn


def test_a_rewrite_keeps_the_ids_of_what_it_keeps() -> None:
    graph = irgraph.load(DLRM)
    fused = irgraph.rewrite(graph, "fuse-embedding").graph
    rows = [(c.kind, c.before, c.after) for c in structural_diff(graph, fused)]
    before, after = changes(graph, fused, rows)
    assert {"removed", "kept"} <= set(before.values.values())
    assert {"added", "kept"} <= set(after.values.values())
    kept = {node for node, kind in before.values.items() if kind == "kept"}
    assert kept <= {node for node, kind in after.values.items() if kind == "kept"}
    assert "added" not in before.values.values()


def test_overlays_are_the_prediction() -> None:
    prediction = irgraph.predict(irgraph.load(DLRM), device="v100")
    priced, timeline = prediction.priced, prediction.timeline
    found = {o.name: o for o in overlays(priced, timeline, prediction.path)}
    ids = set(node_ids(priced.graph).values())
    assert all(set(overlay.values) <= ids for overlay in found.values())
    device = sum(kernel.time for kernel in prediction.kernels())
    assert sum(found["device time (us)"].values.values()) == pytest.approx(device)
    path = sum(found["critical path (us)"].values.values())
    assert path == pytest.approx(prediction.step_time)
    host = sum(i.length for i in timeline.intervals if timeline.on_host(i))
    assert sum(found["host time (us)"].values.values()) == pytest.approx(host)
    assert max(found["memory (bytes)"].values.values()) == prediction.memory.peak
    assert set(found["provenance"].values.values()) <= {"heuristic", "learned", "none"}
    late = found["slack (us)"].values
    assert min(late.values()) == 0 < max(late.values())
    data = found["provenance"].data()["results"]
    assert all(row["bgColor"].startswith("#") for row in data.values())


def test_the_command_writes_graphs_and_overlays(run: Callable[..., Ran], tmp_path: Path) -> None:
    fused = tmp_path / "fused.ir"
    assert run("opt", "--pass", "fuse-embedding", DLRM, "-q", "-o", fused).code == 0
    ran = run("explore", DLRM, fused, "--device", "v100", "--json", tmp_path / "g.json")
    assert (ran.code, ran.err.count("wrote ")) == (0, 8)
    graphs = json.loads((tmp_path / "g.json").read_text())["graphs"]
    labels = [graph["id"] for graph in graphs]
    assert labels == ["dlrm_default (before)", "dlrm_default (after)"]
    for path in tmp_path.glob("g.*.json"):
        data = json.loads(path.read_text())
        assert list(data) == labels
        for graph, label in zip(graphs, labels, strict=True):
            assert set(data[label]["results"]) <= {node["id"] for node in graph["nodes"]}
    assert {p.name for p in tmp_path.glob("g.*.json")} == {
        f"g.{name}.json"
        for name in (
            "device-time",
            "host-time",
            "critical-path",
            "slack",
            "provenance",
            "memory",
            "change",
        )
    }
    assert run("explore", tmp_path / "none.ir").code == 4
    assert run("explore", DLRM, "--json", tmp_path / "none" / "g.json").code == 4
