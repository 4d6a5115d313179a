"""Scores and losses in halves: equal results, less memory, and the same model a second time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import irgraph
from examples import llama, transformer
from irgraph.capture.live import capture
from irgraph.execute import compare
from irgraph.ir.graph import Graph
from irgraph.language import load_script, run

CALL = "chunk-loss(least = 4000)"


def language_model(words: int = 4096) -> Graph:
    """Return a step in mixed precision."""
    step = transformer.train(4, "meta", layers=1, width=32, heads=2, length=16, words=words)
    return capture(step, device="meta").graph


def llama_model() -> Graph:
    """Return a step in bf16, with the loss in f32."""
    sizes = {**llama.TINY, "words": 4096}
    return capture(llama.train(4, "meta", "bfloat16", layers=1, **sizes), device="meta").graph


@pytest.mark.parametrize("make", [language_model, llama_model])
def test_halves_have_the_same_loss_and_gradients(make: Callable[[], Graph]) -> None:
    before = make()
    after = irgraph.rewrite(before, CALL).graph
    assert after != before
    result = compare(before, after)
    assert result.same, str(result)
    peaks = [irgraph.predict(g, device="h100").memory.peak for g in (before, after)]
    assert peaks[1] < 0.95 * peaks[0]
    assert irgraph.rewrite(after, CALL).graph == after


def test_an_odd_number_of_samples_is_left() -> None:
    step = transformer.train(3, "meta", layers=1, width=32, heads=2, length=15, words=4096)
    graph = capture(step, device="meta").graph
    assert irgraph.rewrite(graph, CALL).graph == graph


@pytest.mark.parametrize("soft", [False, True])
def test_probabilities_of_classes_are_left(soft: bool) -> None:
    weight = torch.zeros(4096, 8, device="meta", dtype=torch.bfloat16, requires_grad=True)
    states = torch.zeros(2, 16, 8, device="meta", dtype=torch.bfloat16, requires_grad=True)
    shape = (32, 4096) if soft else (32,)
    targets = torch.zeros(shape, device="meta", dtype=torch.float32 if soft else torch.int64)

    def step() -> None:
        scores = torch.nn.functional.linear(states, weight).flatten(0, 1).to(torch.float32)
        torch.nn.functional.cross_entropy(scores, targets).backward()

    graph = capture(step, device="meta").graph
    assert (irgraph.rewrite(graph, CALL).graph == graph) == soft


def test_few_classes_are_left() -> None:
    graph = language_model(words=64)
    assert irgraph.rewrite(graph, "chunk-loss").graph == graph


def test_a_quotient_of_a_size_follows_the_batch() -> None:
    model = """model "halves" { format = 2  dims = {B = 64} }

device @gpu0 "v100"
input %x : f32[4*B, 8] in $x

%y = aten.exp(%x) : f32[4*B, 8] in $y
return %y
"""
    script = """replace %y = aten.exp(%x) with {
  [%a, %b] = aten.split_with_sizes(%x, split_sizes = [%x.shape[0] // 4, 3 * %x.shape[0] // 4])
  %c = aten.exp(%a)  %d = aten.exp(%b)  %y = aten.cat([%c, %d]) }
resize B = 10"""
    after = run(load_script(script), irgraph.parse(model)).graph
    assert [t.shape[0] for t in after.ops[0].outputs] == [10, 30]
