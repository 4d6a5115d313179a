"""Units of the literals in scripts: times in microseconds, sizes in bytes, fractions of one."""

from __future__ import annotations

from irgraph.ir.op import Value
from irgraph.ir.quantity import Quantity

UNITS: dict[str, tuple[str, float]] = {
    "ns": ("time", 1e-3), "us": ("time", 1.0), "ms": ("time", 1e3), "s": ("time", 1e6),
    "B": ("bytes", 1), "KiB": ("bytes", 2**10), "MiB": ("bytes", 2**20), "GiB": ("bytes", 2**30),
    "TiB": ("bytes", 2**40), "%": ("fraction", 0.01),
}  # fmt: skip
"""The kind that each unit measures, and its size in base units."""


def base_value(value: Value | Quantity) -> Value:
    """Return a literal's value in base units: microseconds, bytes, or a fraction of one."""
    if not isinstance(value, Quantity):
        return value
    kind, factor = UNITS[value.unit]
    number = value.value * factor
    return int(number) if kind == "bytes" else number


def literal_kind(value: Value | Quantity) -> str:
    """Return the kind of a literal: ``time``, ``bytes``, ``fraction``, ``number`` and so on."""
    if isinstance(value, Quantity):
        return UNITS[value.unit][0]
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return "list"
    return {"DType": "dtype", "DeviceRef": "device"}.get(type(value).__name__, "text")
