"""Replacements with their backward that are gathered give what they give one after the other."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from irgraph.ops.verify import verify
from irgraph.text import print_graph
from irgraph.verbs.autograd.replacements import ReplacementBatch
from irgraph.verbs.disjoint_regions import DisjointRegions
from irgraph.verbs.sequence import Extent
from tests.verbs.test_both_passes import graph_of, step_of

KINDS = ("relu", "relu_", "gelu", "sigmoid", "linear", "add", "twice", "shared", "dropout", "view",
         "norm", "mul", "written", "attention")  # fmt: skip

SCRIPTS = (
    "replace many %y = aten.relu(%x) with %y = aten.gelu(%x) and backward",
    "replace many %y = aten.sigmoid(%x) with { %a = aten.sigmoid(%x)  %y = aten.relu(%a) } "
    "and backward",
    "replace many %y = aten.linear(%x, %w, %b) with { %t = aten.t(%w)  "
    "%y = aten.addmm(%b, %x, %t) } and backward",
    "replace many { %h = aten.linear(%x, %w, %b)  %y = aten.relu(%h) } with "
    "{ %h = aten.linear(%x, %w, %b)  %y = aten.gelu(%h) } and backward",
    "replace many %y = aten.mul(%a, %b) with { %n = aten.neg(%b)  %m = aten.neg(%n)  "
    "%y = aten.mul(%a, %m) } and backward",
    "replace many %y = aten.add(%a, %b) with { %n = aten.neg(%b)  %y = aten.sub(%a, %n) } "
    "and backward",
    "apply relu-to-gelu apply add-dropout",
    "apply fuse-attention",
    "remove many %y = aten.sigmoid(%x) using %x for %y and backward",
)


class Chain(nn.Module):
    """Layers in a row, drawn at random; some share parameters, some write in place."""

    def __init__(self, seed: int, count: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.kinds = [draw.choice(KINDS) for _ in range(count)]
        self.back = [draw.randrange(1, 4) for _ in range(count)]
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(count))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(count))
        self.shared, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        """Return [B, 3] for [B, 8]."""
        made = [x]
        for i, kind in enumerate(self.kinds):
            other = made[max(len(made) - 1 - self.back[i], 0)]
            made.append(self.layer(i, kind, made[-1], other))
        return self.last(made[-1])

    def layer(self, i: int, kind: str, x: Any, other: Any) -> Any:
        """Return what one layer makes."""
        if kind == "attention":
            scores = torch.matmul(x, x.transpose(-2, -1)) * 0.5
            return torch.matmul(torch.softmax(scores, -1), self.layers[i](x))
        if kind == "written":
            kept = x * 2
            return torch.relu(kept) + kept.add_(1)
        found: dict[str, Any] = {
            "relu": torch.relu,
            "relu_": lambda a: torch.relu_(a + 1),
            "sigmoid": torch.sigmoid,
            "gelu": nn.functional.gelu,
            "linear": self.layers[i],
            "add": lambda a: a + other,
            "twice": lambda a: torch.relu(a) + torch.sigmoid(a),
            "shared": self.shared,
            "dropout": lambda a: nn.functional.dropout(a, 0.5),
            "norm": self.norms[i],
            "view": lambda a: torch.relu(a.t()).t(),
            "mul": lambda a: a * torch.sigmoid(other),
        }
        return found[kind](x)


def done_with(graph: Graph, script: str) -> tuple[str, list[str]]:
    """Return what a script makes, and what it says of it."""
    done = run(load_script(script), graph)
    assert verify(done.graph) == []
    said = [
        (e.groups, e.replaced, e.legal, [str(r) for r in e.refused]) for e in done.report.entries
    ]
    return print_graph(done.graph), list(map(str, said))


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be gathered: each replacement is made before the next one is judged."""

    def settled(self: ReplacementBatch, _: Any) -> Graph:
        self.commit()
        return self.graph

    monkeypatch.setattr(ReplacementBatch, "flush_near", settled)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(24))
def test_what_is_gathered_is_what_one_by_one_makes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_of(step_of(torch.relu, model=Chain(seed, 4 + seed % 7)))
    together = {script: done_with(graph, script) for script in SCRIPTS}
    one_by_one(monkeypatch)
    for script in SCRIPTS:
        assert done_with(graph, script) == together[script]


def test_layers_that_lie_apart_are_made_in_one_rebuild(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(6)))
    graph = graph_of(step_of(torch.relu, model=model))
    begun: list[Graph] = []
    begin = ReplacementBatch._start

    def noted(self: ReplacementBatch, graph: Graph) -> None:
        begun.append(graph)
        begin(self, graph)

    monkeypatch.setattr(ReplacementBatch, "_start", noted)
    done = run(load_script(SCRIPTS[0]), graph)
    assert done.report.entries[0].groups == 6
    assert len(begun) == 2


def test_places_meet_where_one_lies_in_another() -> None:
    def part(*path: int, first: int, last: int) -> Extent:
        return Extent(path, None, (), first, last)

    places = DisjointRegions(part(first=2, last=9), part(first=3, last=3), part(5, first=0, last=1))
    assert places.meets(part(first=5, last=5))
    assert places.meets(part(9, 4, first=0, last=0))
    assert not places.meets(part(first=10, last=12))
    assert not places.meets(part(1, first=0, last=99))
    assert places.overlaps(DisjointRegions(part(first=0, last=1), part(first=9, last=10)))
    assert not places.overlaps(DisjointRegions(part(first=0, last=1), part(11, first=0, last=1)))
