"""A resized step is the step captured live at that size, op for op and shape for shape."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from examples import dlrm, mlp, transformer
from irgraph.capture.live import capture, capture_file
from irgraph.ir.graph import Graph
from irgraph.ops.verify import verify
from irgraph.text import parse, print_graph
from irgraph.verbs import Axis, resize

EXAMPLES = Path(__file__).parents[2] / "examples"
PRESETS = ("default", "mlperf", "ddp")
BATCH = 12

Resizes = Sequence[tuple[Axis | Sequence[Axis], int]]


def resized(graph: Graph, sizes: Resizes) -> str:
    """Return the text of a graph with axes resized one after the other."""
    for axes, size in sizes:
        graph = resize(graph, axes, size).graph
    assert verify(graph) == []
    return print_graph(graph)


def small(preset: str) -> dlrm.Config:
    """Return a configuration with shorter tables and fewer lookups, of the same structure."""
    config = dlrm.CONFIGS[preset]
    rows = tuple(min(count, 1000) for count in config.rows)
    return replace(config, rows=rows, lookups=min(config.lookups, 5))


@cache
def dlrm_graph(config: dlrm.Config, batch: int = BATCH) -> Graph:
    """Return the captured step of a configuration."""
    return capture(dlrm.DLRMStep(config, batch, "meta")).graph


def rows(config: dlrm.Config) -> tuple[Resizes, dlrm.Config]:
    long = [Axis(f"tables_{k}_weight", 0) for k, n in enumerate(config.rows) if n == 1000]
    after = replace(config, rows=tuple(n if n != 1000 else 300 for n in config.rows))
    return [(long, 300)], after


def lookups(config: dlrm.Config) -> tuple[Resizes, dlrm.Config]:
    return [(Axis("host3", 1), 7 * BATCH)], replace(config, lookups=7)


def width(config: dlrm.Config) -> tuple[Resizes, dlrm.Config]:
    bottom = (config.bottom[0], 96, *config.bottom[2:])
    return [(Axis("bot_mlp_0_weight", 0), 96)], replace(config, bottom=bottom)


def dense_features(config: dlrm.Config) -> tuple[Resizes, dlrm.Config]:
    return [(Axis("host1", 1), 96)], replace(config, bottom=(96, *config.bottom[1:]))


def embedding_width(config: dlrm.Config) -> tuple[Resizes, dlrm.Config]:
    after = replace(config, bottom=(*config.bottom[:-1], 48))
    return [(Axis("tables_1_weight", 1), 48)], after


CHANGES: list[Callable[[dlrm.Config], tuple[Resizes, dlrm.Config]]] = [
    rows, lookups, width, dense_features, embedding_width,
]  # fmt: skip


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("preset", PRESETS)
def test_dlrm_at_another_size(preset: str, change: Any, sparse: bool) -> None:
    before = replace(small(preset), sparse=sparse)
    sizes, after = change(before)
    assert resized(dlrm_graph(before), sizes) == print_graph(dlrm_graph(after))


@pytest.mark.parametrize("preset", PRESETS)
def test_dlrm_of_a_plain_batch_at_another_one(preset: str) -> None:
    config = small(preset)
    found = resized(dlrm_graph(config), [(Axis("host1", 0), 48)])
    assert found == print_graph(dlrm_graph(config, 48))


def test_an_axis_keeps_the_dimensions_that_it_follows_from() -> None:
    target = f"{EXAMPLES}/dlrm.py:default(max_rows=100, lookups=%d)"
    five = capture_file(target % 5, batch=16).graph
    assert resized(five, [(Axis("select1", 0), 7 * 16)]) == print_graph(
        capture_file(target % 7, batch=16).graph
    )


def test_an_axis_that_is_a_dimension_resizes_it() -> None:
    target = f"{EXAMPLES}/mlp.py:train(width=16)"
    graph = capture_file(target, batch=16).graph
    assert resize(graph, Axis("host1", 0), 32).graph == capture_file(target, batch=32).graph


def mlp_graph(batch: int, width: int) -> Graph:
    """Return the captured step of the small example."""
    return capture(mlp.train(batch, "meta", width)).graph


def test_an_mlp_of_another_width() -> None:
    layers = [(Axis("host1", 1), 96), (Axis("t_0_weight", 0), 96), (Axis("t_2_weight", 0), 96)]
    assert resized(mlp_graph(8, 64), layers) == print_graph(mlp_graph(8, 96))


@pytest.mark.parametrize("batch", [8, 64])
def test_an_mlp_of_another_batch(batch: int) -> None:
    assert resized(mlp_graph(batch, 64), [(Axis("host1", 0), 20)]) == print_graph(mlp_graph(20, 64))


@cache
def transformer_graph(batch: int, width: int = 64, length: int = 16) -> Graph:
    """Return the captured step of a transformer of two layers."""
    step = transformer.train(batch, "meta", layers=2, width=width, length=length)
    return capture(step).graph


def test_a_transformer_of_another_width() -> None:
    sizes: list[tuple[Axis, int]] = [(Axis("t_0_weight", 1), 128)]
    for layer in (1, 2):
        sizes.append((Axis(f"t_{layer}_together_weight", 0), 3 * 128))
        sizes.append((Axis(f"t_{layer}_mlp_0_weight", 0), 4 * 128))
    assert resized(transformer_graph(4), sizes) == print_graph(transformer_graph(4, width=128))


def test_a_transformer_of_another_length() -> None:
    found = resized(transformer_graph(4), [(Axis("host1", 1), 25)])
    assert found == print_graph(transformer_graph(4, length=24))


@pytest.mark.parametrize("batch", [4, 16], ids=["of-its-own", "as-long-as-the-text"])
def test_a_transformer_of_another_batch(batch: int) -> None:
    found = resized(transformer_graph(batch), [(Axis("host1", 0), 6)])
    assert found == print_graph(transformer_graph(6))


@pytest.fixture
def resnet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Graph]]:
    """Return what captures a ResNet with the blocks of ResNet-50, one a layer."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def graph(batch: int = 4, size: int = 64) -> Graph:
        train = import_module("resnet50").train
        return capture(train(batch, "meta", size, (1, 1, 1, 2))).graph

    yield graph
    for name in ("classifier", "resnet50"):
        sys.modules.pop(name, None)


def test_a_resnet_of_another_batch(resnet: Callable[..., Graph]) -> None:
    assert resized(resnet(), [(Axis("host1", 0), 6)]) == print_graph(resnet(6))


def test_a_resnet_on_larger_images(resnet: Callable[..., Graph]) -> None:
    sizes = [(Axis("host1", 2), 96), (Axis("host1", 3), 96)]
    assert resized(resnet(), sizes) == print_graph(resnet(size=96))


def test_a_resnet_with_wider_blocks(
    resnet: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = resnet()
    module = import_module("resnet50")
    plain = torch.nn.Conv2d

    def wider(inputs: int, outputs: int, *rest: Any, **options: Any) -> Any:
        within = {64: 96} if len(made) in (1, 2, 3) else {}
        made.append(outputs)
        into = inputs if len(made) == 2 else within.get(inputs, inputs)
        out = outputs if len(made) == 4 else within.get(outputs, outputs)
        return plain(into, out, *rest, **options)

    made: list[int] = []
    norms = iter([64, 96, 96])
    norm = torch.nn.BatchNorm2d
    monkeypatch.setattr(module.nn, "Conv2d", wider)
    monkeypatch.setattr(module.nn, "BatchNorm2d", lambda n: norm(next(norms, n)))
    after = resnet()
    monkeypatch.undo()
    sizes = [(Axis("layer1_0_conv1_weight", 0), 96), (Axis("layer1_0_conv2_weight", 0), 96)]
    assert resized(before, sizes) == print_graph(after)


TARGETS = (
    "dlrm.py:default(max_rows=100, lookups=3)",
    "dlrm.py:mlperf(max_rows=100)",
    "dlrm.py:ddp(max_rows=100, lookups=3)",
    "mlp.py:train(width=16)",
    "transformer.py:train(layers=1, width=32, heads=2, length=10)",
    "resnet50.py:train(size=64, blocks=(1, 1, 1, 1))",
)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.partition("(")[0])
def test_a_model_captured_once_answers_for_any_batch(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    captured = capture_file(f"{EXAMPLES}/{target}", batch=8).graph
    wanted = capture_file(f"{EXAMPLES}/{target}", batch=6, symbolic=False).graph
    found = resize(captured, "B", 6).graph
    assert print_graph(captured).count("B") > 10
    plain = print_graph(wanted)
    sizes = {name: tuple(map(int, t.shape)) for name, t in found.by_name.items()}
    assert sizes == {name: tuple(t.shape) for name, t in parse(plain).by_name.items()}
    assert [op.name for op in found.walk()] == [op.name for op in wanted.walk()]
