"""The library's face: names stay functions, however often and in whatever order they are used."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources
from typing import Any

import pytest

import irgraph
from irgraph.execute import execute

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
        *(
            ({"B": size}, f"dims: the dimension B must be a whole number of at least 1, not {said}")
            for size, said in (
                (0, "0"),
                ("64", "'64'"),
                (None, "None"),
                (1.5, "1.5"),
                (True, "True"),
            )
        ),
    ],
    ids=["unknown", "size", "text", "none", "fraction", "truth"],
)
@pytest.mark.parametrize("call", ["predict", "execute"])
def test_sizes_that_cannot_be(call: str, dims: dict[str, Any], message: str) -> None:
    if call == "execute":
        pytest.importorskip("torch")
        message = message.removeprefix("dims: ")
    run = irgraph.predict if call == "predict" else execute
    with pytest.raises(irgraph.IrgraphError, match=message):
        run(irgraph.load(DLRM), dims=dims)


def test_a_size_may_be_of_another_integer_type() -> None:
    numpy = pytest.importorskip("numpy")
    graph = irgraph.load(DLRM)
    small = irgraph.predict(graph, dims={"B": numpy.int64(256)})
    assert small.step_time == irgraph.predict(graph, dims={"B": 256}).step_time


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
    assert message.startswith("script:1:")
    assert "--pass" not in message
    assert "give passes, as in 'fuse-embedding(least=4), tidy', or statements" in message


@pytest.mark.parametrize(
    ("pipeline", "place"),
    [("no-such-pass", "pipeline:1:1:"), ("fuse-embedding(lest = 1)", "pipeline:1:23:"),
     ("remove aten.relu", "script:1:"), ("expect no aten.relu", "script:1:")],
    ids=["pass", "parameter", "statement", "expectation"],
)  # fmt: skip
def test_errors_of_a_rewrite_name_the_argument(pipeline: str, place: str) -> None:
    with pytest.raises(irgraph.IrgraphError) as caught:
        irgraph.rewrite(irgraph.load(DLRM), pipeline)
    assert str(caught.value).startswith(place)


def test_errors_of_a_command_name_its_options() -> None:
    from irgraph.cli.pipeline import STEPS
    from irgraph.manager import Step, stages

    for name, text in (("pass_", "a,"), ("text", "fuze")):
        kind, option = STEPS[name]
        with pytest.raises(irgraph.IrgraphError, match=f"^{option}:1:"):
            stages([Step(kind, text, option)])
