"""Hooks of gradients run where torch runs them: before a gradient is kept."""

from __future__ import annotations

from pathlib import Path

from irgraph.capture.live import capture_file
from irgraph.execute import execute

PROGRAM = """
import torch
from torch import nn

def train(batch, device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)).to(device)
    model[0].weight.register_hook(lambda g: g.clamp(-0.01, 0.01))
    model[2].weight.register_hook(lambda g: g * 3)
    model[2].register_full_backward_hook(lambda m, gi, go: tuple(g * 0.5 for g in gi))
    model[2].bias.register_post_accumulate_grad_hook(lambda p: (p.grad.mul_(0.9), None)[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.rand(batch, 8)

    def step():
        optimizer.zero_grad()
        y = model(x.to(device))
        y.register_hook(lambda g: g + 0.01)
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step.model, step.x = model, x
    return step
"""


def test_a_step_with_hooks_leaves_what_torch_leaves(tmp_path: Path) -> None:
    program = PROGRAM
    (tmp_path / "hooks.py").write_text(program)
    graph = capture_file(f"{tmp_path}/hooks.py:train", batch=4).graph
    names: dict[str, object] = {}
    exec(program, names)
    step = names["train"](4, "cpu")  # type: ignore[operator]
    labels = {k: v.detach().clone() for k, v in step.model.named_parameters()}
    assert len(graph.tensors) == 5  # nothing came from nowhere
    given = {d.tensor.name: labels.get(d.label, step.x) for d in graph.tensors}
    loss = step()
    left = execute(graph, given)
    assert left[graph.returned[0].name].allclose(loss)  # type: ignore[index]
    for declared in graph.tensors:
        if declared.label:
            wanted = step.model.get_parameter(declared.label).detach()
            assert left[declared.tensor.name].allclose(wanted, atol=1e-6)
