"""A small folder of made-up measurements with a known launch and known kernels."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import numpy as np
import pytest

DEVICES = ("A100-PCIE-40GB", "V100-PCIE-32GB")
BEFORE, HIDDEN = 20.0, 15.0


def write(folder: Path, name: str, rows: list[dict[str, object]]) -> None:
    """Write a table of measurements."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]))
    table.writeheader()
    table.writerows(rows)
    path = folder / "kernels" / f"{name}.csv.gz"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def latency(kernel: float) -> float:
    """Return milliseconds as measured: launch and kernel."""
    return (BEFORE + max(kernel, HIDDEN)) / 1e3


@pytest.fixture(scope="session")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with element-wise kernels at 800 GB/s and products at 10 TFLOP/s."""
    folder = tmp_path_factory.mktemp("measurements")
    rng = np.random.default_rng(0)
    simple, products, rowwise = [], [], []
    for i in range(800):
        common = {"device": DEVICES[i % 2], "split": "dev" if i % 5 == 0 else "train"}
        rows, cols = (int(2 ** rng.uniform(2, 13)) for _ in range(2))
        time = 2.7 + rows * cols * 12 / 800e3
        simple.append(
            {"op": "add", **common, "rows": rows, "cols": cols, "latency_ms": latency(time)}
        )
        rowwise.append(
            {"op": "softmax", **common, "rows": rows, "cols": cols, "latency_ms": latency(time)}
        )
        m, n, k = (int(2 ** rng.uniform(2, 12)) for _ in range(3))
        time = 2.7 + 2 * m * n * k / 10e6
        sizes = {"batch": 1, "m": m, "n": n, "k": k}
        op = "bmm" if i % 3 == 0 else "linear"
        products.append({"op": op, **common, **sizes, "latency_ms": latency(time), "kernel": ""})
    write(folder, "elementwise", simple)
    write(folder, "gemm", products)
    write(folder, "softmax", rowwise)
    return folder
