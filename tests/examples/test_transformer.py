"""The language model example is captured as a CUDA device would run it, and it learns."""

from __future__ import annotations

import runpy
from pathlib import Path

import torch

from costmodels.devices.library import load_device
from costmodels.pricing.price import price
from irgraph.capture.live import capture_file

FILE = Path(__file__).resolve().parents[2] / "examples" / "transformer.py"


def test_it_is_captured_fused_in_mixed_precision_for_any_batch() -> None:
    graph = capture_file(f"{FILE}:train(layers=1, width=64, length=32)", batch=8).graph
    (flash,) = (op for op in graph.walk() if op.base == "_scaled_dot_product_flash_attention")
    assert [str(size) for size in flash.inputs[0].shape] == ["B", "4", "32", "16"]
    assert {op.inputs[1].dtype for op in graph.walk() if op.name == "aten.addmm"} == {"bf16"}
    assert "aten._fused_adamw_" in {op.name for op in graph.walk()}
    assert price(graph, load_device("a100")).unknown == ()


def test_it_learns() -> None:
    torch.manual_seed(0)
    step = runpy.run_path(str(FILE))["train"](2, "cpu", layers=1, width=32, length=16)
    losses = [step().item() for _ in range(10)]
    assert losses[-1] < losses[0]
