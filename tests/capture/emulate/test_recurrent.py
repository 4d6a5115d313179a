"""Recurrent layers are captured as one call of cuDNN, which computes what torch's layers do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import irgraph
from costmodels.devices.library import load_device
from costmodels.pricing.price import price
from irgraph.execute import compare, execute

torch = pytest.importorskip("torch")

from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402

LENGTHS = [9, 8, 7, 5, 3, 1]


def train(kind: str, packed: bool, device: str, **options: Any) -> Callable[[], object]:
    """Return a step that trains two layers and a head on six sequences of nine steps."""
    torch.manual_seed(1)
    layer = getattr(torch.nn, kind)(12, 16, 2, batch_first=True, **options)
    width = (options.get("proj_size") or 16) * (2 if options.get("bidirectional") else 1)
    model = torch.nn.ModuleDict({"layer": layer, "head": torch.nn.Linear(width, 4)}).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, foreach=True)
    data = torch.randn(6, 9, 12).to(device)

    def step() -> object:
        optimizer.zero_grad()
        given = pack_padded_sequence(data, torch.tensor(LENGTHS), True) if packed else data
        made = model["layer"](given)[0]
        made = pad_packed_sequence(made, batch_first=True)[0] if packed else made
        loss = model["head"](made).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step.model, step.data = model, data  # type: ignore[attr-defined]
    return step


FORMS = [
    ("LSTM", False, {}), ("GRU", False, {}), ("RNN", False, {}), ("LSTM", True, {}),
    ("RNN", False, {"nonlinearity": "relu"}), ("LSTM", False, {"bidirectional": True}),
    ("LSTM", False, {"proj_size": 5}), ("GRU", False, {"bias": False}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "packed", "options"), FORMS)
@pytest.mark.filterwarnings("ignore:.*proj_size.*", "ignore:.*not implemented.*")
def test_the_captured_step_leaves_what_torch_leaves(
    kind: str, packed: bool, options: dict[str, Any]
) -> None:
    captured = irgraph.capture(train(kind, packed, "meta", **options))
    names = [op.name for op in captured.graph.leaves()]
    assert names.count("aten._cudnn_rnn") == names.count("aten._cudnn_rnn_backward") == 1
    assert not any(line.startswith("aten.lstm") for line in captured.differing)
    assert price(captured.graph, load_device("a100")).unknown == ()
    real: Any = train(kind, packed, "cpu", **options)
    parameters = dict(real.model.named_parameters())
    named = {d.tensor.name: d.label for d in captured.graph.tensors if d.label in parameters}
    assert len(named) == len(parameters)
    given = {name: parameters[label].detach().clone() for name, label in named.items()}
    (data,) = (d.tensor.name for d in captured.graph.tensors if d.tensor.shape == (6, 9, 12))
    left = execute(captured.graph, {**given, data: real.data})
    loss = real()
    assert torch.allclose(left[captured.graph.returned[0].name], loss)
    for name, label in named.items():
        assert not torch.equal(given[name], parameters[label])
        assert torch.allclose(left[name], parameters[label], atol=1e-6), label


def test_dropout_between_layers_is_the_same_in_the_gradient() -> None:
    graph = irgraph.capture(train("LSTM", False, "meta", dropout=0.5)).graph
    assert compare(graph, graph).same


def test_autocast_runs_the_layer_in_half_precision() -> None:
    step = train("GRU", False, "meta")

    def mixed() -> object:
        with torch.autocast("cuda", torch.bfloat16):
            return step()

    (call,) = (op for op in irgraph.capture(mixed).graph.leaves() if op.base == "_cudnn_rnn")
    assert {tensor.dtype for tensor in call.inputs} == {"bf16"}


def test_a_layer_for_inference_keeps_nothing_for_a_gradient() -> None:
    layer = torch.nn.LSTM(12, 16, 2, device="meta").eval()
    data = torch.empty(9, 6, 12, device="meta")

    def step() -> object:
        with torch.no_grad():
            return layer(data)

    def kept(graph: irgraph.Graph) -> int:
        (call,) = (op for op in graph.leaves() if op.base == "_cudnn_rnn")
        return int(call.outputs[3].numel)

    assert kept(irgraph.capture(step).graph) == 0
    # four gates and the cell's state of 16 floats, each step, sequence and layer
    trained = irgraph.capture(train("LSTM", False, "meta")).graph
    assert kept(trained) == 9 * 6 * 2 * 16 * (4 + 1) * 4


# hidden units, batch, steps, kind, milliseconds of the forward pass: DeepBench's README, Titan Xp;
# of the trained layer what 5.17 TFLOP/s make of 8 H^2 B T flop
PUBLISHED = [
    (1536, 4, 50, "LSTM", 6.93), (2816, 1, 1500, "GRU", 350.62), (2560, 2, 375, "GRU", 75.02),
    (1024, 128, 25, "LSTM", 8 * 1024**2 * 128 * 25 / 5.17e9),
]  # fmt: skip


@pytest.mark.parametrize(("hidden", "batch", "steps", "kind", "measured"), PUBLISHED)
def test_a_layer_costs_about_what_deepbench_measured(
    hidden: int, batch: int, steps: int, kind: str, measured: float
) -> None:
    layer = getattr(torch.nn, kind)(hidden, hidden, device="meta").eval()
    data = torch.empty(steps, batch, hidden, device="meta")
    with torch.no_grad():
        graph = irgraph.capture(lambda: layer(data)).graph
    found = irgraph.predict(graph, device="titan-xp").summary()["kernels"]["recurrent"]
    # DeepBench leaves the product with the inputs out
    assert found["time_us"] / 1e3 == pytest.approx(measured, rel=0.5)


# kind, batch, steps, inputs, hidden, microseconds of the kernels: H100 SXM 80 GB, torch 2.11
SMALL_LAYERS = [
    ("LSTM", 3, 24, 30, 30, 15.1), ("LSTM", 8, 53, 37, 21, 24.6), ("GRU", 2, 66, 125, 81, 46.1),
    ("LSTM", 7, 97, 85, 92, 76.8),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "batch", "steps", "inputs", "hidden", "measured"), SMALL_LAYERS)
def test_a_small_layer_walks_all_steps_in_one_kernel(
    kind: str, batch: int, steps: int, inputs: int, hidden: int, measured: float
) -> None:
    layer = getattr(torch.nn, kind)(inputs, hidden, device="meta").eval()
    data = torch.empty(steps, batch, inputs, device="meta")
    with torch.no_grad():
        graph = irgraph.capture(lambda: layer(data)).graph
    found = irgraph.predict(graph, device="h100").summary()["kernels"]["recurrent"]
    assert found["time_us"] == pytest.approx(measured, rel=0.35)


def test_registers_after_torch_has_its_own_kernel() -> None:
    """``torch.compile`` makes torch register kernels of its own, which 2.11 does not let go."""
    script = """
import torch._meta_registrations
import torch.library as library

usual = library.Library.impl

def careful(self, name, kernel, key="", *, with_keyset=False, allow_override=False):
    if f"aten/{name}/{key}" in library._impls and not allow_override:
        raise RuntimeError("there's already a kernel registered from python")
    library._impls.discard(f"aten/{name}/{key}")
    return usual(self, name, kernel, key, with_keyset=with_keyset)

library.Library.impl = careful
from irgraph.ir.torch_schemas.recurrent import register_recurrent
register_recurrent()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_graph_holds_the_bytes_that_a_layer_saves() -> None:
    """The check runs in f64, and copies the saved bytes as many as they were in f32."""
    captured = irgraph.capture(train("LSTM", False, "meta")).graph
    layer = "_, _, _, %r, _ = aten._cudnn_rnn*(...)"
    script = f"insert {{ %h = aten.clone(%r) }} after {layer} using %h for %r"
    after = irgraph.run_script(captured, script).graph
    (clone,) = (op for op in after.leaves() if op.name == "aten.clone")
    assert clone.outputs[0].dtype == "u8"
    assert compare(captured, after).same
