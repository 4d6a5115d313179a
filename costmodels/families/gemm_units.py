"""The trained model of products on matrix units, for ``gemm`` in 16 bits, fp8 and tf32.

Each measurement method is an op: NVIDIA's sweep in bf16 and in fp8 (whose times include rounding
of the activation), layers of running transformers in f16, XLA's tables, and DeepBench's layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from costmodels.formulas.machine import Rule
from costmodels.learnable.campaign import Campaign
from costmodels.learnable.family import LearnedFamily, Query
from costmodels.learnable.hardware import CORES, Floats, Hardware
from costmodels.learnable.inputs import Inputs, Sizes, log2, multiples, settling
from costmodels.learnable.modern import GROUPS, UNITS, VARIANTS, KernelTable, Row, reader
from costmodels.learnable.settings import Architecture, Settings
from costmodels.learnable.unit_tiles import tiling
from irgraph.ir.points.point_values import minimum, to_float, to_int

SOURCE = "trained on published products in bf16, f16 and fp8 (e4m3) on cards with matrix units"

RULES: dict[str, Rule] = {}

OPS = ("sweep", "sweep_f8", "layer", "xla", "xla_tf32", "volta_nn", "volta_nt", "volta_tn")
SIZES = ("batch", "m", "n", "k")

WORKSTATION = "RTX-PRO-6000-Blackwell-Server-Edition"

CARDS = (
    "A100-SXM4-80GB", "H100-80GB-HBM3", "H200", "B200", "GB200", "B300", "GB300",
    WORKSTATION, "A40", "V100-SXM2-16GB", "T4",
)  # fmt: skip

START = np.float32(2)
"""Microseconds of the shortest kernels of the sweep (1.6 to 2.5)."""

KINDS = max(CORES.values()) + 1


def _inputs(sizes: Sizes, device: Hardware) -> Inputs:
    """Return inputs of products (batch, m, k) x (k, n) on matrix units."""
    batch, m, n, k = (sizes[name] for name in SIZES)
    op = sizes["op"].astype(np.intp)
    peak = _peak(op, device)
    tiles = tiling(batch, m, n, k, peak, np.broadcast_to(device.sms, m.shape))
    weights, rows, results = _bytes(op, batch, m, n, k)
    nbytes = weights + rows + results
    memory = nbytes / (device.bandwidth * np.float32(1e3))
    compute = 2 * batch * m * n * k / (peak * np.float32(1e3))
    base = np.maximum(tiles.time, memory) + START
    columns = [np.clip(log2(tiles.time / memory), -6, 6), np.clip(log2(compute / memory), -8, 8)]
    columns += [settling(part / device.l2) for part in (nbytes, weights, rows, results)]
    columns += [settling(base / START), settling(compute / 2), settling(memory / 2)]
    columns += [np.clip(log2(tiles.rounds / tiles.share), 0, 6), settling(tiles.rounds)]
    columns += [log2(tiles.parts), np.clip(log2(tiles.rival / tiles.time), 0, 3), settling(k / 512)]
    columns += [log2(weights / nbytes), log2(results / nbytes)]
    columns += [(op == number).astype(np.float32) for number in range(len(OPS))]
    personal = [*tiles.menu, log2(tiles.rows), log2(tiles.columns), log2(batch)]
    for side in (m, n, k):
        personal += [np.clip(log2(side), 0, 16), settling(side / 1024)]
        personal += multiples(side, 8, 16, 64, 128, 256)
    personal += [(m <= rows).astype(np.float32) for rows in (1, 2, 4, 8, 16, 32, 64, 128)]
    personal += [log2(peak / device.bandwidth) - 8, log2(device.sms / 100), log2(device.l2 / 2**26)]
    personal += [(device.core == number).astype(np.float32) for number in range(1, KINDS)]
    return Inputs(base, columns, personal, log2(2 * batch * m * n * k), device.indicators)


def _peak(op: np.ndarray, device: Hardware) -> Floats:
    """Return the peak of the matrix units of each op, in GFLOP/s."""
    kinds = [
        device.units8 if o == "sweep_f8" else device.units32 if o == "xla_tf32" else device.units
        for o in OPS
    ]
    return np.asarray(np.choose(op, kinds), np.float32)


def _bytes(
    op: np.ndarray, batch: Floats, m: Floats, n: Floats, k: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the bytes of weights, rows and results; rows of fp8 are rounded from bf16 first."""
    is_fp8 = op == OPS.index("sweep_f8")
    element_size = np.where(op == OPS.index("xla_tf32"), np.float32(4), np.float32(2))
    weights = batch * n * k * np.where(is_fp8, np.float32(1), element_size)
    rows = batch * m * k * np.where(is_fp8, np.float32(4), element_size)
    return weights, rows, batch * m * n * element_size


BATCHED, OTHER_LAYOUT = 0.15, 0.1
"""Half a 90 % interval of log errors to add for batched products, with few measurements, and for
layouts without: the difference between layouts on V100."""

MAX_SHALLOW, DEEP = 4096, 0.6
"""Depth of sums beyond which DeepBench measured only one, 500,000, for V100 and T4; and half an
interval to add there: the ten training rows of that depth are off by factors of up to 2.4, within
intervals of 8 to 78 %."""

STEP = 8
"""Multiple to which sides are rounded up, in elements: no others were measured, and
``costmodels.formulas.products`` adds the surcharge of unaligned sides."""

LAYERS = ("A100-SXM4-80GB", "H100-80GB-HBM3", "A40")
"""Cards with measured layers in f16."""


def _query(arguments: Mapping[str, float | str]) -> Query | None:
    """Return a product of one row or many; ``layout`` as in ``Product``."""
    sizes = {name: to_float(arguments[name]) for name in SIZES}
    if minimum(sizes["n"], sizes["k"]) < STEP:
        return None
    sides = {name: to_int(cast("float", arguments[name])) for name in ("n", "k")}
    sizes |= {name: to_float(-(-side // STEP) * STEP) for name, side in sides.items()}
    layout = str(arguments.get("layout", "tn"))
    doubt = BATCHED if sizes["batch"] > 1 else 0.0
    op = _op(
        str(arguments["dtype"]),
        str(arguments.get("card", "")),
        str(arguments.get("target", "")),
        layout,
    )
    if op not in OPS:
        return None
    is_volta = op.startswith("volta")
    if is_volta and sizes["k"] > MAX_SHALLOW:
        return Query(op, sizes, doubt + DEEP, outside=True)
    is_measured = layout == "tn" or is_volta
    return Query(op, sizes, doubt + (0.0 if is_measured else OTHER_LAYOUT))


def _op(dtype: str, card: str, target: str, layout: str) -> str:
    """Return the measurement method of a type's products on a card, ``""`` if no model fits."""
    if target in ("sm_70", "sm_75"):
        return f"volta_{layout}" if dtype == "f16" else ""
    if dtype == "tf32":
        return "xla_tf32" if card == "H100-80GB-HBM3" else ""
    if dtype == "f8e4m3":
        return "" if target in ("sm_80", "sm_86") else "sweep_f8"
    return "layer" if dtype == "f16" and card in LAYERS else "sweep"


def _flops(arguments: Mapping[str, float | str]) -> float:
    """Return the FLOP of a product."""
    batch, m, n, k = (to_float(arguments[name]) for name in SIZES)
    return 2.0 * batch * m * n * k


def _sizes(row: Row) -> tuple[str | float, ...]:
    return row.get("batch") or 1.0, row["m"], row["n"], row["k"]


LEARNED = LearnedFamily(
    "gemm_units",
    OPS,
    SIZES,
    _inputs,
    _query,
    Settings(steps=14000, batch=1024, refit=False, architecture=Architecture(128, 3, 2)),
    campaign=Campaign(
        CARDS,
        VARIANTS,
        ("V100-SXM2-16GB", "T4", "A40"),
        GROUPS,
        reader(
            KernelTable("gemm_bf16", lambda row: "sweep", _sizes),
            KernelTable("gemm_fp8", lambda row: "sweep_f8", _sizes),
            KernelTable("gemm_layers_f16", lambda row: "layer", _sizes),
            KernelTable(
                "gemm_batched_xla_h100",
                lambda row: "xla_tf32" if row["dtype"] == "tf32" else "xla",
                _sizes,
            ),
            KernelTable(
                "gemm_layouts_deepbench",
                lambda row: f"volta_{row['layout']}" if row["dtype"] == "f16" else "",
                lambda row: (1.0, row["rows"], row["cols"], row["depth"]),
            ),
        ),
        True,
        ("n", "k"),
        {"xla": 3, "xla_tf32": 4, "volta_nn": 4, "volta_nt": 8, "volta_tn": 4},
        ("bf16", "f16", "f8e4m3", "tf32"),
        op_cards={
            "sweep": tuple(card for card in CARDS if card not in ("A40", "V100-SXM2-16GB", "T4")),
            "sweep_f8": ("H100-80GB-HBM3", "H200", "B200", "GB200", WORKSTATION),
            "layer": LAYERS,
            **dict.fromkeys(("xla", "xla_tf32"), ("H100-80GB-HBM3",)),
            **dict.fromkeys(("volta_nn", "volta_nt", "volta_tn"), ("V100-SXM2-16GB", "T4")),
        },
        targets=UNITS,
    ),
    flops=_flops,
)
