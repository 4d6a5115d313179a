"""What the meta device stands for: fused attention, autocast, optimizers, pinned memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from costmodels.devices.library import load_device
from costmodels.pricing.price import price
from irgraph.capture.common.result import Capture
from irgraph.capture.live import capture, capture_file
from irgraph.execute import compare
from irgraph.execute.type_check import type_findings
from irgraph.ir.op import Op
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError, parse, print_graph

F = torch.nn.functional


TIED = """
import torch

def train(batch, device):
    model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.to(device)
    words = torch.arange(batch)

    def step():
        optimizer.zero_grad()
        model(words.to(device)).sum().backward()
        optimizer.step()

    return step
"""


def taken(step: Callable[[], Any], **options: Any) -> Capture:
    captured = capture(step, **options)
    assert verify(captured.graph) == []
    assert parse(print_graph(captured.graph)) == captured.graph
    return captured


def names(captured: Capture) -> set[str]:
    return {op.name for op in captured.graph.walk()}


def only(captured: Capture, name: str) -> Op:
    (found,) = (op for op in captured.graph.walk() if op.name == name)
    return found


def heads(dtype: Any, *, width: int = 64, count: int = 4, length: int = 128) -> Any:
    return torch.empty(2, count, length, width, dtype=dtype, device="meta", requires_grad=True)


def attend(query: Any, key: Any = None, backward: bool = True, **options: Any) -> Capture:
    key = query if key is None else key

    def step() -> None:
        result = F.scaled_dot_product_attention(query, key, key, **options)
        if backward:
            result.sum().backward()

    return taken(step)


FUSED = {
    torch.float16: "aten._scaled_dot_product_flash_attention",
    torch.bfloat16: "aten._scaled_dot_product_flash_attention",
    torch.float32: "aten._scaled_dot_product_efficient_attention",
}


@pytest.mark.parametrize("dtype", FUSED, ids=str)
def test_attention_is_fused_forward_and_backward(dtype: Any) -> None:
    captured = attend(heads(dtype))
    scope = only(captured, "aten.scaled_dot_product_attention")
    assert [op.name for op in scope.body] == [FUSED[dtype]]
    assert only(captured, f"{FUSED[dtype]}_backward").phase == "backward"
    assert not {"aten.bmm", "aten._softmax"} & names(captured)
    assert any("scaled_dot_product_attention runs the" in note for note in captured.notes)


def test_fused_attention_has_a_price_and_a_causal_one_is_cheaper() -> None:
    sheet = load_device("a100")
    times = []
    for causal in (False, True):
        graph = attend(heads(torch.float16, length=4096), is_causal=causal).graph
        priced = price(graph, sheet)
        ops = [op for op in graph.walk() if op.base.startswith("_scaled_dot_product_flash")]
        found = [kernel for op in ops for kernel in priced.of(op)]
        assert [kernel.family for kernel in found] == ["attention"] * 2
        times.append(sum(kernel.time for kernel in found))
    assert times[1] < times[0]


def test_attention_with_a_mask_runs_the_memory_efficient_kernel() -> None:
    mask = torch.empty(128, 128, dtype=torch.bool, device="meta")
    captured = attend(heads(torch.float16), attn_mask=mask)
    scope = only(captured, "aten.scaled_dot_product_attention")
    assert [op.base for op in scope.body] == [
        "scalar_tensor",
        "where",
        "expand",
        "_scaled_dot_product_efficient_attention",
    ]


def test_a_mask_of_odd_width_is_padded() -> None:
    query, mask = heads(torch.float32), torch.empty(128, 130, device="meta")
    key = torch.empty(2, 4, 130, 64, device="meta")
    scope = only(attend(query, key, attn_mask=mask), "aten.scaled_dot_product_attention")
    assert [op.base for op in scope.body][:2] == ["constant_pad_nd", "slice"]


def test_heads_of_odd_width_are_padded_for_flash() -> None:
    captured = attend(heads(torch.float16, width=60))
    scope = only(captured, "aten.scaled_dot_product_attention")
    assert [op.base for op in scope.body].count("constant_pad_nd") == 3
    assert scope.outputs[0].shape[-1] == 60
    flash = only(captured, "aten._scaled_dot_product_flash_attention")
    assert flash.attributes["scale"] == pytest.approx(60**-0.5)


def test_grouped_heads_run_flash() -> None:
    key = heads(torch.float16, count=2)
    captured = attend(heads(torch.float16), key, enable_gqa=True, backward=False)
    assert "aten._scaled_dot_product_flash_attention" in names(captured)


@pytest.mark.parametrize("count", [4, 2])
def test_a_step_with_flash_has_the_types_of_torch_and_can_be_run(count: int) -> None:
    key = heads(torch.bfloat16, count=count)
    graph = attend(heads(torch.bfloat16), key, enable_gqa=True, is_causal=True).graph
    assert list(type_findings(graph)) == []
    assert compare(graph, graph, draws=1).same


def test_attention_that_fits_no_kernel_is_taken_apart() -> None:
    captured = attend(heads(torch.float32, width=63))
    assert {"aten.bmm", "aten._safe_softmax"} & names(captured)
    assert any("fits no fused kernel" in note for note in captured.notes)


def test_a_kernel_that_the_program_forbids_is_not_chosen() -> None:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
        captured = attend(heads(torch.float16))
    assert "aten._scaled_dot_product_efficient_attention" in names(captured)


def test_attention_is_fused_under_inference_mode() -> None:
    query = torch.empty(2, 4, 128, 64, dtype=torch.float16, device="meta")

    @torch.inference_mode()
    def step() -> None:
        F.scaled_dot_product_attention(query, query, query)

    scope = only(taken(step), "aten.scaled_dot_product_attention")
    assert [op.base for op in scope.body] == ["_scaled_dot_product_flash_attention"]


def test_modules_with_attention_use_the_fused_form() -> None:
    layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True, device="meta")
    x = torch.empty(2, 16, 64, device="meta")
    captured = taken(lambda: layer(x).sum().backward())
    assert "aten._scaled_dot_product_efficient_attention_backward" in names(captured)


def test_a_module_with_a_fast_path_is_told_in_evaluation() -> None:
    layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True, device="meta").eval()
    x = torch.empty(2, 16, 64, device="meta")
    captured = taken(lambda: layer(x))
    assert any("TransformerEncoderLayer: one call" in line for line in captured.differing)


def test_capture_leaves_torch_as_it_was() -> None:
    query = torch.rand(1, 2, 8, 8)
    before = F.scaled_dot_product_attention(query, query, query)
    attend(heads(torch.float16))
    assert torch.equal(before, F.scaled_dot_product_attention(query, query, query))
    with pytest.raises(RuntimeError, match="unsupported"):
        torch.autocast("meta")
    with pytest.warns(UserWarning, match="Disabling autocast"):
        torch.autocast("cuda")


def training(device: str, dtype: Any = None) -> tuple[Any, Callable[[], None]]:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16)).to("meta")
    x = torch.empty(4, 16, device="meta")

    def step() -> None:
        with torch.autocast(device, dtype=dtype):
            loss = F.mse_loss(model(model[0](x)), x)
        loss.backward()

    return model, step


@pytest.mark.parametrize("device", ["cuda", "meta"])
def test_autocast_casts_as_for_a_cuda_device(device: str) -> None:
    model, step = training(device, torch.bfloat16)
    captured = taken(step, model=model)
    graph = captured.graph
    products = [op for op in graph.walk() if op.name == "aten.addmm"]
    assert [[t.dtype for t in op.inputs] for op in products] == [["bf16"] * 3] * 2
    assert only(captured, "aten.native_layer_norm").inputs[0].dtype == "f32"
    assert only(captured, "aten.mse_loss").outputs[0].dtype == "f32"
    grads = [op for op in graph.walk() if op.name == "aten.add_" and op.phase == "backward"]
    assert {t.dtype for op in grads for t in op.inputs} == {"f32"}


def test_autocast_casts_a_weight_once_and_outside_of_the_product() -> None:
    model, step = training("cuda")
    graph = taken(step, model=model).graph
    weight = next(d.tensor for d in graph.tensors if d.label == "0.weight")
    casts = [op for op in graph.ops if op.name == "aten.to" and weight in op.inputs]
    assert [op.outputs[0].dtype for op in casts] == ["f16"]
    linears = [op for op in graph.ops if op.name == "aten.linear"]
    assert [op.inputs[1] for op in linears] == [casts[0].outputs[0]] * 2


def test_autocast_softmax_of_half_precision_gives_single() -> None:
    x = torch.empty(4, 8, dtype=torch.float16, device="meta")

    def step() -> None:
        with torch.autocast("cuda"):
            x.softmax(-1)

    softmax = only(taken(step), "aten._softmax")
    assert softmax.attributes["half_to_float"] is True
    assert softmax.outputs[0].dtype == "f32"


def test_autocast_under_inference_mode_and_switched_off() -> None:
    x = torch.empty(4, 4, device="meta")

    @torch.inference_mode()
    def step() -> None:
        with torch.autocast("cuda"):
            x @ x
            with torch.autocast("cuda", enabled=False):
                x @ x

    products = [op for op in taken(step).graph.walk() if op.name == "aten.mm"]
    assert [op.inputs[0].dtype for op in products] == ["f16", "f32"]


def test_autocast_on_the_cpu_is_told_not_to_be_in_effect() -> None:
    x = torch.ones(4, 4)

    def step() -> None:
        with torch.autocast("cuda"):
            x @ x

    notes = taken(step, device="cpu").notes
    assert sum("autocast was not in effect" in note for note in notes) == 1


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_fused_optimizers_are_captured(kind: str) -> None:
    model = torch.nn.Linear(8, 8, device="meta")
    x = torch.empty(2, 8, device="meta")
    made: list[Any] = []

    def step() -> None:
        if not made:
            made.append(getattr(torch.optim, kind)(model.parameters(), lr=0.1, fused=True))
        made[0].zero_grad()
        model(x).sum().backward()
        made[0].step()

    captured = taken(step, model=model)
    update = only(captured, f"aten._fused_{kind.lower()}_")
    weight = next(d.tensor.name for d in captured.graph.tensors if d.label == "weight")
    assert weight in update.written
    assert price(captured.graph, load_device("v100")).unknown == ()


def test_a_gradient_scaler_lets_the_optimizer_step() -> None:
    model = torch.nn.Linear(8, 8, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.empty(2, 8, device="meta")
    made: list[Any] = []

    def step() -> None:
        if not made:
            made.append(torch.amp.GradScaler("cuda"))
        with torch.autocast("cuda"):
            loss = model(x).sum()
        made[0].scale(loss).backward()
        made[0].step(optimizer)
        made[0].update()

    captured = taken(step, model=model)
    assert {"aten._amp_foreach_non_finite_check_and_unscale_", "aten._amp_update_scale_"} <= names(
        captured
    )
    assert any(
        op.phase == "optimizer" and "_foreach_add_" in op.name for op in captured.graph.walk()
    )


def test_warnings_become_notes_once() -> None:
    x = torch.empty(3, device="meta")

    def step() -> None:
        for _ in range(3):
            warnings.warn("the data look odd\nin several lines", stacklevel=1)
        x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notes = taken(step).notes
    assert notes == ("torch warned: the data look odd",)


def test_the_observer_writes_nothing_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    x = torch.empty(3, device="meta")
    taken(lambda: x + 1)
    assert capfd.readouterr().err == ""


def copying(pin: bool, **options: Any) -> Capture:
    x = torch.rand(64, 1024)
    held: list[Any] = []

    def step() -> None:
        if not held:
            held.append(x.pin_memory() if pin else x)
        held[0].to("meta", **options) + 1

    return taken(step)


def test_memory_that_the_program_pins_is_recorded_as_pinned() -> None:
    assert copying(True, non_blocking=True).graph.settings["pinned"] is True


def test_memory_that_is_not_pinned_is_not_said_to_be() -> None:
    captured = copying(False, non_blocking=True)
    assert "pinned" not in captured.graph.settings
    assert any("copies with non_blocking from pageable memory (1)" in n for n in captured.notes)


def test_pinned_memory_beside_pageable_memory_is_told() -> None:
    x = torch.rand(4)
    taken_notes = taken(lambda: (x.to("meta"), x.pin_memory().to("meta"))).notes
    assert any("1 of 2 copied host tensors lie in pinned memory" in n for n in taken_notes)


def test_the_user_may_say_that_memory_is_pinned() -> None:
    x = torch.rand(4)
    captured = taken(lambda: x.to("meta", non_blocking=True), pinned=True)
    assert captured.graph.settings["pinned"] is True
    assert captured.notes == ()


def test_recurrent_layers_without_cudnn_are_told_to_differ() -> None:
    layer = torch.nn.LSTM(8, 8, device="meta")
    x = torch.empty(3, 2, 8, device="meta")
    with torch.backends.cudnn.flags(enabled=False):
        captured = taken(lambda: layer(x))
    assert price(captured.graph, load_device("v100")).unknown == ()
    (line,) = captured.differing
    assert line == "aten.lstm (1): aten._cudnn_rnn, one call for all steps and layers"


def test_compiled_parts_are_told() -> None:
    layer = torch.compile(torch.nn.Linear(8, 8, device="meta"))
    twice = torch.compile(lambda x: x + x)
    x = torch.empty(2, 8, device="meta")
    captured = taken(lambda: twice(layer(x)))
    assert "torch.compile (layer, twice): fused kernels" in captured.differing[-1]
    assert names(captured) >= {"aten.linear", "aten.add"}
    assert [d.label for d in captured.graph.tensors if d.role == "param"] == ["weight", "bias"]


COMPILED = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
early = torch.compile(net)

def given(batch, device):
    moved = early.to(device)
    x = torch.ones(batch, 8, device=device)
    return lambda: moved(x).sum().backward()

def inside(batch, device):
    x = torch.ones(batch, 8, device=device)
    return lambda: torch.compile(net.to(device))(x).sum().backward()

@torch.compile
def loss(y):
    return y.square().mean()

def whole(batch, device):
    x = torch.ones(batch, 8, device=device)
    return torch.compile(lambda: loss(net.to(device)(x)).backward())
"""


@pytest.mark.parametrize("name", ["given", "inside", "whole"])
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_compiled_programs_are_captured_as_without_it(
    tmp_path: Path, name: str, device: str
) -> None:
    (tmp_path / "compiled.py").write_text(COMPILED)
    captured = capture_file(f"{tmp_path}/compiled.py:{name}", batch=4, device=device)
    assert {"aten.linear", "aten.gelu", "autograd.GeluBackward0"} <= names(captured)
    assert any("torch.compile" in line for line in (*captured.notes, *captured.differing))


def _images(device: str, dtype: torch.dtype, given: bool, weights: bool) -> Callable[[], object]:
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, groups=8),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 4, 1),
        torch.nn.ConvTranspose2d(4, 8, 3),
    ).to(device, dtype)
    layers = layers.to(memory_format=torch.channels_last) if weights else layers
    x = torch.ones(2, 3, 16, 16, device=device, dtype=dtype)
    x = x.to(memory_format=torch.channels_last) if given else x
    return lambda: layers(x).square().mean().backward()


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_convolutions_keep_channels_last_as_where_they_run(given: bool, weights: bool) -> None:
    def made(device: str) -> list[tuple[str, object, object]]:
        graph = capture(_images(device, torch.float32, given, weights), device=device).graph
        leaves = [op for op in graph.leaves() if op.name.startswith("aten.conv")]
        tensors = [(op.name, t) for op in leaves for t in op.outputs if t.rank == 4]
        return [(name, t.shape, t.strides) for name, t in tensors]

    assert made("meta") == made("cpu")
    assert any(strides for *_, strides in made("meta")) == (given or weights)


def test_convolutions_in_f64_are_contiguous() -> None:
    graph = taken(_images("meta", torch.float64, given=True, weights=True)).graph
    found = [op for op in graph.walk() if op.name == "aten.convolution"]
    assert all(op.outputs[0].contiguous for op in found)


def test_dropout_runs_its_one_kernel_in_training() -> None:
    x = torch.empty(8, device="meta", requires_grad=True)
    captured = taken(lambda: F.dropout(x, 0.1).sum().backward())
    assert [op.name for op in only(captured, "aten.dropout").body] == ["aten.native_dropout"]
    assert "aten.native_dropout_backward" in names(captured)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_dropout_does_nothing_in_evaluation(mode: Any) -> None:
    x = torch.empty(8, device="meta")

    @mode()
    def step() -> None:
        F.dropout(x, 0.1, training=False) + 1

    assert not {"aten.clone", "aten.native_dropout", "aten.bernoulli_"} & names(taken(step))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_recomputes_under_the_same_autocast(reentrant: bool) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).to("meta")
    x = torch.empty(4, 8, device="meta", requires_grad=True)

    def step() -> None:
        with torch.autocast("meta", dtype=torch.bfloat16):
            kept = torch.utils.checkpoint.checkpoint(layers, x, use_reentrant=reentrant)
        kept.sum().backward()

    products = [op for op in taken(step).graph.walk() if op.name == "aten.addmm"]
    assert [op.phase for op in products] == ["forward", "backward"]
    assert {op.inputs[1].dtype for op in products} == {"bf16"}


def test_a_failing_step_leaves_autocast_as_it_was() -> None:
    def step() -> None:
        with torch.autocast("meta"):
            raise ValueError

    with pytest.raises(IrgraphError):
        capture(step)
    assert not torch.is_autocast_enabled("cuda")


def test_what_must_not_be_compiled_is_not_told_as_compiled() -> None:
    kept = torch.compiler.disable(lambda x: x + x)
    layer = torch.compiler.disable(torch.nn.Linear(8, 8, device="meta"))
    x = torch.empty(2, 8, device="meta")
    assert not any("torch.compile" in line for line in taken(lambda: kept(layer(x))).differing)


def test_checkpoints_are_not_compiled() -> None:
    from torch.utils.checkpoint import checkpoint

    layer = torch.nn.Linear(8, 8, device="meta")
    x = torch.empty(2, 8, device="meta")
    captured = taken(lambda: checkpoint(layer, x, use_reentrant=False).sum().backward())
    assert not any("torch.compile" in line for line in captured.differing)


def test_parameters_that_modules_share_stay_shared(tmp_path: Path) -> None:
    file = tmp_path / "tied.py"
    file.write_text(TIED)
    captured = capture_file(f"{file}:train", batch=4)
    labels = [d.label for d in captured.graph.tensors if d.role == "param"]
    assert labels == ["0.weight"]
    assert torch.__future__.get_swap_module_params_on_conversion() is False
