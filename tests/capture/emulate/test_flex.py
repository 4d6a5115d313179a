"""FlexAttention is captured as one op that computes what torch's form without a compiler does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import irgraph
from costmodels.devices.library import load_device
from costmodels.pricing.price import price
from irgraph.capture.live import capture_file
from irgraph.execute import compare, execute
from irgraph.ir.op import Op
from irgraph.ir.torch_schemas.score_functions import ScoreFunctionError, evaluate
from irgraph.text import IrgraphError, parse, print_graph
from irgraph.verbs import Axis, resize

torch = pytest.importorskip("torch")

from torch._higher_order_ops.flex_attention import math_attention  # noqa: E402
from torch.nn.attention.flex_attention import (  # noqa: E402
    create_block_mask,
    flex_attention,
)

SHAPE = (2, 4, 64, 8)
"""Samples, heads, length and width."""

compiled = torch.compile(flex_attention)


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def windowed(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q - k < 16)


class Functions(torch.nn.Module):
    """What a program may do with scores, by name; some look into tensors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bias = torch.nn.Parameter(torch.randn(SHAPE[1]))
        self.table = torch.nn.Parameter(torch.randn(SHAPE[1], 2 * SHAPE[2]))
        self.register_buffer("docs", torch.randint(3, (SHAPE[0], SHAPE[2])).sort().values)
        self.register_buffer("kinds", torch.randint(5, (SHAPE[2],)))
        self.register_buffer("scale", torch.rand(5))

    def score(self, name: str) -> Callable[..., Any] | None:
        return {
            "none": None,
            "alibi": lambda s, b, h, q, k: s + self.bias[h] * (q - k),
            "relative": lambda s, b, h, q, k: s + self.table[h, q - k + SHAPE[2]],
            "capped": lambda s, b, h, q, k: 20 * torch.tanh(s / 20),
            "document": lambda s, b, h, q, k: torch.where(
                self.docs[b, q] == self.docs[b, k], s, -float("inf")
            ),
            "kinds": lambda s, b, h, q, k: s * self.scale[self.kinds[q]].exp(),
        }[name]

    def mask(self, name: str) -> Callable[..., Any] | None:
        return {
            "none": None,
            "causal": causal,
            "windowed": windowed,
            "document": lambda b, h, q, k: (q >= k) & (self.docs[b, q] == self.docs[b, k]),
        }[name]


def train(
    score: str, mask: str, device: str, heads: int = 4, width: int = SHAPE[3]
) -> Callable[[], object]:
    """Return a step that attends, with gradients of all that can have one."""
    functions = Functions().to(device)
    torch.manual_seed(1)
    sizes = (SHAPE, *((SHAPE[0], heads, SHAPE[2], last) for last in (SHAPE[3], width)))
    given = [torch.nn.Parameter(torch.randn(size).to(device)) for size in sizes]

    def step() -> object:
        how = functions.mask(mask)
        block = None
        if how is not None:
            samples = SHAPE[0] if mask == "document" else None
            block = create_block_mask(how, samples, None, 64, 64, device, BLOCK_SIZE=16)
        made = compiled(
            *given, functions.score(score), block, scale=0.3, enable_gqa=heads < SHAPE[1]
        )
        loss = made.square().sum()
        loss.backward()
        return loss

    step.model, step.given = torch.nn.ParameterList(given), given  # type: ignore[attr-defined]
    step.model.functions = functions  # type: ignore[attr-defined]
    return step


def expected(step: Any, score: str, mask: str) -> Any:
    """Return the loss by torch's own form, and leave gradients."""
    functions = step.model.functions
    noop = lambda b, h, q, k: q >= 0  # noqa: E731
    same = lambda s, b, h, q, k: s  # noqa: E731
    how = (functions.mask(mask) or noop,)
    made = math_attention(*step.given, functions.score(score) or same, how, 0.3, {})[0]
    loss = made.square().sum()
    loss.backward()
    return loss


FORMS = [
    ("none", "none", 4), ("none", "causal", 4), ("alibi", "windowed", 4), ("relative", "none", 2),
    ("capped", "causal", 1), ("document", "none", 4), ("kinds", "document", 2),
]  # fmt: skip


@pytest.mark.parametrize(("score", "mask", "heads"), FORMS)
def test_the_captured_step_leaves_what_torch_leaves(score: str, mask: str, heads: int) -> None:
    check_step(score, mask, heads, SHAPE[3])


def test_values_may_be_wider_than_keys() -> None:
    check_step("none", "causal", 4, 2 * SHAPE[3])


def check_step(score: str, mask: str, heads: int, width: int) -> None:
    graph = irgraph.capture(train(score, mask, "meta", heads, width)).graph
    assert parse(print_graph(graph)) == graph
    names = [op.name for op in graph.leaves()]
    assert names.count("irgraph.flex_attention") == 1
    assert names.count("irgraph.flex_attention_backward") == 1
    assert price(graph, load_device("a100")).unknown == ()
    real: Any = train(score, mask, "cpu", heads, width)
    held = {**dict(real.model.named_parameters()), **dict(real.model.named_buffers())}
    given = {d.tensor.name: held[d.label].detach() for d in graph.tensors if d.label in held}
    left = execute(graph, given)
    loss = expected(real, score, mask)
    assert torch.allclose(left[graph.returned[0].name], loss, rtol=1e-4)
    wanted = [p.grad for p in real.model.parameters() if p.grad is not None]
    assert len(wanted) >= 3
    for grad in wanted:
        same = [
            t
            for op in graph.leaves()
            if op.base == "flex_attention_backward"
            for t in op.outputs
            if tuple(t.shape) == tuple(grad.shape)
        ]
        assert any(torch.allclose(left[t.name], grad, rtol=1e-3, atol=1e-4) for t in same)


def attention(graph: Any) -> Op:
    return next(op for op in graph.leaves() if op.name == "irgraph.flex_attention")


def test_density_is_the_share_of_blocks_that_torch_computes() -> None:
    for mask, how in (("causal", causal), ("windowed", windowed)):
        op = attention(irgraph.capture(train("none", mask, "meta")).graph)
        block = create_block_mask(how, None, None, 64, 64, "cpu", BLOCK_SIZE=16)
        assert op.attributes["density"] == pytest.approx(1 - block.sparsity() / 100, abs=1e-3)


def test_a_sparser_mask_costs_less() -> None:
    times = []
    for mask in ("none", "causal", "windowed"):
        graph = irgraph.capture(train("none", mask, "meta")).graph
        op = attention(graph)
        kernels = price(graph, load_device("a100")).kernels
        times.append(next(sum(k.time for k in kernels[o]) for o in [op]))
    assert times == sorted(times, reverse=True)


HEAD = """
import torch
from torch.nn.attention.flex_attention import AuxRequest, flex_attention, create_block_mask
def train(batch, device):
    rows = torch.rand(batch, 2, 16, 8).to(device)
    slopes, numbers = torch.rand(2).to(device), [1.0, 2.0]
    def step():
        q = rows * 2
"""


def taken(folder: Path, text: str) -> Any:
    body = "\n".join(f"        {line}" for line in text.strip().splitlines())
    (folder / "mine.py").write_text(f"{HEAD}{body}\n    return step\n")
    return capture_file(f"{folder}/mine.py:train", batch=4)


REFUSED = [
    ("s + slopes", r"takes a tensor of \[2\] whole"),
    ("s - s.amax(-1, keepdim=True)", "aten::amax, which does more than compute one score"),
    ("s if q > k else -s", "branches on a value"),
    ("s + numbers[h]", "keep lists in tensors"),
    ("s.add_(1)", "aten::add_"),
    ("torch.nn.functional.dropout(s, 0.5)", "does more"),
    ("s + torch.tensor([1.0, 2.0], device=s.device)[h]", "FlexAttention's score_mod"),
]


@pytest.mark.parametrize(("score", "reason"), REFUSED)
def test_what_is_not_done_to_each_score_is_refused(tmp_path: Path, score: str, reason: str) -> None:
    with pytest.raises(IrgraphError, match=reason):
        taken(tmp_path, f"return flex_attention(q, q, q, lambda s, b, h, q, k: {score})")


def test_the_batch_is_a_dimension_and_checks_run(tmp_path: Path) -> None:
    captured = taken(
        tmp_path,
        """
docs = torch.arange(16).div(5, rounding_mode="floor").expand(len(rows), 16).to(device)
same = lambda b, h, i, j: docs[b, i] == docs[b, j]
mask = create_block_mask(same, len(rows), None, 16, 16, device)
made, aux = flex_attention(q, q, q, block_mask=mask, return_aux=AuxRequest(True, True))
return made, aux.lse, aux.max_scores
""",
    )
    assert captured.graph.dims == {"B": 4}
    assert any("one kernel that torch.compile generates" in note for note in captured.notes)
    assert compare(captured.graph, captured.graph).same


def test_a_mask_without_values_is_priced_as_full_and_said(tmp_path: Path) -> None:
    captured = taken(
        tmp_path,
        """
far = (rows[:, 0, :, 0] > 0.5)
mask = create_block_mask(lambda b, h, i, j: far[b, j], len(rows), None, 16, 16, device)
return flex_attention(q, q, q, block_mask=mask)
""",
    )
    assert attention(captured.graph).attributes["mask"] == "t0 = aten.index.Tensor(b0, [b, k]); t0"
    assert any("tensors that have no values" in note for note in captured.notes)


def test_autocast_casts_what_is_attended(tmp_path: Path) -> None:
    graph = taken(
        tmp_path,
        """
with torch.autocast(device, torch.bfloat16):
    return flex_attention(q, q, q)
""",
    ).graph
    op = attention(graph)
    assert {t.dtype for t in op.inputs} == {"bf16"} and op.outputs[0].dtype == "bf16"
    assert op.outputs[1].dtype == "f32"


def test_a_longer_sequence_needs_longer_tables(tmp_path: Path) -> None:
    graph = taken(
        tmp_path,
        """
table = torch.zeros(2, 16, device=device)
return flex_attention(q, q, q, lambda s, b, h, i, j: s + table[h, j])
""",
    ).graph
    grown = resize(graph, Axis(attention(graph).inputs[0].name, 2), 24).graph
    assert attention(grown).attributes["buffers"][0].shape[-1] == 24


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("+".join(["s"] * 4000), "cannot be read"),
        ("-" * 5000 + "1", "cannot be read"),
        ("1.0", "it returns no tensor"),
        ("[s]", "it returns no tensor"),
        ("__import__('os')", "neither a number nor a name"),
        ("t0 = aten.add_.Tensor(s, s); t0", "no operator on single elements"),
    ],
)
def test_a_text_that_is_no_function_of_a_score_says_why(text: str, reason: str) -> None:
    with pytest.raises(ScoreFunctionError, match=reason):
        evaluate(text, {"s": torch.zeros(1, 1, 2, 2)}, torch.float32)
