"""The card whose properties a program reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import irgraph
from irgraph.capture.emulate.cards.card import EmulatedCard, card_by_name
from irgraph.text import IrgraphError

PROGRAM = """
import torch
def make(batch, device):
    card = torch.cuda.get_device_properties(0)
    w = torch.rand(64, 64, device=device)
    x = torch.rand(batch, 64)
    capability = torch.cuda.get_device_capability()
    assert (card.major, card.minor) == capability
    def step():
        if capability >= (8, 9):
            one = torch.ones((), device=device)
            a, b = (t.to(device).to(torch.float8_e4m3fn) for t in (x, w))
            return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)
        assert card.multi_processor_count == 108
        return x.to(device) @ w.t()
    return step
"""


@pytest.mark.parametrize(("card", "base"), [("h100", "_scaled_mm"), (None, "mm")])
def test_a_program_runs_the_code_of_its_card(tmp_path: Path, card: str | None, base: str) -> None:
    (tmp_path / "mine.py").write_text(PROGRAM)
    captured = irgraph.capture_file(f"{tmp_path}/mine.py:make", batch=32, card=card)
    assert base in {leaf.base for leaf in captured.graph.leaves()}
    name = "H100-80GB-HBM3" if card else "A100-SXM4-80GB"
    assert any(f"its card: those of {name}" in note for note in captured.notes)
    assert captured.graph.settings.get("card") == (name if card else None)
    # the header and predictions follow the card
    sheet = name if card else "v100"
    assert captured.graph.devices[0].sheet == sheet
    assert irgraph.predict(captured.graph).options.device == sheet


def test_attention_before_ampere_has_no_flash_kernel() -> None:
    class Attention(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x)

    x = torch.rand(2, 4, 16, 64, dtype=torch.float16)
    for card, kernel in (("v100", "efficient"), ("a100", "flash")):
        graph = irgraph.capture(Attention(), x, card=card).graph
        assert any(kernel in op.name for op in graph.walk())


def test_the_default_card_is_that_of_its_sheet() -> None:
    assert card_by_name("a100-sxm4-80gb") == EmulatedCard()
    assert card_by_name("") is None


@pytest.mark.parametrize("name", ["mi300x", "h1000"])
def test_a_card_without_cuda_is_refused(name: str) -> None:
    with pytest.raises(IrgraphError):
        card_by_name(name)
