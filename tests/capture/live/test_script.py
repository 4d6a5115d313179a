"""Training scripts and functions without arguments, captured as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from irgraph.capture.common.result import Capture
from irgraph.capture.live import capture_file
from irgraph.capture.live.target import is_program
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError

SETUP = """
import sys
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(640, 8), torch.randint(5, (640,)))
loader = DataLoader(data, 16)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""

UPDATE = """
    loss = functional.cross_entropy(model(x.cuda()), y.cuda())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

LOOP = f"{SETUP}\nfor x, y in loader:{UPDATE}"


def captured(
    folder: Path, text: str, name: str = "", *arguments: str, step_at: str = "update"
) -> Capture:
    path = folder / "train.py"
    path.write_text(text)
    target = f"{path}:{name}" if name else str(path)
    found = capture_file(target, arguments=arguments, step_at=step_at)
    assert verify(found.graph) == []
    return found


def calls(found: Capture) -> list[str]:
    return [op.name for op in found.graph.leaves() if not op.is_scope]


def test_a_script_is_captured_by_its_loader(tmp_path: Path) -> None:
    found = captured(tmp_path, LOOP)
    assert found.graph.dims == {"B": 16}
    assert found.graph.name == "train"
    assert calls(found).count("aten.addmm") == 2
    assert calls(found).count("aten._foreach_add_") == 1
    assert {d.tensor.name for d in found.graph.tensors} >= {"t_0_weight", "t_2_bias"}


def test_a_script_is_captured_at_one_size(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"{LOOP}    print(len(x), file=open({str(tmp_path / 'rows')!r}, 'a'))\n")
    found = capture_file(str(path), symbolic=False)
    assert not found.graph.dims
    assert not any("batch dimension" in note for note in found.notes)
    assert calls(found).count("aten.addmm") == 2
    assert set((tmp_path / "rows").read_text().split()) == {"16"}


def test_a_script_stops_where_no_more_steps_are_needed(tmp_path: Path) -> None:
    captured(tmp_path, f"{LOOP}\nopen({str(tmp_path / 'after')!r}, 'w')")
    assert not (tmp_path / "after").exists()


def test_a_script_is_captured_like_its_loop_with_marks(tmp_path: Path) -> None:
    from irgraph.capture.live import capturing

    alone = captured(tmp_path, LOOP)
    space: dict[str, object] = {}
    with capturing() as capture:
        space["capture"] = capture
        exec(f"{LOOP}\n    capture.step()\n", space)
    assert capture.result is not None
    assert calls(capture.result) == calls(alone)


@pytest.mark.long
def test_gradients_of_several_batches_are_one_step(tmp_path: Path) -> None:
    text = f"""{SETUP}
for number, (x, y) in enumerate(loader):
    functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
    if number % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""
    found = captured(tmp_path, text)
    assert calls(found).count("aten.addmm") == 8
    assert found.graph.dims == {"B": 16}


def test_two_optimizers_share_a_step(tmp_path: Path) -> None:
    text = f"""{SETUP}
other = torch.optim.SGD(model[0].parameters(), lr=0.1)
for x, y in loader:{UPDATE}
    functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
    other.step()
"""
    found = captured(tmp_path, text)
    assert calls(found).count("aten.addmm") == 4
    assert found.graph.dims == {"B": 16}


def test_a_second_optimizer_may_update_in_every_second_step(tmp_path: Path) -> None:
    text = f"""{SETUP}
other = torch.optim.Adam(model[0].parameters())
for number in range(100):
    model(torch.rand(16, 8).cuda()).sum().backward()
    other.step()
    if number % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
    (rarer,) = captured(tmp_path, text).graph.rarer
    assert rarer.settings["steps"] == "1/2"


def test_a_loop_without_a_loader_ends_steps_with_updates(tmp_path: Path) -> None:
    text = f"{SETUP}\nx, y = data.tensors\nwhile True:{UPDATE}"
    found = captured(tmp_path, text)
    assert calls(found).count("aten.addmm") == 2
    assert any("no batch dimension" in note for note in found.notes)


def test_one_batch_for_all_steps_is_a_loop_without_a_loader(tmp_path: Path) -> None:
    text = f"{SETUP}\nx, y = next(iter(loader))\nwhile True:{UPDATE}"
    assert calls(captured(tmp_path, text)).count("aten.addmm") == 2


def test_steps_end_with_batches_where_that_is_said(tmp_path: Path) -> None:
    text = f"{SETUP}\nfor x, y in loader:\n    model(x.cuda())"
    with pytest.raises(IrgraphError, match="--step-at batch"):
        captured(tmp_path, text)
    found = captured(tmp_path, text, step_at="batch")
    assert found.graph.dims == {"B": 16}
    assert calls(found).count("aten.addmm") == 2


def test_steps_end_with_backward_passes_where_that_is_said(tmp_path: Path) -> None:
    text = f"""{SETUP}
x, y = data.tensors
while True:
    functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.1)
    model.zero_grad()
"""
    with pytest.raises(IrgraphError, match="no optimizer made an update in 101 backward passes"):
        captured(tmp_path, text)
    found = captured(tmp_path, text, step_at="backward")
    assert calls(found).count("aten.addmm") == 2
    assert calls(found).count("aten.add_") == 4


def test_a_function_without_arguments_is_a_step(tmp_path: Path) -> None:
    text = f"{SETUP}\nx, y = data.tensors\ndef step():{UPDATE}\n    return loss"
    found = captured(tmp_path, text, "step")
    assert found.graph.name == "train_step"
    assert calls(found).count("aten.addmm") == 2
    assert {d.tensor.name for d in found.graph.tensors} >= {"t_0_weight", "t_2_bias"}
    assert found.graph.returned


def test_a_function_with_a_loop_that_ends_early_is_called_again(tmp_path: Path) -> None:
    text = f"""{SETUP}
def main():
    for number, (x, y) in enumerate(loader):
        if number == 2:
            break{UPDATE.replace(chr(10), chr(10) + "    ")}
"""
    found = captured(tmp_path, text, "main")
    assert calls(found).count("aten.addmm") == 2
    assert found.graph.dims == {"B": 16}


def test_masks_made_before_the_loop_keep_their_values(tmp_path: Path) -> None:
    text = f"""{SETUP}
mask = (torch.arange(16) < 5).cuda()
def step():
    return (torch.ones(16, 8).cuda() * 2.0)[mask].sum()
"""
    found = captured(tmp_path, text, "step")
    shapes = [r.shape for op in found.graph.leaves() if op.name == "aten.index" for r in op.results]
    assert shapes == [(5, 8)]


def test_nothing_is_saved(tmp_path: Path) -> None:
    text = f"{LOOP}\n    torch.save(model.state_dict(), {str(tmp_path / 'best.pt')!r})"
    (tmp_path / "best.pt").write_text("weeks of work")
    found = captured(tmp_path, text)
    assert (tmp_path / "best.pt").read_text() == "weeks of work"
    assert any("torch.save was skipped" in note for note in found.notes)


def test_a_script_has_its_arguments_and_neighbours(tmp_path: Path) -> None:
    (tmp_path / "sizes_beside.py").write_text("ROWS = 4")
    text = f"import sizes_beside\n{SETUP}\nassert __name__ == '__main__'\n" + (
        "loader = DataLoader(data, int(sys.argv[2]) * sizes_beside.ROWS)\n"
        f"for x, y in loader:{UPDATE}"
    )
    assert captured(tmp_path, text, "", "--rows", "8").graph.dims == {"B": 32}
    assert sys.argv[-1] != "8"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("print('no torch')", "no step was recorded"),
        ("import sys\nsys.exit()", "no step was recorded"),
        ("import sys\nsys.exit(3)", "train.py:2:1: error: the program failed: SystemExit: 3"),
        (f"{SETUP}\n1 / 0", "train.py:13:1: error: the program failed: ZeroDivisionError"),
    ],
)
def test_what_fails_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(IrgraphError) as raised:
        captured(tmp_path, text)
    assert message in str(raised.value)


def test_a_program_that_ends_too_soon_is_to_run_more_steps(tmp_path: Path) -> None:
    text = f"{SETUP}\nfor x, y in [data[:8]] * 2:{UPDATE}"
    with pytest.raises(IrgraphError) as raised:
        captured(tmp_path, text)
    assert "no step was recorded" in str(raised.value)
    assert "let the program run more steps: 1 ended" in str(raised.value)


def test_buckets_are_ordered_before_a_loop_without_a_loader_is_recorded(tmp_path: Path) -> None:
    group = "\ntorch.distributed.init_process_group()\n"
    group += "model = nn.parallel.DistributedDataParallel(model)\n"
    path = tmp_path / "train.py"
    path.write_text(f"{SETUP}{group}x, y = data[:16]\nfor _ in range(9):{UPDATE}")
    graph = capture_file(str(path), ranks=4, rank=1).graph
    (reduced,) = [op for op in graph.leaves() if "allreduce" in op.name]
    assert sum(t.numel for t in reduced.inputs) == 8 * 8 + 8 + 8 * 5 + 5


def test_a_distributed_program_needs_ranks(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match="--ranks 8 --rank 0"):
        captured(tmp_path, "import os\nos.environ['LOCAL_RANK']")


def test_a_loop_has_a_batch_size_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    with pytest.raises(IrgraphError, match="has a batch size of its own"):
        capture_file(str(tmp_path / "train.py"), batch=8)


@pytest.mark.parametrize("options", [{"arguments": ["3"]}, {"step_at": "batch"}])
def test_a_function_of_batch_and_device_has_no_loop(tmp_path: Path, options: Any) -> None:
    (tmp_path / "one.py").write_text("def f(batch, device): ...")
    with pytest.raises(IrgraphError, match="it takes no arguments"):
        capture_file(f"{tmp_path / 'one.py'}:f", **options)


@pytest.mark.parametrize(
    ("definition", "program"),
    [
        ("def f(): ...", True),
        ("def f(args=None): ...", True),
        ("def f(size): ...", True),
        ("def f(batch, device): ...", False),
        ("def f(batch=1, device='meta'): ...", False),
        ("def f(*given): ...", False),
        ("f = print", False),
    ],
)
def test_functions_of_batch_and_device_are_told_apart(
    tmp_path: Path, definition: str, program: bool
) -> None:
    path = tmp_path / "one.py"
    path.write_text(definition)
    assert is_program(f"{path}:f(size=1)") is program


@pytest.mark.long
def test_what_a_program_prints_is_not_the_model(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"print('begins')\n{LOOP}\n    print(loss)")
    command = [sys.executable, "-m", "irgraph", "capture", str(tmp_path / "train.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith('model "train"')
    assert "begins" in done.stderr
