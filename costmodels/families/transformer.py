"""The trained model of the kernels between the products of transformer layers, in 16 bits.

``elementwise``, ``norm`` and ``embedding`` use it for sums, gelu, norms and lookups.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from costmodels.formulas.machine import Rule
from costmodels.learnable.campaign import Campaign
from costmodels.learnable.family import LearnedFamily, Query
from costmodels.learnable.hardware import Hardware
from costmodels.learnable.inputs import Inputs, Sizes, log2, multiples, settling
from costmodels.learnable.modern import VARIANTS, KernelTable, Row, reader
from costmodels.learnable.settings import Architecture, Settings
from irgraph.ir.points.point_values import to_float

SOURCE = "trained on published kernels of layers in f16 on A40, A100 and H100"

RULES: dict[str, Rule] = {}

TRAFFIC: Mapping[str, tuple[float, float]] = {
    "add": (6, 0), "add3": (12, 0), "gelu": (4, 0), "silu_mul": (6, 0), "norm": (4, 0),
    "rope": (4, 4), "embedding": (4, 0), "embedding_masked": (14, 0),
}  # fmt: skip
"""Bytes that a row of each op moves for each column, and for each unit of depth."""

OPS = tuple(TRAFFIC)
SIZES = ("rows", "cols", "depth")
CARDS = ("A100-SXM4-80GB", "A40", "H100-80GB-HBM3")

START = np.float32(2)
"""Microseconds of the shortest kernels, measured in whole microseconds."""
LOOKUP_RATE = np.float32(0.5e3)
"""Elements that a multiprocessor looks up in a microsecond: torch's ``index_select`` computes the
offset of each, and reaches 0.46 to 0.57 a cycle on A100, A40 and H100, for any table."""


def _inputs(sizes: Sizes, device: Hardware) -> Inputs:
    """Return inputs of kernels over rows of 16-bit values."""
    rows, cols, depth = (sizes[name] for name in SIZES)
    op = sizes["op"].astype(np.intp)
    column, unit = np.asarray(list(TRAFFIC.values()), np.float32)[op].T
    looks_up = op >= OPS.index("embedding")
    nbytes = rows * (column * cols + unit * np.where(op == OPS.index("rope"), depth, 0))
    memory = nbytes / (device.bandwidth * np.float32(1e3))
    lookup_time = np.where(looks_up, rows * cols / (device.sms * LOOKUP_RATE), 0)
    bound = np.maximum(memory, lookup_time)
    columns = [settling(bound / START), settling(nbytes / device.l2), settling(memory / START)]
    columns += [settling(rows / device.sms), settling(rows * cols / (device.sms * 2048))]
    columns += [(op == number).astype(np.float32) for number in range(len(OPS))]
    personal = [np.clip(log2(cols), 0, 17), np.clip(log2(rows), 0, 20)]
    personal += [np.clip(log2(1 + depth), 0, 20), *multiples(cols, 64, 256, 1024)]
    personal += [np.clip(log2(np.ceil(rows / device.sms) * device.sms / rows), 0, 7)]
    return Inputs(bound + START, columns, personal, log2(nbytes), device.indicators)


def _query(arguments: Mapping[str, float | str]) -> Query | None:
    op = str(arguments["op"])
    return (
        Query(op, {name: to_float(arguments.get(name, 0)) for name in SIZES}) if op in OPS else None
    )


def _sizes(row: Row) -> tuple[str, ...]:
    return row["rows"], row["cols"], row["depth"]


LEARNED = LearnedFamily(
    "transformer",
    OPS,
    SIZES,
    _inputs,
    _query,
    Settings(steps=4000, batch=512, architecture=Architecture(64, 3, 3)),
    campaign=Campaign(
        CARDS,
        VARIANTS,
        (),
        (("A40",), ("H100-80GB-HBM3",), ("A100-SXM4-80GB",)),
        reader(KernelTable("pointwise_f16", lambda row: row["op"], _sizes)),
        True,
        repeat={"add": 3, "add3": 6, "gelu": 8, "norm": 3, "embedding": 3},
        dtypes=("f16", "bf16"),
        op_profiles=dict.fromkeys(("embedding", "embedding_masked"), ("torch-2.7", "torch-2.1")),
    ),
)
