"""Figures that a trace records are read, not modelled: bytes of copies, arguments of calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from irgraph.analyze.roofline import works_of
from irgraph.anonymise.renaming import Anonymiser
from irgraph.anonymise.traces import anonymous_trace
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import Tree, build_tree
from irgraph.capture.kineto.reading.trace import recorded_values
from irgraph.report.roofline import CallWork
from tests.capture.kineto.builder import Event, host, kernel, text

FLOATS = ["float", "float", "Scalar"]
LINKS = [
    ("Memcpy HtoD (Pinned -> Device)", 40_000_000),
    ("Memcpy DtoH (Device -> Pageable)", 40_000_000),
    ("Memset (Device)", 40_000_000),
    ("Memcpy DtoD (Device -> Device)", 80_000_000),
]
CONVOLUTION = {
    "Input Dims": [[32, 3, 224, 224], [64, 3, 3, 3], [], [], [], [], []],
    "Input type": ["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar"],
}


def tree(tmp_path: Path, events: list[Event]) -> Tree:
    path = tmp_path / "trace.json"
    path.write_text(text(events, indent=False))
    return build_tree(read_kineto(path))


def call(tmp_path: Path, name: str, work: Event, **args: Any) -> CallWork:
    launch = host("cuda_runtime", "cudaLaunchKernel", 120, 10, correlation=7)
    (only,), _ = works_of([tree(tmp_path, [host("cpu_op", name, 100, 60, **args), launch, work])])
    return only


def copy(name: str, nbytes: int | str) -> Event:
    kind = "gpu_memset" if "Memset" in name else "gpu_memcpy"
    event = {**kernel(name, 140, 1000, 7), "cat": kind}
    event["args"] |= {"bytes": nbytes, "memory bandwidth (GB/s)": 40.0}
    return event


@pytest.mark.parametrize(("name", "moved"), LINKS)
@pytest.mark.parametrize("recorded", [40_000_000, "40000000"])
def test_copies_move_their_recorded_bytes(
    tmp_path: Path, name: str, moved: int, recorded: int | str
) -> None:
    """A link is crossed once; a copy within a device's memory reads and writes it."""
    shapes = {"Input Dims": [[10_000_000], [10_000_000], []], "Input type": FLOATS}
    assert call(tmp_path, "aten::copy_", copy(name, recorded), **shapes).nbytes == moved


def test_copies_outside_operators_move_their_recorded_bytes(tmp_path: Path) -> None:
    launch = host("cuda_runtime", "cudaMemcpyAsync", 120, 10, correlation=7)
    (only,), _ = works_of([tree(tmp_path, [launch, copy(LINKS[0][0], 4096)])])
    assert only.nbytes == 4096


@pytest.mark.parametrize(
    ("values", "positions"),
    [
        (["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "1"], 112 * 112),
        (["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "1"], 222 * 222),
        (["", "", "", "[1]", "[2]", "[2]", "1"], 224 * 224),
    ],
)
def test_convolutions_have_their_recorded_windows(
    tmp_path: Path, values: list[str], positions: int
) -> None:
    work = kernel("implicit_convolve_sgemm", 140, 300, 7)
    found = call(tmp_path, "aten::conv2d", work, **CONVOLUTION, **{"Concrete Inputs": values})
    assert found.flop == 2 * 32 * 64 * positions * 27
    assert found.nbytes == 4 * (32 * 3 * 224 * 224 + 64 * 27 + 32 * 64 * positions)


def test_a_convolution_without_recorded_windows_has_no_count(tmp_path: Path) -> None:
    work = kernel("implicit_convolve_sgemm", 140, 300, 7)
    assert call(tmp_path, "aten::conv2d", work, **CONVOLUTION).flop is None


def test_recorded_values() -> None:
    text = b'["", "3", "0.5", "True", "[1, 2]", "[1, x]", "Half", "[[1]]", "9"]'
    assert recorded_values(text) == [None, 3, 0.5, True, (1, 2), None, None, None, 9]
    assert recorded_values(b"{") == recorded_values(b"7") == []


def ranged(nbytes: object, **more: object) -> list[Event]:
    launch = host("cuda_runtime", "hipMemcpyAsync", 105, 10, correlation=7)
    launch["args"] |= {"bytes": nbytes, **more}
    return [host("cpu_op", "aten::copy_", 100, 20), launch, copy(LINKS[3][0], 9216)]


def test_a_number_written_as_text_is_no_damage(tmp_path: Path) -> None:
    """ROCm's profiler writes the bytes of its calls so."""
    for nbytes, more in (("9216", {}), (9216, {"correlation": "7"})):
        trace = tree(tmp_path, ranged(nbytes, **more)).trace
        assert "K09" not in trace.health.counts
        assert trace.columns["correlation"].tolist().count(7) == 2


def test_a_text_that_is_no_number_is_reported(tmp_path: Path) -> None:
    assert "K09" in tree(tmp_path, ranged(9216, correlation="seven")).trace.health.counts


def test_anonymised_traces_retain_plain_values() -> None:
    values = ["", "[2, 2]", "True", "0.1", "secret", "[secret]"]
    event = host("cpu_op", "aten::conv2d", 100, 60, **{"Concrete Inputs": values})
    (copied,) = anonymous_trace({"traceEvents": [event]}, Anonymiser())["traceEvents"]
    assert copied["args"]["Concrete Inputs"] == ["", "[2, 2]", "True", "0.1", "", ""]


def test_shapes_that_no_tensor_can_have_are_not_counted(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[2**40, 2**40], [4]], "Input type": ["float", "float"]}
    work = call(tmp_path, "aten::add", kernel("add", 140, 1000, 7), **shapes)
    assert (work.flop, work.nbytes) == (None, None)
