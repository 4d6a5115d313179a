"""Floating-point operations against torch's own counter, on whole steps."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import irgraph
from irgraph.ops.flops import flops, step_flops
from irgraph.ops.inference import ShapeError, torch_results
from irgraph.text import parse
from tests.ops.test_laws import ops as calls

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def counted(make: Callable[[str], Callable[[], object]], where: str = "cpu") -> tuple[int, int]:
    """Return what torch counts of a step, and what we count of its capture."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    step = make(where)
    with counter:
        step()
    return counter.get_total_flops(), step_flops(irgraph.capture(make("meta")).graph)[0]


def convolutions(device: str) -> Callable[[], object]:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(8, 16, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.ConvTranspose2d(16, 8, 4, stride=2),
        torch.nn.Conv2d(8, 4, 1),
    ).to(device)
    x = torch.randn(2, 8, 20, 24, device=device, requires_grad=True)
    return lambda: model(x).sum().backward()


def products(device: str) -> Callable[[], object]:
    first = torch.nn.Linear(16, 32).to(device)
    x = torch.randn(4, 6, 16, device=device, requires_grad=True)
    other = torch.randn(4, 32, 8, device=device, requires_grad=True)

    def step() -> None:
        made = torch.relu(first(x)) @ other
        torch.baddbmm(made, made, made.transpose(1, 2) @ made).sum().backward()

    return step


def recurrent(
    kind: str, trained: bool = True, **options: Any
) -> Callable[[str], Callable[[], object]]:
    """Return a step of layers whose first states take gradients, as cuDNN always computes those."""

    def make(device: str) -> Callable[[], object]:
        layer = getattr(torch.nn, kind)(12, 16, 2, bidirectional=True, **options).to(device)
        layer.requires_grad_(trained)
        widths = [options.get("proj_size") or 16, 16][: 2 if kind == "LSTM" else 1]
        states = [torch.randn(4, 3, n, device=device, requires_grad=True) for n in widths]
        x = torch.randn(7, 3, 12, device=device, requires_grad=True)
        first = tuple(states) if kind == "LSTM" else states[0]
        return lambda: layer(x, first)[0].sum().backward()

    return make


@pytest.mark.parametrize("make", [convolutions, products])
def test_a_step_has_the_flop_that_torch_counts(make: Callable[[str], Callable[[], object]]) -> None:
    theirs, ours = counted(make)
    assert theirs > 0
    assert ours == theirs


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize(
    ("kind", "options"), [("LSTM", {}), ("LSTM", {"proj_size": 5}), ("GRU", {}), ("RNN", {})]
)
def test_recurrent_layers_have_the_flop_of_their_cells(
    kind: str, options: Any, trained: bool
) -> None:
    # one call of cuDNN beside torch's own form, whose products torch counts one by one
    theirs, ours = counted(recurrent(kind, trained, **options), "meta")
    assert theirs > 0
    assert ours == theirs


@pytest.mark.long
@pytest.mark.parametrize("name", ["dlrm:default", "dlrm:mlperf", "resnet50:small", "mlp:train"])
def test_examples_have_the_flop_that_torch_counts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from importlib import import_module

    module, _, function = name.partition(":")
    more = {"max_rows": 100} if module == "dlrm" else {}
    made: Any = getattr(import_module(module), function)
    theirs, ours = counted(lambda device: made(8, device, **more))
    assert theirs > 0
    assert ours == theirs


def test_attention_has_the_flop_of_torch_s_formulas() -> None:
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).to("meta")
    x = torch.randn(2, 10, 64, device="meta", requires_grad=True)
    graph = irgraph.capture(lambda: layer(x).sum().backward()).graph
    found = [flops(op) for op in graph.walk() if "_attention" in op.name and not op.body]
    heads = (2, 4, 10, 16)
    assert found == [sdpa_flop_count(*[heads] * 3), sdpa_backward_flop_count(*[heads] * 4)]


def test_the_weight_s_gradient_of_a_grouped_convolution_is_parted_by_groups() -> None:
    layer = torch.nn.Conv2d(8, 16, 3, groups=4).to("meta")
    x = torch.randn(2, 8, 10, 10, device="meta", requires_grad=True)
    graph = irgraph.capture(lambda: layer(x).sum().backward()).graph
    forward, backward = [flops(op) for op in graph.walk() if flops(op)]
    assert forward == 2 * 2 * 8 * 8 * 16 * (8 // 4) * 9
    assert backward == 2 * forward


def test_what_is_no_product_has_none() -> None:
    text = """model "m" { format = 2 }
input %x : f32[4, 4] in $b1
%y = aten.relu(%x) : f32[4, 4] in $b2
%z = aten.mm(%x, %y) : f32[4, 4] in $b3
return %z
"""
    graph = parse(text, "m.ir")
    assert [flops(op) for op in graph.ops] == [0, 2 * 4 * 4 * 4]


def test_a_product_whose_operands_are_not_recorded_is_said_to_lack() -> None:
    text = """model "m" { format = 1  operands = "by shape" }
state %x : f32[2, 8, 20, 20] in $b1
state %w : f32[16, 8, 3, 3] in $b1
aten.convolution(%x, %w)
aten.mm(%x)
"""
    assert step_flops(parse(text, "m.ir")) == (0, 2)


def test_a_convolution_without_its_numbers_counts_by_its_tensors() -> None:
    """Traces without values lack strides: image, weight and result tell, as for torch's counter."""
    text = """model "m" { format = 1  operands = "by shape" }
state %x : f32[2, 8, 20, 20] in $b1
state %w : f32[16, 8, 3, 3] in $b2
%y = aten.convolution(%x, %w) : f32[2, 16, 18, 18] in $b3
"""
    assert [flops(op) for op in parse(text, "m.ir").ops] == [2 * (2 * 16 * 18 * 18) * (8 * 3 * 3)]


def test_products_in_tf32_and_in_place_count_as_the_plain_ones() -> None:
    text = """model "m" { format = 2 }
input %x : f32[4, 8] in $b1
input %w : f32[8, 16] in $b2
input %a : f32[4, 16] in $b4
%y = aten.mm(%x, %w) : f32[4, 16] in $b3
%z = irgraph.mm_tf32(%x, %w) : f32[4, 16] in $b5
aten.addmm_(%a!, %x, %w)
return %z
"""
    assert [flops(op) for op in parse(text, "m.ir").ops] == [2 * 4 * 8 * 16] * 3


def test_attention_as_a_whole_counts() -> None:
    text = """model "m" { format = 2 }
input %q : f16[2, 4, 10, 16] in $b1
%y = aten.scaled_dot_product_attention(%q, %q, %q) : f16[2, 4, 10, 16] in $b2
return %y
"""
    assert [flops(op) for op in parse(text, "m.ir").ops] == [2 * 2 * 2 * 4 * 10 * 10 * 16]


def test_products_without_a_formula_are_said_to_lack() -> None:
    text = """model "m" { format = 2 }
input %x : f32[4, 8] in $b1
input %v : f32[8] in $b2
%y = aten.mv(%x, %v) : f32[4] in $b3
return %y
"""
    assert step_flops(parse(text, "m.ir")) == (0, 1)


@pytest.mark.long
def test_each_declared_product_has_the_flop_that_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    counts: Counter[str] = Counter()
    for op in calls():
        ours = flops(op)
        counter = FlopCounterMode(display=False)
        try:
            with counter:
                torch_results(op, (), {})
        except ShapeError:
            counts["not run"] += 1
            continue
        theirs = counter.get_total_flops()
        if op.name == "aten.convolution_backward" and op.attributes.get("groups") != 1:
            continue
        if op.base.startswith("_cudnn_rnn"):
            continue  # torch has no formula for these
        assert (ours or 0) == theirs, op
        counts["products" if theirs else "others"] += 1
    sys.stdout.write(f"floating-point operations, compared with torch: {dict(counts)}\n")
    assert counts["products"] >= 30, counts
