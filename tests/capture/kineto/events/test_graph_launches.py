"""Kernels that one launch of a CUDA graph lacks, by launches of the same graph in other steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.capture.kineto.reading.health import Health
from tests.capture.kineto.builder import START, STEP_US, STEPS, Event, host, kernel, write

GRAPHS = (("gemm", "relu", "gemm", "softmax", "gemm"), ("adam", "adam", "norm"))
TIMES = {"gemm": 60.0, "relu": 5.0, "softmax": 10.0, "adam": 20.0, "norm": 8.0, "tanh": 30.0}


def graph(step: int, position: int, names: tuple[str, ...]) -> list[Event]:
    """Return a graph launch of a step with kernels of these names."""
    begin = START + step * (STEP_US + 10) + 20 + 400 * position
    number = 10 * step + position + 1
    found = [
        host("cpu_op", "aten::replay", begin, 40),
        host("cuda_runtime", "cudaGraphLaunch", begin + 5, 20, correlation=number),
    ]
    at = begin + 50.0
    for name in names:
        found.append(kernel(f"{name}_kernel", at, TIMES[name], number))
        at += TIMES[name] + 1
    return found


def trace(changed: dict[int, tuple[tuple[str, ...], ...]]) -> list[Event]:
    """Return a trace of steps with two graph launches each; some steps have other kernels."""
    found: list[Event] = []
    for step in range(STEPS):
        at = START + step * (STEP_US + 10)
        found.append(host("user_annotation", f"ProfilerStep#{step + 5}", at, STEP_US))
        for position, names in enumerate(changed.get(step, GRAPHS)):
            found += graph(step, position, names)
    return found


def health(folder: Path, found: list[Event]) -> Health:
    read = read_kineto(write(folder, lambda _: found))
    build_tree(read)
    return read.health


@pytest.mark.parametrize("step", range(STEPS))
def test_a_kernel_of_a_graph_that_is_missing_is_counted_by_its_time(
    tmp_path: Path, step: int
) -> None:
    fewer = (GRAPHS[0][:-1], GRAPHS[1])
    result = health(tmp_path, trace({step: fewer}))
    assert result.exit_code == 3 and result.counts["K34"] == 1
    assert f"1 kernels of graph launches of step {step + 5}" in result.details["K34"]
    assert "of about 60 us of device time" in result.details["K34"]


def test_each_step_may_lack_another_kernel(tmp_path: Path) -> None:
    without_gemm = (("gemm", "relu", "softmax", "gemm"), GRAPHS[1])
    without_adam = (GRAPHS[0], ("adam", "norm"))
    result = health(tmp_path, trace({0: without_gemm, 2: without_adam}))
    assert result.counts["K34"] == 2


def test_a_kernel_of_a_name_of_its_own_may_be_missing(tmp_path: Path) -> None:
    result = health(tmp_path, trace({1: (("gemm", "gemm", "softmax", "gemm"), GRAPHS[1])}))
    assert result.counts["K34"] == 1


@pytest.mark.parametrize(
    "other",
    [
        GRAPHS,
        (("tanh", "relu", "softmax"), GRAPHS[1]),
        (("gemm", "tanh", "gemm", "softmax", "gemm"), GRAPHS[1]),
    ],
    ids=["the same", "another graph", "another kernel"],
)
def test_sound_traces_have_no_finding(tmp_path: Path, other: tuple[tuple[str, ...], ...]) -> None:
    assert "K34" not in health(tmp_path, trace({1: other})).counts
