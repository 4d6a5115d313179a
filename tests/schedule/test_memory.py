"""Peak memory: lifetimes of buffers, and torch's own tracker on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from costmodels.evaluate.dlrm_v100 import dlrm
from irgraph.ir.resize import with_dims
from irgraph.schedule.memory.peak import CONTEXT, OTHER_WORKSPACE, Memory, Peaks, peak_memory
from irgraph.text import parse

STEP = """
model "m" { format = 1 }

device @gpu0 "v100"
input %x : f32[1000] in $b1
param %w "w" : f32[250] in $b2

%a = aten.relu(%x) : f32[1000] in $b3
%v = aten.view(%a, size = [10, 100]) : f32[10, 100] in $b3
%h = aten.relu(%x) : f32[1000] @cpu in $b4
%c = aten.sum(%v) : f32[] in $b5
autograd.SumBackward0(%c) on backward phase backward {
  %g = aten.mul(%w, %c) : f32[250] in $b6
}
%d = aten.relu(%x) : f32[2000] in $b7
aten.add_(%w!, %g) phase optimizer
"""


def test_buffers_live_from_what_makes_them_to_what_touches_them_last() -> None:
    found = peak_memory(parse(STEP), rounded=1)
    assert found.before == 4000 + 1000
    assert found.at is not None
    assert found.at.name == "aten.relu"
    # what exists before, the gradient that the optimizer reads, and the last result
    assert found.peak == 5000 + 1000 + 8000
    kinds = {"inputs": 4000, "parameters": 1000, "gradients": 1000, "activations": 8000}
    assert dict(found.by_kind) == kinds


def test_a_view_keeps_its_buffer_and_other_devices_do_not_count() -> None:
    text = "\n".join(line for line in STEP.splitlines() if not line.startswith("%d"))
    found = peak_memory(parse(text), rounded=1)
    assert found.peak == 5000 + 4000 + 4
    assert peak_memory(parse(text), "cpu", rounded=1).peak == 4000


def test_sizes_are_rounded_as_the_allocator_does() -> None:
    assert peak_memory(parse(STEP)).peak == 4096 + 1024 + 1024 + 8192


def test_a_step_fits_with_workspace_and_context() -> None:
    memory = Memory(2**30, None, {}, 0)
    assert memory.needs("volta") == 2**30 + OTHER_WORKSPACE + CONTEXT
    assert memory.needs("hopper") == 2**30 + 32 * 2**20 + CONTEXT
    assert memory.fits(2**31, "volta")
    assert not memory.fits(2**30 + 2**29, "volta")


def _config(text: str) -> int:
    """Return the bytes that a ``CUBLAS_WORKSPACE_CONFIG`` asks for: pairs of KiB and a count."""
    numbers = [int(n) for n in text.strip(":").split(":")]
    return sum(kib * 2**10 * count for kib, count in zip(numbers[::2], numbers[1::2], strict=True))


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        # torch, CublasHandlePool.cpp: parseChosenWorkspaceSize, and for AMD its default in KiB
        ("volta", _config(":4096:2:16:8")),
        ("ampere", _config(":4096:2:16:8")),
        ("hopper", _config(":4096:8")),
        ("blackwell", _config(":4096:8")),
        ("cdna2", 32 * 1024 * 1024),
        ("cdna3", 128 * 1024 * 1024),
    ],
)
def test_a_workspace_is_as_large_as_torch_makes_it(architecture: str, expected: int) -> None:
    context = 512 * 2**20
    assert Memory(0, None, {}, 0).needs(architecture) == expected + context
    assert Memory(0, None, {}, 0).fits(expected + context, architecture)


def test_an_empty_step_needs_what_is_declared() -> None:
    text = STEP.split("%a = ")[0]
    assert peak_memory(parse(text), rounded=1).peak == 5000


def mlp(torch: Any, batch: int) -> Callable[[], None]:
    layers = [torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)]
    return training(torch, torch.nn.Sequential(*layers), torch.rand(batch, 256), torch.optim.Adam)


def convolutions(torch: Any, batch: int) -> Callable[[], None]:
    nn = torch.nn
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(16 * 30 * 30, 10))
    return training(torch, net, torch.rand(batch, 3, 32, 32), torch.optim.SGD)


def training(torch: Any, net: Any, inputs: Any, optimizer: Any) -> Callable[[], None]:
    classes = torch.randint(10, (len(inputs),))
    optimizer = optimizer(net.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(inputs), classes).backward()
        optimizer.step()

    step.model = net  # type: ignore[attr-defined]
    step()
    optimizer.zero_grad()
    return step


def tracked(torch: Any, step: Callable[[], None]) -> int:
    """Return how far torch's own tracker saw memory rise during a step, in bytes."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        step()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@pytest.mark.long
@pytest.mark.parametrize("batch", [16, 512])
@pytest.mark.parametrize("model", [mlp, convolutions])
def test_the_peak_is_what_torch_tracks_on_the_cpu(
    model: Callable[[Any, int], Callable[[], None]], batch: int
) -> None:
    import torch

    from irgraph.capture.live import capture

    measured = tracked(torch, model(torch, batch))
    found = peak_memory(capture(model(torch, batch), device="cpu").graph, rounded=1)
    assert found.peak - found.before == pytest.approx(measured, rel=0.02)


def test_peaks_at_many_sizes_are_those_at_each() -> None:
    graph = dlrm("DLRM_MLPerf", 2048)
    sizes = np.array([1, 7, 64, 2048, 5000])
    wanted = [peak_memory(with_dims(graph, {"B": int(size)})).peak for size in sizes]
    assert Peaks(graph).bytes_at({"B": sizes}).tolist() == wanted
    assert Peaks(graph).bytes_at({}).tolist() == [peak_memory(graph).peak]
