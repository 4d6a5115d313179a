"""A device sheet from measurements: bandwidths, matrix rates, launch latency."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from typing import Any

from costmodels.measure.ops import DTYPES
from costmodels.measure.run import describe
from costmodels.measure.timer import measure_call

Torch = Any
LARGE, SIDE = 2**28, 4096
"""Bytes of a copy that no cache holds, and side of a matrix product that fills any device."""
ARCHITECTURES = {6: "pascal", 7: "volta", 8: "ampere", 9: "hopper"}
"""Architecture by major compute capability; 7.5 is turing and 8.9 ada."""


def calibrate(torch: Torch, device: str, *, scale: float = 1.0) -> dict[str, Any]:
    """Return a device sheet as plain values, and what it was measured on in its note.

    ``scale`` below 1 shrinks the copies and products, for a quick look.
    """
    nbytes, side = int(LARGE * scale), max(int(SIDE * scale), 64)
    source = f"irgraph calibrate, {describe(torch, device, 0)['name']}, torch {torch.__version__}"

    def figure(value: float) -> dict[str, Any]:
        return {"measured": round(value, 3), "source": source}

    peaks = {d: _matrix_rate(torch, device, d, side) for d in _dtypes(device)}
    sheet: dict[str, Any] = {
        **_properties(torch, device),
        "note": f"launch {_launch(torch, device):.1f} us",
    }
    sheet["dram_gbs"] = figure(_copy_rate(torch, device, nbytes))
    sheet["l2_gbs"] = figure(_copy_rate(torch, device, max(sheet["l2_bytes"] // 4, 4096)))
    sheet |= {f"{'fp' if d != 'bf16' else 'b'}{d[1:]}_gflops": figure(r) for d, r in peaks.items()}
    for name, pinned in (("pinned_gbs", True), ("pageable_gbs", False)):
        sheet[name] = figure(_host_rate(torch, device, nbytes, pinned))
    for name in ("clock_mhz", "fp32_gflops", "dram_gbs"):
        sheet[name]["datasheet"] = sheet[name]["measured"]
    return sheet


def to_json(sheet: dict[str, Any]) -> str:
    """Return a sheet as the text of its file."""
    return json.dumps(sheet, indent=2) + "\n"


def _dtypes(device: str) -> tuple[str, ...]:
    return ("f32", "f64", "f16", "bf16") if device.startswith("cuda") else ("f32", "f64")


def _properties(torch: Torch, device: str) -> dict[str, Any]:
    """Return what the driver says of a device."""
    if device.startswith("cuda"):
        card = torch.cuda.get_device_properties(device)
        kind = {(7, 5): "turing", (8, 9): "ada"}.get((card.major, card.minor))
        return {
            "name": card.name.replace(" ", "-"),
            "architecture": kind or ARCHITECTURES.get(card.major, "hopper"),
            "sms": card.multi_processor_count,
            "memory_bytes": card.total_memory,
            "l2_bytes": getattr(card, "L2_cache_size", 0) or 4 * 2**20,
            "clock_mhz": {"measured": getattr(card, "clock_rate", 0) / 1e3 or 1000.0},
        }
    threads = torch.get_num_threads()
    return {
        "name": f"cpu-{platform.machine()}-{threads}",
        "architecture": "cpu",
        "sms": threads,
        "memory_bytes": 2**34,
        "l2_bytes": 2**21,
        "clock_mhz": {"measured": 1000.0, "source": "nominal: the time base of cycles"},
    }


def _time(torch: Torch, device: str, call: Callable[[], object]) -> float:
    """Return microseconds of a call's kernels, or of the call where there are none."""
    timing = measure_call(torch, device, call, 15)
    return timing.kernel or timing.op


def _copy_rate(torch: Torch, device: str, nbytes: int) -> float:
    """Return GB/s of a copy on the device, read and write counted."""
    source = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * nbytes / _time(torch, device, lambda: target.copy_(source)) / 1e3


def _host_rate(torch: Torch, device: str, nbytes: int, pinned: bool) -> float:
    """Return GB/s of a copy from the host."""
    on_card = device.startswith("cuda")
    source = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pinned and on_card)
    target = torch.empty(nbytes, dtype=torch.uint8, device=device)
    return nbytes / _time(torch, device, lambda: target.copy_(source)) / 1e3


def _matrix_rate(torch: Torch, device: str, dtype: str, side: int) -> float:
    """Return GFLOP/s of a square matrix product."""
    kind = getattr(torch, DTYPES[dtype])
    one, two = (torch.rand(side, side, device=device).to(kind) for _ in range(2))
    return 2 * side**3 / _time(torch, device, lambda: torch.mm(one, two)) / 1e3


def _launch(torch: Torch, device: str) -> float:
    """Return microseconds that an op takes which computes next to nothing."""
    one = torch.zeros(1, device=device)
    return measure_call(torch, device, lambda: one.add_(1)).op
