"""Every pass of the library leaves what the step left, wherever it applies, and it does apply."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

import passes
from examples import llama, transformer
from irgraph.api import rewrite
from irgraph.capture.live import capture
from irgraph.execute import compare
from irgraph.ir.graph import Graph
from irgraph.language import load_pass
from irgraph.text import IrgraphError
from tests.execute.models import attention_step, eager_step, lookups_first_step, transformer_step
from tests.execute.test_compare import conv_graph, dlrm_graph, mlp_graph

EXAMPLES = Path(__file__).parents[2] / "examples"

ELSEWHERE = {
    "add-dropout",
    "add-norm",
    "bucket-allreduce",
    "chunk-loss",
    "drop-dropout",
    "drop-norm",
    "pad-vocabulary",
    "quantize-tables",
    "relu-to-gelu",
    "resize-batch",
    "resize-layer",
}
"""Passes that compute something else on purpose, or none of these models is for: they have other
tests.
"""

OTHER_MODELS = {"add-dropout", "add-norm", "drop-norm", "relu-to-gelu"}
"""Those that change most models."""

ANYWHERE = "clean-copies cuda-graph remove-dead overlap-allreduce"
"""Passes that change every training step."""

NARROW = {"language-model"}
"""Models whose products are in bf16 as they were captured: nothing is left to cast."""

CHANGED = {
    "dlrm": "checkpoint fuse-embedding fuse-epilogue fuse-optimizer hoist-h2d parallel-branches",
    "dlrm-sparse": "checkpoint fuse-embedding fuse-epilogue fuse-optimizer hoist-h2d"
    " parallel-branches",
    "mlp": "fuse-adam fuse-epilogue fuse-optimizer hoist-h2d",
    "conv": "checkpoint fuse-optimizer hoist-h2d",
    "transformer": "checkpoint fuse-adam fuse-add-norm fuse-bias-gelu fuse-optimizer"
    " offload-activations",
    "language-model": "checkpoint fuse-add-norm fuse-bias-gelu offload-activations",
    "resnet50": "checkpoint fuse-optimizer hoist-h2d",
    "lookups-first": "checkpoint early-bottom fuse-embedding fuse-epilogue fuse-optimizer hoist-h2d"
    " parallel-branches",
    "attention": "batch-gemm fuse-adam fuse-optimizer fuse-qkv hoist-h2d",
    "llama": "checkpoint batch-gemm fuse-qkv fuse-rms-norm fuse-rotary fuse-swiglu hoist-h2d"
    " offload-activations",
    "eager-attention": "checkpoint batch-gemm fuse-attention fuse-optimizer hoist-h2d",
}
"""What else changes each model."""


def resnet(blocks: tuple[int, int, int, int] = (1, 1, 1, 1), size: int = 64) -> Graph:
    """Return a step of ResNet-50, by default with one block a layer, on small images."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        from resnet50 import train
    finally:
        sys.path.remove(str(EXAMPLES))
    return capture(train(2, "meta", size, blocks), device="meta").graph


MODELS: dict[str, Callable[[], Graph]] = {
    "dlrm": lambda: dlrm_graph("default"),
    "dlrm-sparse": lambda: dlrm_graph("ddp", "meta", True),
    "mlp": lambda: mlp_graph("meta"),
    "conv": conv_graph,
    "transformer": lambda: capture(transformer_step(2, "cpu"), device="cpu").graph,
    "language-model": lambda: (
        capture(
            transformer.train(2, "cpu", layers=1, width=32, heads=2, length=16), device="cpu"
        ).graph
    ),
    "resnet50": resnet,
    "lookups-first": lambda: capture(lookups_first_step(4, "meta"), device="meta").graph,
    "attention": lambda: capture(attention_step(4, "meta"), device="meta").graph,
    "llama": lambda: (
        capture(llama.train(2, "meta", "float32", layers=1, **llama.TINY), device="meta").graph
    ),
    "eager-attention": lambda: capture(eager_step(4, "meta"), device="meta").graph,
}


@cache
def graph_of(model: str) -> Graph:
    """Return a captured step."""
    return MODELS[model]()


REFUSED = {("dlrm-sparse", "overlap-allreduce")}
"""Passes that refuse a model: sparse gradients would stay local."""


def expected(model: str) -> list[str]:
    """Return the passes that change a model."""
    cast = [] if model in NARROW else ["cast-gemms"]
    names = [*ANYWHERE.split(), *cast, *CHANGED[model].split()]
    return [name for name in names if (model, name) not in REFUSED]


SLOW_MODEL = "resnet50"
"""Model whose steps take seconds: one pass is tried with the fast tests."""

PAIRS = [
    pytest.param(model, name, marks=[pytest.mark.slow] * (model == SLOW_MODEL and number > 0))
    for model in MODELS
    for number, name in enumerate(expected(model))
]


@pytest.mark.parametrize("model", sorted(NARROW))
def test_what_is_narrow_is_not_cast(model: str) -> None:
    assert rewrite(graph_of(model), "cast-gemms").graph == graph_of(model)


@pytest.mark.parametrize(("model", "name"), PAIRS)
def test_a_pass_leaves_what_the_step_left(model: str, name: str) -> None:
    before = graph_of(model)
    after = rewrite(before, name).graph
    assert after != before
    result = compare(before, after)
    assert result.same, str(result)
    assert any(one.changed for one in result.compared)


@pytest.mark.parametrize("model", MODELS)
def test_all_other_passes_leave_a_model_as_it_is(model: str) -> None:
    before = graph_of(model)
    ready = [n for n in passes.names() if all(p.default for p in load_pass(n).parameters)]
    refused = {name for other, name in REFUSED if other == model}
    for name in set(ready) - set(expected(model)) - OTHER_MODELS - refused:
        assert rewrite(before, name).graph == before, name


@pytest.mark.parametrize(("model", "name"), sorted(REFUSED))
def test_a_pass_refuses_what_it_would_leave_half_done(model: str, name: str) -> None:
    with pytest.raises(IrgraphError, match="sparse_coo_tensor"):
        rewrite(graph_of(model), name)


def test_every_pass_is_checked_somewhere() -> None:
    checked = {name for model in MODELS for name in expected(model)} | ELSEWHERE
    assert checked >= set(passes.names())


def test_all_fusions_together_leave_what_the_step_left() -> None:
    before = graph_of("dlrm")
    after = rewrite(
        before, "fuse-embedding, fuse-epilogue, fuse-optimizer, clean-copies, remove-dead"
    ).graph
    assert len(list(after.leaves())) < 0.65 * len(list(before.leaves()))
    assert compare(before, after).same


def test_results_that_nobody_takes_may_go() -> None:
    before = graph_of("attention")
    unknown = replace(before, returned=None)
    named = rewrite(unknown, 'remove-dead(keep = "*")').graph
    after = rewrite(unknown, 'remove-dead(keep = "")').graph
    assert len(list(after.walk())) < len(list(named.walk()))
    result = compare(unknown, after)
    assert (result.same, result.exact) == (True, True)
    assert [kind for kind, _ in result.only_before] == ["output"]


def test_what_a_step_is_known_not_to_return_goes_whatever_its_name() -> None:
    before = graph_of("attention")
    after = rewrite(before, "remove-dead").graph
    assert len(list(after.walk())) < len(list(before.walk()))
    result = compare(before, after)
    assert (result.same, result.exact, result.only_before) == (True, True, [])


@pytest.mark.slow
def test_resnet50_in_full_leaves_what_the_step_left() -> None:
    before = resnet((3, 4, 6, 3), size=32)
    after = rewrite(
        before, "fuse-optimizer, hoist-h2d, clean-copies, cast-gemms, remove-dead"
    ).graph
    assert {"aten._foreach_add_", "sync.record"} <= {op.name for op in after.walk()}
    result = compare(before, after)
    assert result.same, str(result)
    assert sum(one.kind == "param" and one.changed for one in result.compared) == 161
