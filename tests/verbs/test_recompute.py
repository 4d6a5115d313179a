"""Forward ops that run once more for the backward pass: against torch's own checkpointing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from irgraph.api import rewrite
from irgraph.capture.live import capture
from irgraph.execute import compare
from irgraph.ir.effects import is_view
from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from irgraph.ops.verify import verify
from irgraph.schedule.memory.peak import peak_memory
from irgraph.text import IrgraphError, parse
from irgraph.verbs import recompute
from tests.execute.models import Eager, Step, sgd


def graph_of(step: Callable[[], Any]) -> Graph:
    return capture(step, device="meta").graph


def kernels(graph: Graph) -> Counter[str]:
    """Return how often each op runs; views launch nothing."""
    return Counter(op.name for op in graph.leaves() if op.outputs and not is_view(op))


class Checkpointed(nn.Sequential):
    """Runs its blocks of attention with torch's checkpointing."""

    def forward(self, x: Any) -> Any:
        """Return what the blocks make."""
        for layer in self:
            again = isinstance(layer, Eager)
            x = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
        return x


def blocks(kind: type[nn.Sequential]) -> Graph:
    layers = [nn.Linear(64, 64), *(Eager(64, 4, False) for _ in range(3)), nn.Flatten()]
    data = (torch.rand(8, 32, 64), torch.arange(8) % 5)
    return graph_of(Step(kind(*layers).to("meta"), data, sgd))


@pytest.mark.long
def test_it_is_torchs_own_checkpointing() -> None:
    before, meant = blocks(nn.Sequential), blocks(Checkpointed)
    after = rewrite(before, "checkpoint").graph
    assert verify(after) == []
    assert kernels(after) == kernels(meant)
    peaks = [peak_memory(graph).peak for graph in (before, after, meant)]
    assert peaks[1] == peaks[2] < 0.7 * peaks[0]
    result = compare(before, after)
    assert result.same
    assert all(one.absolute == 0 for one in result.compared)


def mixed(seed: int) -> nn.Sequential:
    """Return layers that save, draw, write in place and view."""
    draw = random.Random(seed)
    kinds: list[Callable[[], nn.Module]] = [
        lambda: nn.Linear(8, 8),
        nn.ReLU,
        nn.GELU,
        nn.Sigmoid,
        lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True)),
        lambda: nn.Dropout(0.5),
        lambda: nn.LayerNorm(8),
        lambda: nn.BatchNorm1d(8),
        lambda: nn.Unflatten(1, (2, 4)),
        nn.Flatten,
        lambda: nn.Softmax(-1),
        Turned,
    ]

    def part() -> nn.Sequential:
        chosen = [kind() for kind in draw.choices(kinds, k=4)]
        layers = [chosen[0], *(layer for one in chosen[1:] for layer in (nn.Flatten(), one))]
        return nn.Sequential(nn.Linear(8, 8), *layers, nn.Flatten())

    return nn.Sequential(*(part() for _ in range(3)))


class Turned(nn.Module):
    """Reads its input the other way round, and twice."""

    def forward(self, x: Any) -> Any:
        """Return the shape that it is given."""
        return (x.t().contiguous().t() * x.tanh()).view_as(x)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_results_stay_the_same_to_the_bit(seed: int) -> None:
    before = graph_of(Step(mixed(seed).to("meta"), (torch.rand(4, 8), torch.arange(4)), sgd))
    for of in ("*", "1", "*.*"):
        try:
            after = rewrite(before, f'checkpoint(of = "{of}")').graph
        except IrgraphError:
            continue
        assert verify(after) == []
        result = compare(before, after, draws=1)
        assert result.same, (of, str(result))
        assert all(one.absolute == 0 for one in result.compared)
        assert peak_memory(after, rounded=1).before == peak_memory(before, rounded=1).before


@pytest.mark.parametrize("kind", ["cayley", "householder"])
def test_calls_of_the_backward_pass_that_make_views_of_what_runs_again(kind: str) -> None:
    """As solving a triangular system does (``aten.mH``), and products of Householder's."""
    parametrized = nn.utils.parametrizations.orthogonal(nn.Linear(8, 5), orthogonal_map=kind)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), parametrized).to("meta")
    before = graph_of(Step(model, (torch.rand(4, 8), torch.arange(4)), sgd))
    after = rewrite(before, "checkpoint").graph
    assert verify(after) == []
    assert compare(before, after, draws=1).same


def test_accumulated_gradients_run_each_forward_pass_once_more_for_its_own_backward() -> None:
    block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    model = nn.Sequential(block, nn.Linear(8, 4)).to("meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.rand(6, 8) for _ in range(3)]

    def step() -> None:
        optimizer.zero_grad()
        for batch in batches:
            model(batch.to("meta")).square().sum().backward()
        optimizer.step()

    before = graph_of(step)
    after = rewrite(before, "checkpoint").graph
    assert kernels(after)["aten.tanh"] == 2 * kernels(before)["aten.tanh"] == 6
    assert compare(before, after).same


def test_single_ops_run_again_each_by_itself() -> None:
    before = graph_of(Step(mixed(0).to("meta"), (torch.rand(4, 8), torch.arange(4)), sgd))
    after = run(load_script("recompute many aten.{gelu,sigmoid,softmax,relu}(...)"), before).graph
    assert len(list(after.leaves())) > len(list(before.leaves()))
    assert compare(before, after).same


def test_what_runs_again_is_named_and_its_bytes_counted() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 5)).to("meta")
    before = graph_of(Step(model, (torch.rand(4, 8), torch.arange(4)), sgd))
    (gelu,) = [op for op in before.leaves() if op.name == "aten.gelu"]
    found = recompute(before, [gelu], lambda _: True)
    assert [op.base for op in found.ops] == ["gelu"]
    assert found.nbytes == 4 * 16 * 4
    assert compare(before, found.graph).same


STREAMS = """model "m" { format = 2 }

device @gpu0 "v100"
stream s @gpu0
input %x : f32[4, 8] in $x
input %g : f32[4, 8] in $g

%y = aten.sigmoid(%x) : f32[4, 8] in $y
%e = sync.record() : u8[] @cpu in $e
sync.wait(%e) on main/s
autograd.SigmoidBackward0(%g) phase backward {
  %d = aten.sigmoid_backward(%g, %y) : f32[4, 8] in $d on main/s
}
%f = sync.record() : u8[] @cpu in $f on main/s
sync.wait(%f)
return %d
"""


def test_it_runs_again_on_the_stream_that_reads_it() -> None:
    after = run(load_script("recompute aten.sigmoid(_)"), parse(STREAMS)).graph
    (again,) = [op for op in after.leaves() if op.name == "aten.sigmoid" and op.phase == "backward"]
    assert again.stream == "s"


def test_a_dropout_is_drawn_once() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.5), nn.Tanh()))
    before = graph_of(Step(model.to("meta"), (torch.rand(4, 8), torch.arange(4)), sgd))
    after = rewrite(before, "checkpoint").graph
    names = Counter(op.name for op in after.leaves())
    assert names["aten.native_dropout"] == 1
    assert names["aten.addmm"] == 2
    assert compare(before, after).same


def test_a_dropout_before_a_product_of_three_axes_is_drawn_once() -> None:
    class Dropped(nn.Module):
        """A product sees what was dropped through a view of its own."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Any) -> Any:
            """Return what the products make."""
            x = nn.functional.dropout(torch.tanh(self.a(x)), 0.5)
            return torch.tanh(self.b(x)).mean(1)

    inputs = torch.rand(4, 3, 6), torch.arange(4)
    graph = graph_of(Step(nn.Sequential(Dropped()).to("meta"), inputs, sgd))
    after = rewrite(graph, "checkpoint").graph
    assert kernels(after)["aten.native_dropout"] == 1
    assert compare(graph, after).same
