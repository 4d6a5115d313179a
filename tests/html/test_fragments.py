"""What objects show of themselves in notebooks is no markup, and says what the figures say."""

from __future__ import annotations

import re
from importlib import resources

import pytest

import irgraph
from irgraph.html.fragments import table_html

DLRM = str(resources.files("costmodels.evaluate") / "data" / "dlrm_default.ir")
PAYLOAD = "<script>planted = 1</script>"


def test_no_text_of_a_table_is_markup() -> None:
    text = table_html(PAYLOAD, [(PAYLOAD, PAYLOAD)], (PAYLOAD, PAYLOAD), PAYLOAD)
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 6


def test_a_model_may_be_called_anything() -> None:
    head = f'model "{PAYLOAD}" {{ format = 1 }}\n\ndevice @gpu0 "v100"\n'
    body = "input %a : f32[8] in $a\n\n%b = aten.relu(%a) : f32[8] in $b\n"
    graph = irgraph.parse(head + body)
    prediction = irgraph.predict(graph)
    difference = irgraph.diff(graph, graph)
    for found in (graph, prediction, difference):
        text = found._repr_html_()
        assert "<script" not in text
    assert "&lt;script" in prediction._repr_html_()
    assert prediction.plot()._repr_png_()[1:4] == difference.plot()._repr_png_()[1:4] == b"PNG"


def test_objects_say_their_figures() -> None:
    graph = irgraph.load(DLRM)
    outcome = irgraph.rewrite(graph, "fuse-embedding(least=4)")
    assert "8 matches, 24 ops became 1" in outcome._repr_html_()
    count = sum(op.name == "aten.add_" for op in graph.walk())
    assert re.search(rf"aten.add_</th><td[^>]*>{count}<", graph._repr_html_())
    step = irgraph.predict(graph).step_time
    assert f"{step / 1000:.3f} ms, 90 % interval" in irgraph.predict(graph)._repr_html_()


@pytest.mark.parametrize("name", ["report.html", "no/such/folder.html"])
def test_a_program_writes_a_report(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("report") / name
    found = irgraph.diff(
        graph := irgraph.load(DLRM), irgraph.rewrite(graph, "fuse-embedding").graph
    )
    if "/" in name:
        with pytest.raises(irgraph.IrgraphError):
            irgraph.write_report(found, path)
        return
    irgraph.write_report(found, path)
    assert "fuse-embedding" in path.read_text(encoding="utf-8")
