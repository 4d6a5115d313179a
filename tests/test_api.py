"""The library's face: names stay functions, however often and in whatever order they are used."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

import pytest

import irgraph

DLRM = str(resources.files("irgraph.evaluate") / "data" / "dlrm_default.ir")


def test_everything_can_be_called_twice() -> None:
    graph = irgraph.load(DLRM)
    first = irgraph.predict(graph).step_time
    fused = irgraph.rewrite(graph, "fuse-embedding").graph
    assert irgraph.predict(fused).step_time < first == irgraph.predict(graph).step_time
    assert irgraph.parse(irgraph.print_graph(fused)) == fused


def test_a_step_is_predicted_at_other_sizes() -> None:
    graph = irgraph.load(DLRM)
    small = irgraph.predict(graph, dims={"B": 256})
    assert small.priced.graph.dims["B"] == 256
    assert small.step_time < irgraph.predict(graph).step_time


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"b": 4}, "dims: the model has no dimension 'b'"),
        ({"B": 0}, "dims: the dimension B must be at least 1, not 0"),
    ],
    ids=["unknown", "size"],
)
def test_sizes_that_cannot_be(dims: dict[str, int], message: str) -> None:
    with pytest.raises(irgraph.IrgraphError, match=message):
        irgraph.predict(irgraph.load(DLRM), dims=dims)


def test_names_survive_the_import_of_modules_that_bear_them() -> None:
    import irgraph.capture.live
    import irgraph.prediction

    for name in irgraph.__all__:
        assert callable(getattr(irgraph, name)), name


def test_importing_stays_light() -> None:
    program = (
        "import sys, irgraph; print([m for m in ('torch', 'numpy', 'lark') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"


def test_a_rewrite_takes_passes_or_the_statements_of_a_script() -> None:
    graph = irgraph.load(DLRM)
    assert irgraph.rewrite(graph, "resize B = 4096").graph.dims["B"] == 4096
    with pytest.raises(irgraph.IrgraphError) as raised:
        irgraph.rewrite(graph, "resize B == 4096")
    message = str(raised.value)
    assert message.startswith("pipeline:1:")
    assert "--pass" not in message
    assert "give passes, as in 'fuse-embedding(least=4), tidy', or statements" in message
