"""Programs that name cuda, captured where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from irgraph.capture.common.result import Capture
from irgraph.capture.live import capture, capture_file
from irgraph.execute import compare
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ops.verify import verify
from irgraph.predict.prediction import predict
from irgraph.text import IrgraphError, parse, print_graph
from irgraph.verbs.stream_order import StreamOrder

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

def train(batch, device):
    x, y = torch.rand(batch, 32), torch.randint(10, (batch,))
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    side = torch.cuda.Stream()

    def step():
{}
    return step
"""

STEP = """
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(place)), y.to(place))
        loss.backward()
        optimizer.step()
        return loss
"""


def taken(folder: Path, text: str) -> Capture:
    """Capture a program, or the body of a step."""
    body = "\n".join(f"        {line}" for line in text.strip().splitlines())
    whole = text if "def train" in text else HEAD.format(body)
    (folder / "mine.py").write_text(whole)
    captured = capture_file(f"{folder}/mine.py:train", batch=16)
    assert verify(captured.graph) == []
    assert parse(print_graph(captured.graph)) == captured.graph
    return captured


def named(graph: Graph, *names: str) -> list[Op]:
    return [op for op in graph.walk() if op.name in names]


def style(lines: str, place: str) -> str:
    start = HEAD.partition("    def step")[0] + f"    place = {place}\n"
    return f"{start}{lines}\n    def step():{STEP}\n    return step\n"


STYLES = {
    "as it is told": ("    model.to(device)", "device"),
    "cuda()": ("    model.cuda()", "'cuda'"),
    "device": ("    model.to(place)", "torch.device('cuda' if torch.cuda.is_available() else '')"),
    "card": ("    model.to(0)", "0"),
    "by parameter": ("    pass", "next(model.cuda().parameters()).device"),
    "accelerator": ("    model.to(place)", "torch.accelerator.current_accelerator()"),
}


@pytest.mark.long
def test_every_way_to_name_a_card_gives_the_same_model(tmp_path: Path) -> None:
    texts = {print_graph(taken(tmp_path, style(*pair)).graph) for pair in STYLES.values()}
    assert len(texts) == 1


def test_a_note_names_what_was_answered(tmp_path: Path) -> None:
    notes = taken(tmp_path, style("    model.cuda(); torch.cuda.empty_cache()", "'cuda'")).notes
    assert any("uses torch.cuda" in note and "torch.cuda.empty_cache" in note for note in notes)
    plain = taken(tmp_path, style("    model.to(device)", "device")).notes
    assert not any("empty_cache" in note for note in plain)


def test_tensors_say_that_they_lie_on_the_card(tmp_path: Path) -> None:
    taken(
        tmp_path,
        """
z = torch.zeros(batch, 3, device="cuda:0")
assert z.is_cuda and z.device == torch.device("cuda", 0) and z.device.type == "cuda"
with torch.device("cuda"):
    assert torch.ones(2).is_cuda
assert torch.tensor([1.0], device=z.device).is_cuda and not torch.ones(1).is_cuda
assert torch.cuda.device_count() == 1 and torch.cuda.get_device_capability() == (8, 0)
return z + 1
""",
    )


def test_ranges_summaries_and_files(tmp_path: Path) -> None:
    graph = taken(
        tmp_path,
        """
torch.save({"w": torch.ones(3)}, "w.pt")
torch.cuda.nvtx.range_push(torch.cuda.memory_summary())
w = torch.load("w.pt", map_location="cuda")["w"]
torch.cuda.nvtx.range_pop()
return w * torch.rand(3, device="cuda", generator=torch.Generator().manual_seed(1))
""".replace("w.pt", str(tmp_path / "w.pt")),
    ).graph
    assert len(named(graph, "aten.mul")) == 1


def test_loaders_have_no_workers_of_their_own(tmp_path: Path) -> None:
    captured = taken(
        tmp_path,
        """
data = torch.utils.data.TensorDataset(x)
loader = torch.utils.data.DataLoader(data, len(x), pin_memory=True, num_workers=2)
for (part,) in loader:
    assert loader.num_workers == 2
    return part.cuda(non_blocking=True) + 1
""",
    )
    assert captured.graph.dims == {"B": 16}


def test_made_up_times_are_told(tmp_path: Path) -> None:
    notes = taken(
        tmp_path,
        """
first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
first.record()
y = x.cuda()
last.record()
assert first.elapsed_time(last) > 0
return y + 1
""",
    ).notes
    assert any("made-up" in note for note in notes)


def test_made_up_memory_is_told(tmp_path: Path) -> None:
    notes = taken(tmp_path, "assert not torch.cuda.memory_allocated()\nreturn x.cuda()").notes
    assert any("made-up" in note for note in notes)


def test_pinned_memory_and_loaders(tmp_path: Path) -> None:
    captured = taken(
        tmp_path,
        """
data = torch.utils.data.TensorDataset(x)
for (part,) in torch.utils.data.DataLoader(data, len(x), pin_memory=True):
    return part.cuda(non_blocking=True) + torch.ones(32, pin_memory=True).cuda()
""",
    )
    assert captured.graph.settings["pinned"] is True
    assert captured.graph.dims == {"B": 16}


def test_a_second_card_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match="one device, and the step names cuda:1"):
        taken(tmp_path, "return x.to('cuda:1')")


FORK = """
z = x.cuda()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    a = model[0].cuda()(z)
    a.record_stream(side)
b = z * 2
torch.cuda.current_stream().wait_stream(side)
(a * b).sum().backward()
"""


def test_streams_and_events_are_those_of_the_model(tmp_path: Path) -> None:
    graph = taken(tmp_path, FORK).graph
    assert [stream.name for stream in graph.streams] == ["stream1"]
    linear, product = named(graph, "aten.linear")[0], named(graph, "aten.mul")[0]
    assert (linear.stream, linear.body[-1].stream, product.stream) == ("stream1", "stream1", "")
    assert StreamOrder(graph).unordered == frozenset()
    assert predict(graph, "a100").step_time > 0


def test_backward_runs_on_the_streams_of_forward(tmp_path: Path) -> None:
    graph = taken(tmp_path, FORK).graph
    back = next(op for op in graph.ops if op.name == "autograd.AddmmBackward0")
    assert back.stream == "stream1"
    after = graph.ops[graph.ops.index(back) - 1]
    assert (after.name, after.stream, after.thread) == ("sync.wait", "stream1", "backward")
    assert (graph.ops[-1].name, graph.ops[-1].stream) == ("sync.wait", "")


def test_a_step_that_does_not_wait_has_no_order(tmp_path: Path) -> None:
    graph = taken(tmp_path, FORK.replace("torch.cuda.current_stream().wait_stream(side)", "")).graph
    assert StreamOrder(graph).unordered


def test_waits_of_the_host(tmp_path: Path) -> None:
    graph = taken(
        tmp_path,
        """
event = torch.cuda.Event()
with side:
    z = x.cuda() + 1
    event.record()
event.synchronize()
side.synchronize()
torch.cuda.synchronize()
return z
""",
    ).graph
    syncs = [(op.name, op.stream) for op in graph.leaves() if op.name.startswith("sync.")]
    names = ["sync.record", "sync.event", "sync.stream", "sync.device"]
    assert [name for name, _ in syncs] == names
    assert [stream for name, stream in syncs if name != "sync.device"][::2] == ["stream1"] * 2


GRAPH = """
import torch

def train(batch, device):
    model = torch.nn.Linear(32, 32).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held, x = torch.zeros(batch, 32, device="cuda"), torch.rand(batch, 32)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model(held).sum().backward()
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = model(held).sum()
        loss.backward()
        optimizer.step()

    def step():
        held.copy_(x)
        graph.replay()
        return loss.item()

    return step
"""


def test_a_replayed_graph_is_one_launch(tmp_path: Path) -> None:
    graph = taken(tmp_path, GRAPH).graph
    (launch,) = named(graph, "cuda.graph_launch")
    names = [op.base for op in launch.body if op.base not in ("t", "view", "detach", "expand")]
    assert names == ["addmm", "sum", "ones_like", "mm", "sum", "_foreach_add_"]
    (total,) = (op for op in launch.body if op.base == "sum" and not op.attributes)
    assert named(graph, "aten._local_scalar_dense")[0].operands == total.results
    assert graph.dims == {"B": 16}
    assert compare(graph, graph).same


def test_graphed_callables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match="takes autograd apart"):
        taken(tmp_path, "torch.cuda.make_graphed_callables(model, (x,))")


def test_recomputed_regions_name_cuda_too(tmp_path: Path) -> None:
    for way in ("True", "False"):
        graph = taken(
            tmp_path,
            f"""
def block(x):
    return (x * torch.ones(32, device="cuda")).exp()
z = x.cuda().requires_grad_()
torch.utils.checkpoint.checkpoint(block, z, use_reentrant={way}).sum().backward()
""",
        ).graph
        assert len(named(graph, "aten.exp")) == 2


def test_literals_keep_their_values(tmp_path: Path) -> None:
    graph = taken(
        tmp_path,
        """
z = x.cuda() * torch.tensor(2.0) + torch.tensor([0.0] * 31 + [5.0], device="cuda")
return z - z.new_tensor([1.0])
""",
    ).graph
    (held,) = (d for d in graph.tensors if d.value is not None)
    assert held.value == (*[0.0] * 31, 5.0)
    assert [op.attributes["fill_value"] for op in named(graph, "aten.full")] == [2.0, 1.0]
    assert not named(graph, "aten.empty")
    assert len(named(graph, "aten._to_copy")) == 3
    assert compare(graph, graph).same


def test_lists_of_indices_keep_their_values(tmp_path: Path) -> None:
    graph = taken(tmp_path, "return x.cuda()[:, [-1, 0, 3]]").graph
    assert [d.value for d in graph.tensors if d.value is not None] == [(-1, 0, 3)]
    assert not named(graph, "aten.empty")
    assert compare(graph, graph).same


def test_literals_that_are_too_large_are_told() -> None:
    values = list(range(2000))
    notes = capture(lambda: torch.tensor(values).to("meta") + 1).notes
    assert any("more than 1024 elements (1)" in note for note in notes)


def test_complex_literals_are_told() -> None:
    notes = capture(lambda: torch.tensor([1j, 2.0]).to("meta") + 1).notes
    assert any("complex literals (1): not kept" in note for note in notes)


class Tied(torch.nn.Module):
    """One table for words in and words out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(9, 4)
        self.head = torch.nn.Linear(4, 9, bias=False)
        self.head.weight = self.words.weight


@pytest.mark.parametrize("early", [True, False])
def test_ties_that_a_move_to_meta_may_have_lost_are_told(early: bool) -> None:
    model = Tied().to("meta" if early else "cpu")
    words = torch.arange(4)

    def step() -> torch.Tensor:
        model.to("meta")
        return model.head(model.words(words.to("meta")))

    told = [note for note in capture(step).notes if "untie" in note]
    assert len(told) == early
    assert all("head.weight and words.weight" in note for note in told)


def test_classes_of_cuda_stay_classes(tmp_path: Path) -> None:
    taken(
        tmp_path,
        """
z = torch.zeros(batch, 3, device="cuda:0")
for known in (torch.cuda.CUDAGraph, torch.cuda.Stream, torch.cuda.Event):
    assert isinstance(known, type) and (known | None) and not isinstance(z, known)
return z + 1
""",
    )


BEGUN = """
z = x.cuda()
a = model[0].cuda()(z)
a.sum().backward()
torch.cuda.set_stream(side)
"""


def test_a_step_runs_on_the_stream_that_is_current_when_it_begins(tmp_path: Path) -> None:
    graph = taken(tmp_path, BEGUN).graph
    assert [stream.name for stream in graph.streams] == ["stream1"]
    assert {op.stream for op in graph.walk()} == {"stream1"}


def test_a_stream_around_the_step_is_its_own(tmp_path: Path) -> None:
    around = HEAD.replace("    def step():", "    torch.cuda.set_stream(side)\n\n    def step():")
    graph = taken(tmp_path, around.format("        return (x.cuda() + 1).sum()")).graph
    assert {op.stream for op in graph.walk()} == {"stream1"}


def test_a_step_begins_on_the_stream_that_a_real_card_is_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda: "default")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "side")
    graph = capture(lambda: torch.ones(2, device="cuda") + 1).graph
    assert {op.stream for op in graph.walk()} == {"stream1"}
