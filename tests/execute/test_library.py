"""Every pass of the library leaves what the step left, wherever it applies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import passes
from irgraph.api import rewrite
from irgraph.capture.live import capture
from irgraph.execute import compare
from irgraph.ir.graph import Graph
from irgraph.language import load_pass
from tests.execute.models import transformer_step
from tests.execute.test_compare import conv_graph, dlrm_graph, mlp_graph

CHANGES = {"drop-dropout"}
"""Passes that compute something else on purpose."""

MODELS: dict[str, Callable[[], Graph]] = {
    "dlrm": lambda: dlrm_graph("default"),
    "dlrm-sparse": lambda: dlrm_graph("ddp", "meta", True),
    "mlp": lambda: mlp_graph("cpu"),
    "conv": conv_graph,
    "transformer": lambda: capture(transformer_step(2, "cpu"), device="cpu").graph,
}


def ready() -> list[str]:
    """Return the passes that need no parameter."""
    found = []
    for name in passes.names():
        needed = [p for p in load_pass(name).parameters if p.default is None]
        if name not in CHANGES and not needed:
            found.append(name)
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ready())
def test_a_pass_leaves_what_the_step_left(name: str, model: str) -> None:
    before = MODELS[model]()
    after = rewrite(before, name).graph
    if after == before:
        pytest.skip("it does not apply")
    result = compare(before, after)
    assert result.same, str(result)
