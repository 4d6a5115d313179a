"""What the passes that resize make of a captured step computes what the real step does there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from examples import dlrm
from irgraph.api import rewrite
from irgraph.capture.live import capture, capture_file
from irgraph.execute import execute
from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from irgraph.manage.space import space
from tests.execute.models import Step, sgd, values_of
from tests.execute.test_real_steps import small_mlp, start

EXAMPLES = Path(__file__).parents[2] / "examples"
MINI = dlrm.Config((6, 16, 8), (12, 1), (40, 30), 3)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute on one thread, as executions do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def assert_computes(graph: Graph, make: Callable[[], Any]) -> None:
    """Hold the execution of a graph against the second step that a program makes, to the bit."""
    torch.manual_seed(0)
    step = make()
    step()
    before = start(graph, step)
    step()
    after = values_of(graph, step)
    left = execute(graph, before)
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed >= {d.tensor.name for d in graph.tensors if d.role == "param"}
    assert [name for name, value in after.items() if not torch.equal(value, left[name])] == []


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_resize_layer_gives_the_step_of_the_other_width(sparse: bool) -> None:
    narrow = replace(MINI, sparse=sparse)
    graph = capture(dlrm.DLRMStep(narrow, 4, "cpu"), device="cpu").graph
    after = rewrite(graph, "resize-layer(width = 24)").graph
    wide = replace(narrow, bottom=(6, 24, 8))
    assert_computes(after, lambda: dlrm.DLRMStep(wide, 4, "cpu"))


class Tied(nn.Module):
    """Words whose table also scores the next word."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, 8), nn.Linear(8, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(text).relu())


def tied_step(words: int) -> Step:
    return Step(Tied(words), (torch.arange(4) * 3, torch.arange(4) % 5), sgd)


@pytest.mark.parametrize(("multiple", "words"), [(64, 128), (50, 100), (97, 97)])
def test_pad_vocabulary_gives_the_step_of_more_words(multiple: int, words: int) -> None:
    graph = capture(tied_step(97), device="cpu").graph
    after = rewrite(graph, f"pad-vocabulary(least = 90, multiple = {multiple})").graph
    assert_computes(after, lambda: tied_step(words))


def test_resize_layer_takes_any_layer() -> None:
    graph = capture(dlrm.DLRMStep(MINI, 4, "cpu"), device="cpu").graph
    after = rewrite(graph, 'resize-layer(width = 20, layer = "top_mlp.0")').graph
    assert_computes(after, lambda: dlrm.DLRMStep(replace(MINI, top=(20, 1)), 4, "cpu"))


@pytest.mark.parametrize("name", ["dlrm", "mlp"])
def test_resize_batch_gives_the_step_of_the_other_batch(name: str) -> None:
    target = {"dlrm": "dlrm.py:ddp(max_rows=40, lookups=3)", "mlp": "mlp.py:train(width=16)"}
    graph = capture_file(f"{EXAMPLES}/{target[name]}", batch=4, device="cpu").graph
    after = rewrite(graph, "resize-batch(to = 6)").graph
    makers: dict[str, Callable[[], Any]] = {
        "dlrm": lambda: dlrm.ddp(6, "cpu", max_rows=40, lookups=3),
        "mlp": lambda: small_mlp(6, "cpu"),
    }
    assert_computes(after, makers[name])


def test_the_space_of_widths_leaves_out_the_one_that_is() -> None:
    graph = capture(dlrm.DLRMStep(MINI, 4, "meta")).graph
    found = space("resize-layer", graph, values={"width": [8, 16, 32]})
    assert found.values == {"width": (8, 32), "layer": ("bot_mlp.0",)}


def test_padded_words_are_no_match() -> None:
    graph = capture(tied_step(97), device="cpu").graph
    padded = rewrite(graph, "pad-vocabulary(least = 90)").graph
    outcome = run(load_script("apply pad-vocabulary(least = 90)"), padded)
    assert outcome.graph == padded
    assert "nothing matches" in str(outcome.report)


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class LossStep:
    """A step of a table of 97 words that scores the next word, with a loss."""

    def __init__(self, loss: Loss) -> None:
        self.model, self.loss = Tied(97), loss

    def __call__(self) -> torch.Tensor:
        """Return the loss, after its backward."""
        loss = self.loss(self.model(torch.arange(4) * 3), torch.arange(4) % 5)
        loss.backward()
        return loss.detach()


def smoothed(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores, words, label_smoothing=0.1)


def of_variance(scores: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return scores.var(-1).mean()


def normalised(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores, words) / math.log(scores.shape[-1])


def scaled(scores: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return (scores * scores.shape[-1] ** -0.5).square().mean()


def wrapped(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores, words * 50 % scores.shape[-1])


def plain(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    dropped = nn.functional.dropout(scores, 0.25) * 8**-0.5
    return nn.functional.cross_entropy(dropped, words) + 0.05 * scores.sin().mean()


@pytest.mark.parametrize(
    ("loss", "number"),
    [
        (smoothed, f"aten.mul: other = {0.1 / 97}"),
        (of_variance, f"aten.mul: other = {2 / 96}"),
        (normalised, f"aten.div: other = {math.log(97)}"),
        (scaled, f"aten.mul: other = {97**-0.5}"),
        (wrapped, "aten.remainder: other = 97"),
        (plain, ""),
    ],
)
def test_numbers_computed_from_a_size_are_listed(loss: Loss, number: str) -> None:
    graph = capture(LossStep(loss), device="cpu").graph
    report = str(run(load_script("apply pad-vocabulary(least = 90)"), graph).report)
    assert "is 128 (was 97)" in report
    assert (f"{number} seems to be computed from 97" in report) == bool(number)
    assert ("did not follow" in report) == bool(number)
