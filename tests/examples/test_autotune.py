"""The example that searches batch size, fusion and precision."""

from __future__ import annotations

import sys

import pytest

import irgraph
from examples import autotune
from irgraph.ir.graph import Graph
from irgraph.ir.resize import with_dims
from irgraph.language import load_script, run
from irgraph.schedule.memory import peak_memory


@pytest.fixture(scope="module")
def graph() -> Graph:
    return irgraph.load(str(autotune.DLRM))


def test_only_batches_that_fit_are_tried(graph: Graph) -> None:
    limit = 4.4 * autotune.GIB
    sizes = [size["B"] for size in autotune.fitting(graph, limit, "volta")]
    assert sizes == list(autotune.BATCHES[: len(sizes)])
    last, more = (
        peak_memory(with_dims(graph, {"B": b})).needs("volta") for b in (sizes[-1], sizes[-1] + 128)
    )
    assert last <= limit < more
    assert autotune.fitting(graph, 0, "volta") == []


def test_the_script_that_is_printed_makes_what_was_found(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(autotune, "BATCHES", (1024, 2048))
    monkeypatch.setattr(autotune, "PASSES", ("fuse-embedding",))
    monkeypatch.setattr(sys, "argv", ["autotune.py", "--memory", "8"])
    autotune.main()
    said, _, script = capsys.readouterr().out.partition("unvalidated):\n\n")
    assert "best of 4 variants" in said
    best = run(load_script(script), graph).graph
    told = max(float(line.split()[0]) for line in said.splitlines() if "samples/s" in line)
    batch = best.dims["B"]
    assert batch / irgraph.predict(best).step_time * 1e6 == pytest.approx(told, rel=1e-3)


def test_too_little_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "PASSES", ())
    monkeypatch.setattr(sys, "argv", ["autotune.py", "--memory", "0.001"])
    with pytest.raises(SystemExit, match=r"nothing fits into 0\.001 GiB"):
        autotune.main()
