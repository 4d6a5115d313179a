"""MLPerf's DLRM v2: its tables and multi-hot sizes, captured and executed."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from irgraph.capture.live import capture_file
from irgraph.predict.prediction import predict

FOLDER = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.slow
def test_the_step_looks_up_what_the_benchmark_does() -> None:
    graph = capture_file(f"{FOLDER / 'ragged.py'}:train", batch=512, symbolic=False).graph
    lookups = [op for op in graph.walk() if op.name == "aten.embedding_bag"]
    found = [(int(op.inputs[0].shape[0]), int(op.inputs[1].numel) / 512) for op in lookups]
    assert len(found) == 26 and sum(each for _, each in found) == 214
    assert (found[0], found[20], found[-1]) == ((40_000_000, 3), (40_000_000, 100), (36, 1))
    # bags of one law, whatever their mean: the one of 100 on average has the longest
    heavy = predict(graph, device="a100", indices=["bags lognormal:2"])
    plain = predict(graph, device="a100").priced
    times = [(heavy.priced.of(op)[0].time, plain.of(op)[0].time) for op in lookups]
    assert max(times) == times[20] and times[20][0] > 5 * times[20][1]


@pytest.mark.slow
def test_the_step_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    torch.manual_seed(0)
    step = runpy.run_path(str(FOLDER / "ragged.py"))["train"](16, "cpu", max_rows=50)
    losses = [float(step()) for _ in range(5)]
    assert losses[-1] < losses[0]
