"""Rewrites with backward of torch's own sample calls equal captures of the rewritten programs."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from irgraph.execute import compare
from irgraph.language import load_script, run
from tests.verbs.backward_law import claims, name_of, op_infos
from tests.verbs.test_both_passes import graph_of, plain, step_of

OPS = (
    "add", "addmm", "atanh", "expand_as", "fmax", "masked.prod", "maximum", "std.unbiased", "sum",
    "nn.functional.cross_entropy", "nn.functional.layer_norm", "nn.functional.linear",
    "nn.functional.mish", "nn.functional.mse_loss", "nn.functional.poisson_nll_loss",
    "nn.functional.silu",
)  # fmt: skip
"""Sums, ops that decompose in place, composite ones, norms, losses and activations."""

TEMPLATES = {
    "silu": "%y = aten.silu(%x)",
    "mish": "%y = aten.mish(%x)",
    "logsigmoid": "%y = aten.log_sigmoid(%x)",
    "hardswish": "%y = aten.hardswish(%x)",
    "softsign": "{ %a = aten.abs(%x)  %b = aten.add(%a, other = 1)  %y = aten.div(%x, %b) }",
}
"""Activations of ``torch.nn.functional`` in the language."""

EVERY = 18
"""One op in this number is tried: all take ten minutes of processor time."""


@pytest.fixture(scope="module")
def infos() -> dict[str, Any]:
    return {name_of(op): op for op in op_infos()}


@pytest.mark.long
@pytest.mark.parametrize("name", OPS)
def test_a_rewrite_of_an_op_is_the_rewritten_program(name: str, infos: dict[str, Any]) -> None:
    results = list(claims(infos[name], samples=1))
    assert "equal" in {claim.verdict for claim in results}
    assert [claim.text for claim in results if claim.verdict == "wrong"] == []


@pytest.mark.long
def test_a_backward_without_captured_results_is_refused(infos: dict[str, Any]) -> None:
    results = list(claims(infos["__getitem__"], samples=1, needs=["all"]))
    assert {claim.verdict for claim in results} <= {"equal", "refused"}


@pytest.mark.slow
def test_ops_of_torch_are_derived_or_refused(infos: dict[str, Any]) -> None:
    results = [claim for op in list(infos.values())[::EVERY] for claim in claims(op, samples=1)]
    counts = Counter(claim.verdict for claim in results)
    sys.stdout.write(f"{dict(counts)}\n")
    assert [claim.text for claim in results if claim.verdict == "wrong"] == []
    assert counts["equal"] > counts["refused"]


class Adapted(nn.Module):
    """A frozen layer with a trained one of low rank beside it, and an activation."""

    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.base, self.activation = nn.Linear(8, 8), activation
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        self.base.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        """Return [B, 8] for [B, 8]."""
        return x + self.activation(self.base(x) + 2 * self.up(self.down(x)))


def autocast(model: Any, x: Any) -> Any:
    """Run the forward pass under autocast."""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).square().mean()
    loss.backward()
    return loss


@pytest.mark.long
@pytest.mark.parametrize("loss", [plain, autocast])
@pytest.mark.parametrize("name", TEMPLATES)
def test_adapters_beside_frozen_weights_change_with_their_backward(loss: Any, name: str) -> None:
    activation = getattr(nn.functional, name)
    before = graph_of(step_of(torch.relu, loss, Adapted(torch.relu)))
    meant = graph_of(step_of(activation, loss, Adapted(activation)))
    script = f"replace many %y = aten.relu(%x) with {TEMPLATES[name]} and backward"
    done = run(load_script(script), before)
    assert not [refusal for entry in done.report.entries for refusal in entry.refused]
    result = compare(done.graph, meant)
    assert result.same, str(result)
