"""The example of equal branches: what it is there for can be done to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph import rewrite
from irgraph.capture.live import capture_file

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "experts.py"


@pytest.mark.parametrize(
    ("name", "op", "count"),
    [
        ("batch-gemm", "irgraph.batched_gemm", 1),
        ("fuse-optimizer", "aten._fused_sgd_", 1),
        ("remove-dead", "aten.linear", 4),
    ],
)
def test_passes_change_it(name: str, op: str, count: int) -> None:
    graph = capture_file(f"{PROGRAM}:train(width=16,count=3)", batch=4, symbolic=False).graph
    after = rewrite(graph, name).graph
    assert sum(each.name == op for each in after.walk()) == count
