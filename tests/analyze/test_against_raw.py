"""Every step that `analyze` shows is what the file says, or is said not to be."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from irgraph.analyze import Analysis, analyze
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from tests.analyze import raw

TRACES = (
    "dlrm_8xV100/kineto_rank0", "dlrm_8xV100/kineto_rank1", "dlrm_4xV100_overlap/kineto_rank0",
    "mlp_RTX2080Ti/kineto", "resnet50_V100/kineto_workers4", "simple_add_A100/kineto",
    "formats/kineto_alexnet_A100", "formats/kineto_amd_mi250", "formats/kineto_event_sync_A100",
    "formats/kineto_event_sync_multi_stream_A100", "formats/kineto_resnet50_ddp_A100",
    "formats/kineto_triton_A100",
)  # fmt: skip
pytestmark = pytest.mark.data

Events = list[dict[str, Any]]


def unmarked(events: Events) -> Events:
    """Take the profiler's marks out."""
    return [e for e in events if not str(e.get("name", "")).startswith("ProfilerStep")]


def without_late_kernels(events: Events) -> Events:
    """Take half of the kernels out, as a profiler does whose buffer is full."""
    kernels = [id(e) for e in events if e.get("cat") in ("kernel", "Kernel")]
    gone = set(kernels[len(kernels) // 2 :])
    return [e for e in events if id(e) not in gone]


def unchanged(events: Events) -> Events:
    """Keep the trace as it is."""
    return events


def written(path: Path, change: Callable[[Events], Events], folder: Path) -> Path:
    """Write a changed copy of a trace."""
    text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
    trace = json.loads(text, strict=False)
    trace["traceEvents"] = change(trace["traceEvents"])
    copy = folder / "trace.json"
    copy.write_text(json.dumps(trace))
    return copy


def analysed(path: Path) -> tuple[Analysis, int]:
    """Return the analysis of a trace and the exit code of the command."""
    tree = build_tree(read_kineto(path))
    return analyze([tree]), tree.trace.health.exit_code


@pytest.mark.parametrize("change", [unchanged, unmarked, without_late_kernels])
@pytest.mark.parametrize("name", TRACES)
def test_every_step_is_what_the_file_says(
    name: str, change: Callable[[Events], Events], data_dir: Path, tmp_path: Path
) -> None:
    path = written(data_dir / f"traces/{name}.json.gz", change, tmp_path)
    found, code = analysed(path)
    events = raw.read(path)
    work, marks = raw.on_device(events), raw.marked(events)
    stretches = marks or {0: raw.whole(events)}
    assert len(found.steps) == len(stretches)
    for step in found.steps:
        first, last = stretches[step.step]
        assert step.time == pytest.approx(float(last - first), rel=1e-3)
        if step.on_device:
            # clocks of device and host are aligned where kernels precede their launches
            allowed = 0.01 if code else 1e-3
            active = raw.busy(work, (first, last))
            assert step.active == pytest.approx(active, rel=allowed, abs=1.0)
    if change is without_late_kernels and len(work) > 4:
        assert code == 3, "half of the kernels are missing, and nothing is said"


@pytest.mark.parametrize("name", TRACES)
def test_the_share_of_the_device_time_is_true(name: str, data_dir: Path) -> None:
    path = data_dir / f"traces/{name}.json.gz"
    found, code = analysed(path)
    events = raw.read(path)
    work = raw.on_device(events)
    stretches = (raw.marked(events) or {0: raw.whole(events)}).values()
    total = float(sum(b - a for a, b in work))
    inside = float(
        sum(max(0, min(b, last) - max(a, first)) for a, b in work for first, last in stretches)
    )
    assert found.covered == pytest.approx(inside / total, abs=2e-3)
    assert code == 3 or inside / total >= 0.95


@pytest.mark.parametrize("share", [0.35, 0.6, 0.8, 0.97])
@pytest.mark.parametrize("name", ["resnet50_V100/kineto_workers4", "dlrm_8xV100/kineto_rank1"])
def test_steps_of_a_cut_file_are_whole_or_said_not_to_be(
    name: str, share: float, data_dir: Path, tmp_path: Path
) -> None:
    path = data_dir / f"traces/{name}.json.gz"
    text = gzip.decompress(path.read_bytes())
    cut = tmp_path / "cut.json"
    cut.write_bytes(text[: int(share * len(text))])
    found, code = analysed(cut)
    events = raw.read(path)
    work, marks = raw.on_device(events), raw.marked(events)
    assert code == 3
    for step in found.steps:
        if step.left_out != "cut off" and step.on_device:
            assert step.active == pytest.approx(raw.busy(work, marks[step.step]), rel=0.02), step
