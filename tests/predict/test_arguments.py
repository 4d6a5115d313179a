"""Arguments that cannot be: the error is irgraph's own and names the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import irgraph as library
from costmodels.evaluate.dlrm_v100 import dlrm

irgraph: Any = library
GRAPH = dlrm("DLRM_default", 512)

WRONG: dict[str, Callable[[], object]] = {
    "dims: give sizes by the names of dimensions, not ['B']": lambda: irgraph.predict(
        GRAPH, dims=["B"]
    ),
    "host: give the name of a host, not ['v100']": lambda: irgraph.predict(GRAPH, host=["v100"]),
    "devices: give a list of names, not 'a100'": lambda: irgraph.predict_variants(
        GRAPH, "a100", [{}]
    ),
    "hosts: give a list of names, not 'v100'": lambda: irgraph.predict_variants(
        GRAPH, ["a100"], [{}], hosts="v100"
    ),
    "sizes: give a list of sizes, each by the names of dimensions, not {'B': 4}": lambda: (
        irgraph.predict_variants(GRAPH, ["a100"], {"B": 4})
    ),
    "sizes: give sizes by the names of dimensions, not 4": lambda: irgraph.predict_variants(
        GRAPH, ["a100"], [4]
    ),
    "graphs: give a list of graphs, one a rank, not 'a.ir'": lambda: irgraph.predict_ranks("a.ir"),
    "dims: give sizes by the names of dimensions, not {3: 8}": lambda: irgraph.predict(
        GRAPH, dims={3: 8}
    ),
    "dims: B: give a list of sizes, not 4": lambda: irgraph.search_space(GRAPH, dims={"B": 4}),
    "dims: B: give a list of sizes, not '48'": lambda: irgraph.search_space(
        GRAPH, dims={"B": "48"}
    ),
    "ranks: give a list of numbers of ranks, not '16'": lambda: irgraph.search_space(
        GRAPH, ranks="16"
    ),
    "devices: 'a100' and 'A100-SXM4-40GB' are one device": lambda: irgraph.search_space(
        GRAPH, devices=["a100", "A100-SXM4-40GB"]
    ),
}

PATHS: dict[str, Callable[[], object]] = {
    "predict": lambda: irgraph.predict("model.ir"),
    "predict_pair": lambda: irgraph.predict_pair(GRAPH, "model.ir"),
    "predict_variants": lambda: irgraph.predict_variants("model.ir", ["v100"], [{}]),
    "predict_ranks": lambda: irgraph.predict_ranks(["model.ir"]),
    "search_space": lambda: irgraph.search_space("model.ir"),
    "space": lambda: irgraph.space("batch-gemm", "model.ir"),
    "rewrite": lambda: irgraph.rewrite("model.ir", "fuse-epilogue"),
    "with_dims": lambda: irgraph.with_dims("model.ir", {"B": 4}),
    "peak_memory": lambda: irgraph.peak_memory("model.ir"),
    "check": lambda: irgraph.check(GRAPH, "model.ir"),
}


@pytest.mark.parametrize("message", WRONG)
def test_an_argument_that_cannot_be_is_named(message: str) -> None:
    with pytest.raises(irgraph.IrgraphError) as caught:
        WRONG[message]()
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("function", PATHS)
def test_a_path_is_no_graph(function: str) -> None:
    with pytest.raises(irgraph.IrgraphError, match=r"give a graph, not 'model.ir'") as caught:
        PATHS[function]()
    assert "irgraph.load" in str(caught.value)
    assert caught.value.exit_code == 2


def test_lists_may_be_drawn_as_they_come() -> None:
    found = irgraph.predict_variants(GRAPH, (d for d in ("v100", "a100")), ({"B": b} for b in (8,)))
    assert found.step_time.shape == (2, 1)
    assert (found.step_time > 0).all()
