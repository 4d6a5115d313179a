"""The folder of a recording, given to the commands that read traces."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from irgraph.capture.recording.folder import FIGURES, KINETO_TRACE, figures
from irgraph.text import IrgraphError, parse
from tests.capture.kineto.builder import write

Run = Callable[..., Any]

PROGRAM = """
import torch

def small(batch, device):
    layer = torch.nn.Linear(4, 2, device=device)
    data = torch.ones(batch, 4, device=device)
    return lambda: layer(data).relu().sum().backward()
"""


@pytest.fixture
def folder(run: Run, tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    out = tmp_path / "recorded"
    target = f"{tmp_path / 'program.py'}:small"
    result = run("record", target, "--batch", "8", "--steps", "2", "--runs", "2", "-o", out)
    assert result.code == 0
    return out


@pytest.fixture
def device_folder(tmp_path: Path) -> Path:
    """A folder with the Kineto trace of a device."""
    found = tmp_path / "device"
    found.mkdir()
    write(found, name=KINETO_TRACE)
    return found


def test_lower_joins_both_traces_and_takes_the_cpu_for_the_device(run: Run, folder: Path) -> None:
    result = run("lower", folder)
    assert result.code == 0
    assert "joined" in result.err and "captured on the CPU" in result.err
    assert "no device events" in result.err
    graph = parse(result.out)
    assert graph.name == "recorded"
    assert {t.device for t in graph.by_name.values()} == {"gpu0"}


def test_predict_lowers_the_folder(run: Run, folder: Path) -> None:
    result = run("predict", folder, "--json")
    assert "is not compared" in result.err
    found = json.loads(result.out)
    assert found["measured_us"] is None
    assert found["gpu_active_us"] > 0


def test_an_accelerators_time_stands_beside_the_prediction(run: Run, folder: Path) -> None:
    path = folder / FIGURES
    path.write_text(json.dumps({**json.loads(path.read_text()), "device": "cuda"}))
    found = json.loads(run("predict", folder, "--json").out)
    assert found["measured_us"] == figures(str(folder)).step_time_us


def test_the_time_of_one_device_does_not_stand_beside_another(run: Run, folder: Path) -> None:
    path = folder / FIGURES
    path.write_text(json.dumps({**json.loads(path.read_text()), "device": "cuda"}))
    result = run("predict", folder, "--device", "a100", "--json")
    assert json.loads(result.out)["measured_us"] is None
    assert "recorded on another device" in result.err


def test_a_lowered_recording_is_predicted_as_a_capture_is(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    target = f"{tmp_path / 'program.py'}:small"
    run("capture", target, "--batch", "8", "--device", "cpu", "-o", tmp_path / "captured.ir")
    models = (tmp_path / "captured.ir", folder)
    captured, recorded = (json.loads(run("predict", m, "--json").out) for m in models)
    assert recorded["step_time_us"] == pytest.approx(captured["step_time_us"], rel=1e-3)


@pytest.mark.parametrize("command", ["analyze", "replay", "overheads"])
def test_commands_read_the_kineto_trace_of_a_folder(
    run: Run, device_folder: Path, command: str
) -> None:
    assert run(command, device_folder).code == 0


def test_replay_takes_overheads_of_a_folder(run: Run, device_folder: Path) -> None:
    assert run("replay", device_folder, "--overheads", device_folder).code == 0


@pytest.mark.parametrize("command", ["analyze", "lower", "overheads", "predict", "replay"])
def test_a_folder_without_a_recording(run: Run, tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path)
    assert result.code == 4
    assert "the folder holds no kineto.json.gz" in result.err


def test_figures_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / FIGURES).write_text("{}")
    with pytest.raises(IrgraphError, match="no figures of a recording"):
        figures(str(tmp_path))


def test_a_kineto_trace_of_the_cpu_lowers_to_a_model_with_device_work(
    run: Run, folder: Path
) -> None:
    result = run("lower", folder / KINETO_TRACE)
    assert "no device events" in result.err
    assert {t.device for t in parse(result.out).by_name.values()} == {"gpu0"}


def test_analyze_says_that_nothing_is_known_of_a_device(run: Run, folder: Path) -> None:
    result = run("analyze", folder)
    assert "no device events: the host alone was recorded" in result.err
    table_of_steps = result.out.partition("┘")[0]
    rows = [line.split("│")[4:-2] for line in table_of_steps.splitlines() if "│" in line]
    assert rows
    assert {cell.strip() for row in rows for cell in row} == {"-"}
    step = json.loads(run("analyze", folder, "--json").out)["steps"][0]
    assert step["step_us"] > 0
    assert (step["utilization"], step["gpu_active_us"]) == (None, None)
