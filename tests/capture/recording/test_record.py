"""Recording a step on the CPU."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

import pytest

from irgraph.capture.execution_trace.reader import read_execution_trace
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.capture.kineto.lower.join import join
from irgraph.capture.recording.folder import EXECUTION_TRACE, FIGURES, KINETO_TRACE
from irgraph.capture.recording.record import record
from irgraph.cli.main import main
from irgraph.diagnostics import IrgraphError

# the package's own name ``record`` may be the function
recording = sys.modules[record.__module__]

PROGRAM = """
import torch

def small(batch, device):
    layer = torch.nn.Linear(4, 2, device=device)
    data = torch.ones(batch, 4, device=device)
    return lambda: layer(data).relu().sum().backward()

def broken(batch, device):
    def step():
        raise RuntimeError("no luck")
    return step
"""

MODEL = """model "m" { format = 1 }

device @gpu0 "v100"
input %x : f32[8, 8] in $x

%y = aten.mm(%x, %x) : f32[8, 8] in $y
aten.relu_(%y!)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_folder_is_what_the_other_commands_read(program: Path, tmp_path: Path) -> None:
    found = record(f"{program}:small", tmp_path / "out", batch=8, steps=2, runs=3)
    assert len(found.times_us) == 3
    assert 0 < min(found.times_us) <= found.step_time_us <= max(found.times_us)
    figures = json.loads((tmp_path / "out" / FIGURES).read_text())
    assert figures["target"] == "program.py:small"
    tree = build_tree(read_kineto(tmp_path / "out" / KINETO_TRACE))
    assert len(tree.steps) == 2
    recording = read_execution_trace(tmp_path / "out" / EXECUTION_TRACE)
    assert join(recording, tree).rate("aten") == 1.0


def test_errors_of_the_program_name_their_line(program: Path, tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match="no luck") as caught:
        record(f"{program}:broken", tmp_path / "out", batch=8)
    assert "program.py:11" in str(caught.value)


def test_missing_device(program: Path, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(IrgraphError, match="no CUDA device"):
        record(f"{program}:small", tmp_path / "out", batch=8, device="cuda")


def test_folder_that_cannot_be_made(program: Path) -> None:
    with pytest.raises(IrgraphError, match="cannot make the folder"):
        record(f"{program}:small", program / "out", batch=8)


def test_a_full_disk_leaves_the_recording_before(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "out"
    place.mkdir()
    (place / EXECUTION_TRACE).write_text("{}")

    def cut(step: object, path: Path) -> None:
        path.write_text('{"nodes": [')

    monkeypatch.setattr(recording, "_observe", cut)
    with pytest.raises(IrgraphError, match=rf"{EXECUTION_TRACE}: error: could not be written"):
        record(f"{program}:small", place, batch=8, steps=1, runs=1)
    assert [(p.name, p.read_text()) for p in place.iterdir()] == [(EXECUTION_TRACE, "{}")]


def test_an_error_of_the_disk_names_the_folder(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> float:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(recording, "_profile", full)
    with pytest.raises(IrgraphError, match="out: error: No space left"):
        record(f"{program}:small", tmp_path / "out", batch=8, steps=1, runs=1)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_model_is_recorded_call_by_call(tmp_path: Path) -> None:
    (tmp_path / "m.ir").write_text(MODEL)
    words = ["record", str(tmp_path / "m.ir"), "-o", str(tmp_path / "out")]
    assert main([*words, "--runs", "2", "--steps", "3"]) == 0
    tree = build_tree(read_kineto(tmp_path / "out" / KINETO_TRACE))
    names = {tree.trace.names[int(tree.trace.columns["name"][row])] for row in tree.top_ops()}
    assert names == {"aten::mm", "aten::relu_"}
    assert main([*words, "--device", "cuda"]) == 2
