"""Quantities with units that users write: ``12.3ms``, ``40GiB``."""

from __future__ import annotations

import re

from irgraph.diagnostics.errors import fail

MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
BYTES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
QUANTITY = re.compile(r"(\d+(?:\.\d*)?)\s*([a-zA-Z%]*)")


def parse_time(text: str, option: str) -> float:
    """Return microseconds of a time such as ``12.3ms``; a number without a unit is refused."""
    match = QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in MICROSECONDS or float(match[1]) <= 0:
        hint = "give a time with its unit, such as 12.3ms or 950us"
        raise fail(f"{option}: not a time: {text!r}", hint=hint, exit_code=2)
    return float(match[1]) * MICROSECONDS[match[2]]


def parse_bytes(text: str, option: str) -> float:
    """Return the bytes of a size such as ``40GiB``; a number without a unit is refused."""
    match = QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in BYTES or float(match[1]) <= 0:
        hint = "give a size with its unit, such as 40GiB or 512MiB"
        raise fail(f"{option}: not a size: {text!r}", hint=hint, exit_code=2)
    return float(match[1]) * BYTES[match[2]]
