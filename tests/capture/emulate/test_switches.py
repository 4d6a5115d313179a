"""How a program rounds float32 and chooses algorithms is part of its step, and of nobody else's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import irgraph

torch = pytest.importorskip("torch")

from irgraph.capture.emulate.switches import float32_settings, restored_switches  # noqa: E402


def allow(kind: str) -> Callable[[], None]:
    def tell() -> None:
        backends = torch.backends
        match kind:
            case "flag":
                backends.cuda.matmul.allow_tf32 = True
            case "call":
                torch.set_float32_matmul_precision("medium")
            case "all":
                backends.fp32_precision = "tf32"
            case "cuDNN":
                backends.cudnn.allow_tf32 = False

    return tell


def test_torch_rounds_by_itself_only_in_cudnn() -> None:
    assert float32_settings() == {}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("flag", {"tf32": True}),
        ("call", {"tf32": True}),
        ("all", {"tf32": True}),
        ("cuDNN", {"tf32_convolutions": False}),
    ],
)
def test_each_way_of_saying_so_is_seen_and_undone(kind: str, settings: dict[str, bool]) -> None:
    with restored_switches():
        allow(kind)()
        assert float32_settings() == settings
    assert float32_settings() == {}
    torch.get_float32_matmul_precision()  # raises where newer and older ways are at odds
    assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32


SCRIPT = """
import torch

torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = False
model = torch.nn.Linear(2048, 2048, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
for _ in range(9):
    model(torch.randn(4096, 2048, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_script_s_products_cost_what_its_settings_make_them(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    fast = irgraph.capture_file(str(file)).graph
    file.write_text(SCRIPT.replace("True", "False", 1))
    slow = irgraph.capture_file(str(file)).graph
    assert fast.settings["tf32"] is True
    assert "tf32" not in slow.settings
    assert fast.settings["tf32_convolutions"] is slow.settings["tf32_convolutions"] is False

    def product(graph: irgraph.Graph, device: str) -> float:
        found = irgraph.predict(graph, device=device, host="v100").summary()
        assert not found["device"]["tf32_convolutions"]
        return float(found["gpu_active_us"])

    # A100: 19.5 TFLOP/s on plain cores and 156 on matrix units (data sheet); V100 has no such units
    assert product(slow, "a100") > 4 * product(fast, "a100")
    assert product(slow, "v100") == product(fast, "v100")
    sizes = [dict(fast.dims)]
    (many,) = irgraph.predict_variants(fast, ["a100"], sizes).step_time.ravel()
    assert many == irgraph.predict(fast, device="a100").step_time


DETERMINISTIC = """
import torch

torch.use_deterministic_algorithms(True, warn_only=True)
torch.backends.cudnn.benchmark = True
model = torch.nn.Linear(8, 8, device="cuda")
for _ in range(9):
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    model.zero_grad()
"""


def test_deterministic_kernels_are_told_to_be_priced_as_others(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(DETERMINISTIC)
    captured = irgraph.capture_file(str(file), step_at="backward")
    assert sum("deterministic" in note for note in captured.notes) == 1
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.backends.cudnn.benchmark
