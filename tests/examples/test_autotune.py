"""The example that searches batch size, fusion and precision."""

from __future__ import annotations

import sys
from importlib import resources

import pytest

import irgraph
from examples import autotune
from irgraph import Graph, peak_memory, with_dims

DLRM = str(resources.files("costmodels.evaluate") / "data" / "dlrm_default.ir")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return irgraph.load(DLRM)


def test_only_batches_that_fit_are_tried(graph: Graph) -> None:
    limit = 4.4 * autotune.GIB
    sizes = [size["B"] for size in autotune.batches_within(graph, limit, "volta")]
    assert sizes == list(autotune.BATCHES[: len(sizes)])
    last, more = (
        peak_memory(with_dims(graph, {"B": b})).needs("volta") for b in (sizes[-1], sizes[-1] + 128)
    )
    assert last <= limit < more
    assert autotune.batches_within(graph, 0, "volta") == []


def test_the_script_that_is_printed_makes_what_was_found(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(autotune, "BATCHES", (1024, 2048))
    monkeypatch.setattr(autotune, "PASSES", ("fuse-embedding",))
    monkeypatch.setattr(sys, "argv", ["autotune.py", DLRM, "--memory", "8"])
    autotune.main()
    text, _, script = capsys.readouterr().out.partition("unvalidated):\n\n")
    assert "best of 4 variants" in text
    best = irgraph.run_script(graph, script).graph
    claimed = max(float(line.split()[0]) for line in text.splitlines() if "samples/s" in line)
    batch = best.dims["B"]
    assert batch / irgraph.predict(best).step_time * 1e6 == pytest.approx(claimed, rel=1e-3)


def test_without_a_model_it_searches_the_example() -> None:
    assert autotune.model(None).name == "dlrm_default"


def test_too_little_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "PASSES", ())
    monkeypatch.setattr(sys, "argv", ["autotune.py", DLRM, "--memory", "0.001"])
    with pytest.raises(SystemExit, match=r"nothing fits into 0\.001 GiB"):
        autotune.main()
