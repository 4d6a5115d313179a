"""What a step puts in place of what it found is left for its caller: no rewrite may lose it."""

from __future__ import annotations

from pathlib import Path

from irgraph.api import rewrite
from irgraph.capture.live import capture_file
from irgraph.execute import compare, execute

PROGRAM = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.other = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        y = self.layer(x)
        self.mean = self.mean * 0.9 + y.detach().mean(0) * 0.1
        return self.other(y)

class Own(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            late = self.state[p].get("late", torch.zeros_like(p))
            self.state[p]["late"] = late * 0.9 + p.grad
            if p.dim() == 1:
                p.data = p.data - 0.1 * late
            else:
                p.sub_(late, alpha=0.1)

def train(batch, device):
    torch.manual_seed(0)
    model, x = Net().to(device), torch.rand(batch, 8)
    optimizer = Own(model.parameters())

    def step():
        optimizer.zero_grad()
        loss = model(x.to(device)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step.model, step.optimizer, step.x = model, optimizer, x
    return step
"""


def test_new_memory_of_buffers_parameters_and_state_is_returned(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(PROGRAM)
    graph = capture_file(f"{tmp_path}/own.py:train", batch=4).graph
    shapes = sorted(tuple(map(int, t.shape)) for t in graph.returned or ())
    # the loss; the buffer; two biases and their states; the states of two weights
    assert shapes == [(), (4,), (4,), (4,), (4,), (4,), (4, 4), (4, 8)]
    after = rewrite(graph, "remove-dead, clean-copies").graph
    assert after.returned == graph.returned
    assert compare(graph, after).same


def test_it_is_what_torch_leaves(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(PROGRAM)
    graph = capture_file(f"{tmp_path}/own.py:train", batch=4).graph
    names: dict[str, object] = {}
    exec(PROGRAM, names)
    step = names["train"](4, "cpu")  # type: ignore[operator]
    step()
    labels = {**dict(step.model.named_parameters()), **dict(step.model.named_buffers())}
    late = [step.optimizer.state[p]["late"] for p in step.model.parameters()]
    given = {d.tensor.name: labels[d.label].detach().clone() for d in graph.tensors if d.label}
    for declared in graph.tensors:
        name, shape = declared.tensor.name, tuple(map(int, declared.tensor.shape))
        if name not in given and shape == (4, 8) and declared.tensor.device == "cpu":
            given[name] = step.x
        elif name not in given:
            given[name] = late.pop(next(i for i, t in enumerate(late) if tuple(t.shape) == shape))
    step()
    left = execute(graph, given)
    made = [left[t.name] for t in graph.returned or ()]
    for wanted in (step.model.mean, step.model.layer.bias, step.model.other.bias):
        assert any(t.shape == wanted.shape and t.allclose(wanted, atol=1e-6) for t in made)


LBFGS = """
import torch

def train(batch, device):
    model, x = torch.nn.Linear(8, 4).to(device), torch.rand(batch, 8)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def step():
        def closure():
            optimizer.zero_grad()
            loss = model(x.to(device)).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    step.model = model
    return step
"""


def test_an_optimizer_that_stops_on_a_made_up_value_is_told(tmp_path: Path) -> None:
    (tmp_path / "bfgs.py").write_text(LBFGS)
    captured = capture_file(f"{tmp_path}/bfgs.py:train", batch=4)
    assert any("updates no parameter" in note for note in captured.notes)
    real = capture_file(f"{tmp_path}/bfgs.py:train", batch=4, device="cpu", symbolic=False)
    assert not any("updates no parameter" in note for note in real.notes)
