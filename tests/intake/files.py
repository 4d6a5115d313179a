"""Files as the commands write them, with a secret in every text that a user or a program gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SECRET = "falcon"

STAT = {"mean": 4.0, "std": 1.0, "count": 3, "quantiles": {"p50": 4.0, "pfalcon": 1.0}}
SOURCED = {**STAT, "source": "falcon trace"}

HOST: dict[str, Any] = {
    "format": 1, "name": "falcon-host", "T1": SOURCED,
    "T4": {"kernel": STAT, "falcon": STAT}, "within": SOURCED,
    "ops": {
        "aten.mm": {
            "T2": SOURCED, "T3": STAT, "T5": STAT, "launches": ["kernel", "falcon"],
            "shapes": {"f32[8,8] f32[8,8]": {"T2": SOURCED}, "falcon[8]": {"T2": STAT}},
        },
        "falcon.attention": {"T2": STAT, "T3": STAT, "T5": STAT},
        "## falcon forward ##": {"whole": STAT},
    },
    "recording_std": 0.1, "no_graph_ratio": 0.7, "profiled": True,
    "description": "falcon", "source": "falcon.json", "licence": "falcon", "made_by": "falcon",
    "architecture": "falcon",
}  # fmt: skip

HEAD = {
    "format": 2, "device": "cuda", "seed": 0, "torch": "2.8.0+cu128.falcon", "python": "3.11.7",
    "name": "NVIDIA A100-SXM4-40GB", "cuda": "12.8", "driver": "570.86.15", "tf32": False,
    "python_us": 1.5, "falcon": "falcon",
}  # fmt: skip
TIMES = {
    "op_us": 9.5, "spread_us": 1.0, "kernel_us": 7.5, "kernel_spread_us": 0.5, "runs": 25,
    "kernels": ["void falcon_kernel<float>(int)"], "fastest_us": 9.0, "note": "falcon",
}  # fmt: skip
SOFTMAX = {
    "family": "softmax", "op": "softmax", "dtype": "f32", "sizes": {"rows": 8, "cols": 4},
    "indices": "", "key": "softmax f32 rows=8,cols=4", **TIMES,
}  # fmt: skip
CALL = {"family": "calls", "key": "aten.mm(f32[8,8], f32[8,8])", **TIMES}
ROWS: list[dict[str, Any]] = [
    SOFTMAX,
    CALL,
    {**SOFTMAX, "op": "falcon", "key": "falcon f32 rows=8,cols=4"},
    {**SOFTMAX, "family": "falcon"},
    {**SOFTMAX, "key": "falcon"},
    {**SOFTMAX, "dtype": "falcon", "key": "softmax falcon rows=8,cols=4"},
    {**SOFTMAX, "sizes": {"falcon": 8}, "key": "softmax f32 falcon=8"},
    {**SOFTMAX, "indices": "falcon", "key": "softmax f32 rows=8,cols=4 falcon"},
    {**CALL, "key": "falcon.mm(f32[8,8])"},
    {**CALL, "key": "aten.mm(f32[8,8], mode=falcon)"},
    {**SOFTMAX, "error": "falcon ran out of memory"},
]

RECORDING = {
    "target": "falcon.py:step", "batch": 64, "device": "cuda:0", "step_time_us": 1500.0,
    "profiled_us": 1600.0, "times_us": [1500.0, 1501.0], "torch": "2.8.0+falcon",
    "device_name": "Falcon Card",
}  # fmt: skip

PREDICTION = {
    "model": "falcon", "step_time_us": 2000.0, "step_time_interval_us": [1800.0, 2200.0],
    "device": {"name": "A100-SXM4-40GB"}, "host": "/home/falcon/host.json", "software": "torch-2",
    "dims": {"B": 64, "falcon": 3}, "measured_us": 2500.0, "warnings": ["falcon"],
}  # fmt: skip


def write(folder: Path) -> dict[str, Path]:
    """Write a file of each kind; return their paths by kind."""
    lines = "\n".join(map(json.dumps, [HEAD, *ROWS])) + "\n"
    texts = {
        "host.json": json.dumps(HOST, indent=1),
        "measurements.jsonl": lines,
        "prediction.json": json.dumps(PREDICTION, indent=2),
        "recording/step.json": json.dumps(RECORDING),
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    found = {Path(name).stem: folder / name for name in texts if "/" not in name}
    return {**found, "recording": folder / "recording"}
