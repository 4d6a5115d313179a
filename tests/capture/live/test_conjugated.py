"""Operands that are conjugated by a mark are copied before a call: the copy is part of the step."""

from __future__ import annotations

from pathlib import Path

from irgraph.api import rewrite
from irgraph.capture.live import capture_file
from irgraph.execute import compare, execute

PROGRAM = """
import torch

def train(batch, device):
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 8).to(device)
    filter = torch.nn.Parameter(torch.randn(5, 2).to(device))
    x = torch.rand(batch, 8)

    def step():
        layer.zero_grad()
        filter.grad = None
        spectrum = torch.fft.rfft(layer(x.to(device))) * torch.view_as_complex(filter)
        y = torch.fft.irfft(spectrum, n=8)
        turned = (spectrum.detach() * 1j).imag.mean()
        loss = y.square().mean() + turned + torch.fft.fft(y).angle().mean()
        loss.backward()
        with torch.no_grad():
            for p in (*layer.parameters(), filter):
                p.sub_(p.grad, alpha=0.1)
        return loss

    step.model = torch.nn.ParameterDict({"w": layer.weight, "b": layer.bias, "f": filter})
    step.x = x
    return step
"""


def test_a_step_of_fourier_transforms_leaves_what_torch_leaves(tmp_path: Path) -> None:
    (tmp_path / "fourier.py").write_text(PROGRAM)
    graph = capture_file(f"{tmp_path}/fourier.py:train", batch=4).graph
    assert {d.tensor.dtype for d in graph.tensors} == {"f32"}  # no copy came from nowhere
    names: dict[str, object] = {}
    exec(PROGRAM, names)
    step = names["train"](4, "cpu")  # type: ignore[operator]
    labels = {k: v.detach().clone() for k, v in step.model.items()}
    given = {d.tensor.name: labels.get(d.label, step.x) for d in graph.tensors}
    loss = step()
    left = execute(graph, given)
    assert left[graph.returned[0].name].allclose(loss)  # type: ignore[index]
    for declared in graph.tensors:
        if declared.label:
            made, wanted = left[declared.tensor.name], step.model[declared.label].detach()
            assert made.allclose(wanted, atol=1e-6) and not made.equal(labels[declared.label])


def test_passes_keep_its_results(tmp_path: Path) -> None:
    (tmp_path / "fourier.py").write_text(PROGRAM)
    graph = capture_file(f"{tmp_path}/fourier.py:train", batch=4).graph
    for call in ("clean-copies", "hoist-h2d, remove-dead", "resize-batch(to = 6)"):
        assert compare(graph, rewrite(graph, call).graph).same
