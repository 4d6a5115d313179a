"""Objects of the library as an interactive session shows them."""

from __future__ import annotations

import pydoc

import pytest

import irgraph

DLRM = "costmodels/evaluate/data/dlrm_default.ir"
MAX_CHARACTERS = 200


def test_results_are_shown_in_one_line() -> None:
    graph = irgraph.load(DLRM)
    fused = irgraph.rewrite(graph, "fuse-embedding").graph
    before = irgraph.predict(graph, device="v100")
    difference = irgraph.diff(before, fused)
    advice = irgraph.advise(graph, irgraph.PredictOptions(device="v100"))
    shown = {
        repr(graph): "<Graph 'dlrm_default': ",
        repr(before): "<Prediction of 'dlrm_default' on V100-SXM2-16GB: ",
        repr(difference): "<Difference on V100-SXM2-16GB: ",
        repr(advice): "<Advice: ",
        repr(advice.gains[0]): "<PassGain fuse-embedding: saves ",
    }
    for text, start in shown.items():
        assert text.startswith(start) and text.endswith(">")
        assert len(text) <= MAX_CHARACTERS and "\n" not in text
    assert ", B = 2048>" in repr(graph)


@pytest.mark.parametrize("name", ["predict", "capture"])
def test_help_of_a_callable_package_is_that_of_its_function(name: str) -> None:
    package = getattr(irgraph, name)
    text = pydoc.plain(pydoc.render_doc(package))
    summary = package.function().__doc__.partition("\n")[0]
    assert f"{name}(" in text and summary in text
