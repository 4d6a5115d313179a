"""Host tables of a CPU's own traces: calls are their own launches and their own work."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from irgraph.capture.recording.folder import KINETO_TRACE
from irgraph.capture.recording.record import record
from irgraph.cli.main import main
from irgraph.overheads import load_host
from irgraph.overheads.cpu_calls import _operator_kind

PROGRAM = """
import torch

def small(batch, device):
    layer = torch.nn.Linear(4, 2, device=device)
    data = torch.ones(batch, 4, device=device)
    return lambda: layer(data).relu().sum().backward()
"""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", "work"),
        ("aten::add_", "work"),
        ("aten::_foreach_add_", "work"),
        ("aten::linear", "scope"),
        ("AddmmBackward0", "scope"),
        ("aten::t", "nothing"),
        ("aten::empty", "nothing"),
    ],
)
def test_what_computes_is_told_by_schemas(name: str, kind: str) -> None:
    assert _operator_kind(name) == kind


@pytest.mark.long
def test_a_cpu_trace_makes_a_table(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    record(f"{tmp_path}/program.py:small", tmp_path / "out", batch=8, steps=3, runs=1)
    table = tmp_path / "host.json"
    trace = str(tmp_path / "out" / KINETO_TRACE)
    assert main(["overheads", trace, "--profiler", "0,0", "-o", str(table)]) == 0
    file = load_host(str(table)).file
    assert file.architecture == "cpu"
    assert file.t4["call"].mean == 0.0
    assert file.t4["call"].count in (9, 18, 27)  # of each usual step nine
    assert file.ops["aten.linear"].launches == ("call",)
    linear, relu, node = (
        file.ops[name] for name in ("aten.linear", "aten.relu", "autograd.AddmmBackward0")
    )
    assert linear.t2 is not None and linear.t2.mean > 0  # torch calls aten::t before aten::addmm
    assert relu.t2 is not None and relu.t3 is not None and relu.whole is None
    assert (relu.t2.mean, relu.t3.mean) == (0.0, 0.0)
    assert node.t5 is not None  # between a product and the bias's sum
    assert node.t5.count in (1, 2, 3)
    assert msgspec.to_builtins(file)["ops"]["autograd.TBackward0"].keys() >= {"whole"}
