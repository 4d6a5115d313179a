"""Profiles that today's torch records here, beside what torch itself makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from irgraph.analyze import analyze
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree

torch = pytest.importorskip("torch")


def profiled(path: Path, *, with_stack: bool) -> dict[str, tuple[float, float, int]]:
    """Record three training steps; return torch's own, total and count of each operator."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(32, 64)).sum().backward()
        optimizer.step()

    step()
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds, record_shapes=True, with_stack=with_stack) as p:
        for _ in range(3):
            step()
    p.export_chrome_trace(str(path))
    found: dict[str, tuple[float, float, int]] = {}
    rows: list[Any] = list(p.key_averages())
    for row in rows:
        found[row.key] = (row.self_cpu_time_total, row.cpu_time_total, row.count)
    return found


@pytest.mark.parametrize("with_stack", [False, True])
def test_host_times_are_those_that_torch_gives(with_stack: bool, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    theirs = profiled(path, with_stack=with_stack)
    tree = build_tree(read_kineto(path))
    assert tree.trace.health.reasons() == []
    ours = analyze([tree]).host
    for name in ("aten::addmm", "aten::mm", "aten::t", "aten::linear", "aten::copy_"):
        own, whole, calls = ours[name]
        assert calls == theirs[name][2]
        assert own == pytest.approx(theirs[name][0], rel=0.02, abs=1.0)
        assert whole == pytest.approx(theirs[name][1], rel=0.02, abs=1.0)
