"""Calls that may give an operand back, alone or in a list, are captured as what they computed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from irgraph.capture.execution_trace import lower_execution_trace
from irgraph.capture.live import capture
from irgraph.cli.main import main
from irgraph.execute import execute
from irgraph.ir.graph import Graph
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError, parse, print_graph

F = torch.nn.functional

ROWS, WIDTH, OUT = 8, 6, 4
Torch = Any


def same_twice(y: Torch) -> Torch:
    first = y[:1]
    return torch.broadcast_tensors(y, first, first)


def rnn(kind: str, states: int, gates: int) -> Callable[[Torch, Torch], Torch]:
    def call(y: Torch, x: Torch) -> Torch:
        start = [torch.zeros(1, ROWS, 3, device=x.device) for _ in range(states)]
        weights = [torch.full((gates * 3, n), 0.1, device=x.device) for n in (OUT, 3)]
        hidden = start if states > 1 else start[0]
        return getattr(torch, kind)(y[None], hidden, weights, False, 1, 0.0, True, False, False)

    return call


CALLS: dict[str, Callable[[Torch, Torch], Torch]] = {
    "broadcast_tensors": lambda y, x: torch.broadcast_tensors(y, x[:1, :OUT]),
    "broadcast_tensors of one twice": lambda y, _: same_twice(y),
    "broadcast_tensors of the same": lambda y, _: torch.broadcast_tensors(y, y),
    "mse_loss": lambda y, x: F.mse_loss(y, x[:, :1]),
    "l1_loss": lambda y, x: F.l1_loss(y, x[:, :1]),
    "smooth_l1_loss": lambda y, x: F.smooth_l1_loss(y, x[:, :1]),
    "huber_loss": lambda y, x: F.huber_loss(y, x[:, :1]),
    "atleast_1d": lambda y, _: torch.atleast_1d(y, y.sum()),
    "atleast_2d": lambda y, _: torch.atleast_2d(y, y.sum()),
    "atleast_3d": lambda y, _: torch.atleast_3d(y, y.sum()),
    "meshgrid": lambda y, _: torch.meshgrid(y[0], y[:, 0], indexing="ij"),
    "meshgrid of one": lambda y, _: torch.meshgrid(y[0], indexing="ij"),
    "contiguous": lambda y, _: y.contiguous(),
    "contiguous of a transpose": lambda y, _: y.t().contiguous(),
    "to": lambda y, _: y.to(torch.float32),
    "type_as": lambda y, x: y.type_as(x),
    "expand": lambda y, _: y.expand(ROWS, OUT),
    "broadcast_to": lambda y, _: torch.broadcast_to(y, (ROWS, OUT)),
    "reshape": lambda y, _: y.reshape(ROWS, OUT),
    "reshape of a transpose": lambda y, _: y.t().reshape(-1),
    "flatten": lambda y, _: y.flatten(1),
    "dropout of 0": lambda y, _: F.dropout(y, 0.0),
    "dropout in inference": lambda y, _: F.dropout(y, 0.5, training=False),
    "chunk of 1": lambda y, _: y.chunk(1),
    "split": lambda y, _: y.split([1, 3], 1),
    "tensor_split of 1": lambda y, _: y.tensor_split(1),
    "unbind": lambda y, _: y.unbind(0),
    "squeeze": lambda y, _: y.squeeze(),
    "movedim": lambda y, _: y.movedim(0, 0),
    "resolve_conj": lambda y, _: y.resolve_conj(),
    "real": lambda y, _: torch.real(y),
    "positive": lambda y, _: torch.positive(y),
    "sum_to_size": lambda y, _: y.sum_to_size(ROWS, OUT),
    "cat of one": lambda y, _: torch.cat([y]),
    "einsum of one": lambda y, _: torch.einsum("ij", y),
    "pad by 0": lambda y, _: F.pad(y, (0, 0)),
    "lstm": rnn("lstm", 2, 4),
    "gru": rnn("gru", 1, 3),
    "mul_ in place": lambda y, _: y.mul_(y.sigmoid()),
}
"""By name, a call on ``y = x @ w`` and the input ``x``."""

ONLY_META = {"lstm"}
"""Calls whose kernel on the CPU keeps what its backward reads only while autograd watches."""


def total(value: Torch) -> Torch:
    return value.sum() if isinstance(value, torch.Tensor) else sum(map(total, value))


def values() -> tuple[Torch, Torch]:
    made = torch.Generator().manual_seed(0)
    return torch.rand(ROWS, WIDTH, generator=made), torch.rand(WIDTH, OUT, generator=made)


def step_of(call: Callable[[Torch, Torch], Torch], x: Torch, w: Torch) -> Callable[[], Torch]:
    def step() -> Torch:
        w.grad = None
        loss = total(call(x @ w, x)).neg()
        loss.backward()
        return loss.detach()

    return step


def cases() -> Iterator[tuple[str, str]]:
    for name in CALLS:
        yield from ((name, device) for device in ("meta", "cpu")[: 2 - (name in ONLY_META)])


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(("name", "device"), list(cases()))
def test_what_is_captured_computes_what_eager_did(name: str, device: str) -> None:
    x, w = values()
    there = (x.to(device), w.to(device).requires_grad_())
    graph = capture(step_of(CALLS[name], *there), device=device).graph
    assert verify(graph) == []
    assert parse(print_graph(graph)) == graph
    assert_computes(graph, CALLS[name], x, w)


def assert_computes(
    graph: Graph, call: Callable[[Torch, Torch], Torch], x: Torch, w: Torch
) -> None:
    w = w.detach().clone().requires_grad_()
    loss = step_of(call, x, w)()
    by_shape = {tuple(x.shape): x, tuple(w.shape): w.detach()}
    before = [declared.tensor for declared in graph.tensors]
    assert sorted(tuple(t.shape) for t in before) == sorted(by_shape)
    made = execute(graph, {t.name: by_shape[tuple(t.shape)] for t in before}).values
    ops = list(graph.walk())
    captured = next(op for op in ops if op.name == "aten.neg").outputs[0].name
    gradient = next(op for op in ops if op.name == "autograd.AccumulateGrad").inputs[0].name
    torch.testing.assert_close(made[captured], loss)
    torch.testing.assert_close(made[gradient], w.grad)


def test_an_operand_in_a_list_is_no_result_of_the_call() -> None:
    x, w = (value.to("meta") for value in values())
    graph = capture(step_of(CALLS["broadcast_tensors"], x, w.requires_grad_())).graph
    call = next(op for op in graph.ops if op.name == "aten.broadcast_tensors")
    assert [t.name for t in call.inputs] == ["matmul1", "slice2"]
    assert [t.name for t in call.outputs] == ["broadcast_tensors1"]


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", ["broadcast_tensors", "mse_loss", "atleast_1d", "mul_ in place"])
def test_an_execution_trace_of_it_is_lowered(name: str, tmp_path: Path) -> None:
    from torch.profiler import ExecutionTraceObserver

    x, w = values()
    step = step_of(CALLS[name], x, w.requires_grad_())
    step()
    observer = ExecutionTraceObserver().register_callback(str(tmp_path / "et.json"))
    observer.start()
    step()
    observer.stop()
    observer.unregister_callback()
    graph = lower_execution_trace(tmp_path / "et.json").graph
    assert verify(graph) == []
    assert parse(print_graph(graph)) == graph
    assert not [d for d in graph.tensors if d.tensor.shape == (ROWS, OUT)]


def test_an_exported_program_of_it_is_lowered() -> None:
    from irgraph.capture.export import lower_export

    class Loss(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Torch) -> Torch:
            return total(torch.broadcast_tensors(x + 1, x[:1]))

    graph = lower_export(torch.export.export(Loss(), (values()[0],))).graph
    assert verify(graph) == []


def test_an_unsound_model_is_an_internal_error_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    live = importlib.import_module("irgraph.capture.live.step")
    honest = live._capture

    def broken(*given: object) -> object:
        found = honest(*given)
        return replace(found, graph=replace(found.graph, ops=found.graph.ops[1:]))

    monkeypatch.setattr(live, "_capture", broken)
    program = tmp_path / "step.py"
    program.write_text(
        "import torch\n"
        "def make(batch, device):\n"
        "    x = torch.ones(batch, device=device)\n"
        "    return lambda: (x + 1).sum()\n"
    )
    written = tmp_path / "model.ir"
    assert main(["capture", f"{program}:make", "--no-symbolic", "-o", str(written)]) == 70
    message = capsys.readouterr().err
    assert f"{program}: error: the step gives an invalid model: 1 rule is broken" in message
    assert "%add1 is used before it is defined" in message
    assert "a bug in irgraph" in message
    assert not written.exists()
    with pytest.raises(IrgraphError, match="an invalid model"):
        capture(lambda: torch.ones(2).add(1).sum(), device="cpu")
