"""A device sheet from measurements: bandwidths, matrix rates, copies with the host, launches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from costmodels.benchmarks.bench import free_memory
from costmodels.measure.run import current, describe, nvidia_smi, sheet_name
from costmodels.measure.timer import measure_call
from irgraph.ir.dtypes import TORCH

Torch = Any
LARGE, SIDE = 2**28, 4096
"""Bytes of a copy larger than any cache, and side of a matrix product that fills any device."""
ARCHITECTURES = {
    "sm_6": "pascal", "sm_7": "volta", "sm_75": "turing", "sm_8": "ampere", "sm_89": "ada",
    "sm_9": "hopper", "sm_1": "blackwell", "gfx90": "cdna2", "gfx94": "cdna3",
}  # fmt: skip
"""Architecture by prefix of the target that kernels are compiled for; the longest match applies."""
LANES = {"sm_60": 64, "sm_70": 64, "sm_75": 64, "sm_80": 64, "gfx90a": 64}
"""float32 multiply-adds that a multiprocessor starts per cycle (CUDA C++ Programming Guide), if not
128."""
UNITS = {"f16": (7, 0), "bf16": (8, 0), "tf32": (8, 0)}
"""First compute capability whose matrix units support each type."""


def calibrate(torch: Torch, device: str, *, scale: float = 1.0) -> dict[str, Any]:
    """Return a device sheet as plain values, every measured figure with its source.

    ``scale`` below 1 shrinks the copies and products, for a quick look.
    """
    with current(torch, device):
        return _sheet(torch, device, int(LARGE * scale), max(int(SIDE * scale), 64))


def _sheet(torch: Torch, device: str, nbytes: int, side: int) -> dict[str, Any]:
    name = describe(torch, device, 0)["name"]
    source = f"irgraph calibrate, {name}, torch {torch.__version__}"

    def figure(value: float, datasheet: float | None = None) -> dict[str, Any]:
        datasheet_fields = {} if datasheet is None else {"datasheet": round(datasheet, 3)}
        return {**datasheet_fields, "measured": round(value, 3), "source": source}

    sheet = _properties(torch, device)
    clock = sheet["clock_mhz"]["measured"]
    sheet["clock_mhz"]["datasheet"] = clock
    matrix_rate = _matrix_rate(torch, device, "f32", side)
    peak = 2e-3 * sheet.get("fp32_lanes", 0) * sheet["sms"] * clock
    sheet["fp32_gflops"] = figure(matrix_rate, max(peak, matrix_rate))
    sheet["fp64_gflops"] = figure(_matrix_rate(torch, device, "f64", side // 2))
    for dtype in sheet.pop("units", ()):
        field = "fp16_gflops" if dtype == "f16" else f"{dtype}_gflops"
        sheet[field] = figure(_matrix_rate(torch, device, dtype, side))
    dram_rate = _copy_rate(torch, device, nbytes)
    sheet["dram_gbs"] = figure(dram_rate, dram_rate)
    l2_rate = _copy_rate(torch, device, max(sheet["l2_bytes"] // 4, 4096))
    sheet["l2_gbs"] = figure(max(l2_rate, dram_rate))
    for kind in ("pinned", "pageable"):
        for direction, suffix in (("from", "_gbs"), ("to", "_to_host_gbs")):
            rate = _host_rate(torch, device, nbytes, kind == "pinned", direction == "to")
            sheet[kind + suffix] = figure(rate)
    sheet["launch_us"] = figure(_launch(torch, device))
    return sheet


def to_json(sheet: dict[str, Any]) -> str:
    """Return a sheet as the text of its file."""
    return json.dumps(sheet, indent=2) + "\n"


def _properties(torch: Torch, device: str) -> dict[str, Any]:
    """Return the properties of a device from its driver, and the types of its matrix units."""
    if not device.startswith("cuda"):
        return _host_properties(torch)
    card = torch.cuda.get_device_properties(device)
    version, target = (card.major, card.minor), _target(card)
    return {
        "name": sheet_name(describe(torch, device, 0)),
        "architecture": _architecture(target),
        "target": target,
        "sms": card.multi_processor_count,
        "fp32_lanes": LANES.get(target, 128),
        "memory_bytes": card.total_memory,
        "l2_bytes": getattr(card, "L2_cache_size", 0) or 4 * 2**20,
        "clock_mhz": {"measured": _clock(card), "source": "the driver's highest clock"},
        "units": [dtype for dtype, first in UNITS.items() if version >= first],
    }


def _target(card: Any) -> str:  # noqa: ANN401  (torch's properties of a card)
    """Return the target that a card's kernels are compiled for, such as ``sm_90``."""
    name = getattr(card, "gcnArchName", "").partition(":")[0]
    return name if name.startswith("gfx") else f"sm_{card.major}{card.minor}"


def _architecture(target: str) -> str:
    """Return the architecture of a target, the newest one if the target is unknown."""
    prefixes = [prefix for prefix in ARCHITECTURES if target.startswith(prefix)]
    return ARCHITECTURES[max(prefixes, key=len)] if prefixes else "blackwell"


def _clock(card: Any) -> float:  # noqa: ANN401  (torch's properties of a card)
    """Return MHz of a card's multiprocessors, as torch or the driver's tool reports it."""
    clock = getattr(card, "clock_rate", 0) / 1e3
    return clock or float(nvidia_smi("clocks.max.sm", card) or 0) or 1000.0


def _host_properties(torch: Torch) -> dict[str, Any]:
    threads = torch.get_num_threads()
    return {
        "name": sheet_name(describe(torch, "cpu", 0)),
        "architecture": "cpu",
        "sms": threads,
        "memory_bytes": int(free_memory(torch, "cpu")),
        "l2_bytes": 2**21,
        "clock_mhz": {"measured": 1000.0, "source": "nominal: the time base of cycles"},
    }


def _time(torch: Torch, device: str, call: Callable[[], object]) -> float:
    """Return microseconds of a call's kernels, or of the fastest call if it has no kernels."""
    timing = measure_call(torch, device, call, 25)
    return timing.kernel or timing.fastest


def _copy_rate(torch: Torch, device: str, nbytes: int) -> float:
    """Return GB/s of a copy on the device, read and write counted."""
    source = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * nbytes / _time(torch, device, lambda: target.copy_(source)) / 1e3


def _host_rate(torch: Torch, device: str, nbytes: int, pinned: bool, to_host: bool) -> float:
    """Return GB/s of a copy from or to the host."""
    on_card = device.startswith("cuda")
    host_tensor = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pinned and on_card)
    device_tensor = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    target, source = (host_tensor, device_tensor) if to_host else (device_tensor, host_tensor)
    return nbytes / _time(torch, device, lambda: target.copy_(source)) / 1e3


@contextmanager
def _tf32(torch: Torch, enabled: bool) -> Iterator[None]:
    """Enable or disable matrix units for float32 products; restore the setting at exit."""
    original = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = enabled
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = original


def _matrix_rate(torch: Torch, device: str, dtype: str, side: int) -> float:
    """Return GFLOP/s of a square matrix product; ``tf32`` is float32 on the matrix units."""
    kind = getattr(torch, TORCH[dtype])
    first, second = (torch.rand(side, side, device=device, dtype=kind) for _ in range(2))
    with _tf32(torch, dtype == "tf32"):
        return 2 * side**3 / _time(torch, device, lambda: torch.mm(first, second)) / 1e3


def _launch(torch: Torch, device: str) -> float:
    """Return the microseconds of an op on one element: the cost of a launch."""
    scalar = torch.zeros(1, device=device)
    return measure_call(torch, device, lambda: scalar.add_(1)).op
