"""What the report of a prediction holds, beside what the prediction says."""

from __future__ import annotations

import re
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import irgraph
from irgraph.cli.main import main
from irgraph.html.page import page_html
from irgraph.pages.prediction import prediction_page
from tests.pages.reading import Read

DATA = resources.files("costmodels.evaluate") / "data"
DLRM = str(DATA / "dlrm_default.ir")
PAYLOAD = "</script><script>planted = 1</script>"


def section(page: Any, name: str) -> dict[str, Any]:
    """Return a section by its anchor."""
    return next(part for part in page.sections if part.get("id") == name)


@pytest.fixture(scope="module")
def prediction() -> irgraph.Prediction:
    return irgraph.predict(irgraph.load(DLRM), device="v100")


@pytest.fixture(scope="module")
def page(prediction: irgraph.Prediction) -> Any:
    return prediction_page(prediction, measured=18_000.0)


def test_the_path_has_no_gap_and_adds_up_to_the_step(
    page: Any, prediction: irgraph.Prediction
) -> None:
    columns = section(page, "path")["columns"]
    start = np.cumsum(columns["start"])
    end = start + np.array(columns["length"])
    assert start[0] == 0
    assert abs(end[-1] / 1000 - prediction.step_time) < 0.001
    assert np.abs(end[:-1] - start[1:]).max() <= 1
    assert abs(sum(columns["length"]) / 1000 - prediction.step_time) < 0.001 * len(start)


def test_every_kernel_is_on_its_stream(page: Any, prediction: irgraph.Prediction) -> None:
    found = section(page, "timeline")
    columns, texts = found["columns"], found["texts"]
    stream = [n for n, (_, process, _) in enumerate(found["tracks"]) if process == "gpu0"]
    shown = [
        texts[name]
        for name, track in zip(columns["name"], columns["track"], strict=True)
        if track in stream
    ]
    assert sorted(shown) == sorted(kernel.name for kernel in prediction.kernels())
    assert [track[1] for track in found["tracks"]] == ["host", "host", "gpu0"]


def test_the_critical_slices_are_those_of_the_path(page: Any) -> None:
    """Gaps and latencies, in which a stream does nothing, are not drawn on it."""
    path, timeline = (section(page, name) for name in ("path", "timeline"))
    drawn = np.array(timeline["columns"]["length"])[np.array(timeline["columns"]["critical"], bool)]
    columns = path["columns"]
    pairs = zip(columns["length"], columns["kind"], strict=True)
    lengths = [length for length, kind in pairs if path["texts"][kind] not in ("gap", "latency")]
    assert drawn.sum() == sum(lengths) > 0.9 * sum(columns["length"])


def test_slices_of_a_host_thread_nest(page: Any) -> None:
    columns = section(page, "timeline")["columns"]
    for track in set(columns["track"]):
        mine = np.flatnonzero(np.array(columns["track"]) == track)
        start = np.cumsum(np.array(columns["start"])[mine])
        end = start + np.array(columns["length"])[mine]
        open_: list[int] = []
        for first, last in zip(start.tolist(), end.tolist(), strict=True):
            while open_ and open_[-1] <= first:
                open_.pop()
            assert not open_ or last <= open_[-1] + 2, (track, first, last)
            open_.append(last)


def test_memory_reaches_its_peak(page: Any, prediction: irgraph.Prediction) -> None:
    chart = section(page, "memory")
    totals = np.sum([values for _, values in chart["layers"]], axis=0)
    assert totals.max() == prediction.memory.peak
    assert all(a <= b for a, b in pairwise(chart["at"]))
    assert {name for name, _ in chart["layers"]} >= set(prediction.memory.by_kind)


def test_no_call_is_above_its_roof(page: Any) -> None:
    roof = section(page, "roofline")
    (peak,) = [peak for _, peak in roof["peaks"]]
    assert len(roof["points"]) > 5
    for point in roof["points"]:
        rate = point["flop"] / point["us"] / 1e3
        assert rate <= 1.01 * min(peak, roof["bandwidth"] * point["flop"] / point["bytes"]), point


def test_the_page_begins_with_the_step_time_its_interval_and_its_provenance(
    page: Any, prediction: irgraph.Prediction
) -> None:
    first = page.sections[0]
    low, high = prediction.interval
    assert first["span"] == {
        "low": low,
        "value": prediction.step_time,
        "high": high,
        "measured": 18_000.0,
    }
    assert first["numbers"][0]["value"] == f"{prediction.step_time / 1000:.3f} ms"
    assert sum(share for _, share in first["provenance"]) == pytest.approx(1)


def test_the_command_writes_it_with_its_own_words(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "a report.html"
    assert main(["predict", DLRM, "--device", "a100", "--html", str(path)]) == 0
    assert capsys.readouterr().out.startswith("A100-SXM4-40GB: ")
    text = path.read_text(encoding="utf-8")
    data = Read(text).data
    assert data["command"] == f"irgraph predict {DLRM} --device a100 --html '{path}'"
    assert data["versions"]["irgraph"] == irgraph.__version__
    assert len(text) < 3_000_000


def test_a_report_that_cannot_be_written_is_refused_first(tmp_path: Path, capsys: Any) -> None:
    assert main(["predict", DLRM, "--html", str(tmp_path / "none" / "r.html")]) == 4
    assert "the folder" in capsys.readouterr().err


def test_names_of_a_model_are_no_markup() -> None:
    text = Path(DLRM).read_text(encoding="utf-8")
    model = re.sub(r'"(?!v100|gpu)[^"\n]+"', lambda found: f'"{PAYLOAD}"', text)
    graph = irgraph.parse(model)
    plain = page_html(prediction_page(irgraph.predict(irgraph.parse(text), device="v100")))
    planted = Read(page_html(prediction_page(irgraph.predict(graph, device="v100"))))
    assert planted.markup == Read(plain).markup
    assert PAYLOAD in planted.data["title"]
    assert PAYLOAD in section(prediction_page(irgraph.predict(graph)), "timeline")["texts"]


def test_a_step_without_a_chart_still_has_a_page() -> None:
    graph = irgraph.parse(
        'model "m" { format = 1 }\n\ndevice @gpu0 "v100"\ninput %a : f32[8] in $a\n\n'
        "%b = aten.view(%a, [8]) : f32[8] in $a\n"
    )
    page = prediction_page(irgraph.predict(graph, device="v100"))
    assert Read(page_html(page)).data["title"] == "m"
