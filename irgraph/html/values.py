"""Texts of values in a page, as its scripts write them."""

from __future__ import annotations

import math
import re
from typing import Any

UNKNOWN = "–"
"""Text of an unknown value."""

_HIDDEN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f"
    "\\ud800-\\udfff\\ufeff\\ufff9-\\ufffb]"
)
_TURNING = re.compile("[\\x00-\\x08\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
"""Characters that turn the direction of text, or that no text may hold."""


def visible_text(value: object) -> str:
    """Return a text in which characters that hide or turn others are shown by their codes.

    Emoji consist of several characters, some of which are hidden; such texts retain those.
    """
    text = str(value)
    has_pairs = any(char > "\uffff" for char in text)
    return (_TURNING if has_pairs else _HIDDEN).sub(lambda m: f"\\u{ord(m[0]):04x}", text)


def cell_text(value: Any, kind: str) -> str:  # noqa: ANN401  (any field of a record)
    """Return the text of a cell in a column of a kind (``sections.KINDS``)."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return UNKNOWN
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (int, float)):
        return visible_text(value)
    if kind == "text":
        return f"{value:.15g}"
    if kind == "us":
        return time_text(value)
    if kind == "change":
        return ("+" if value > 0 else "") + time_text(value)
    if kind == "bytes":
        return _bytes_text(value)
    return f"{100 * value:.1f} %" if kind == "share" else _number_text(value)


def time_text(us: float, digits: int = 4) -> str:
    """Return a time with its unit, ``UNKNOWN`` for one that is not finite."""
    if not math.isfinite(us):
        return UNKNOWN
    size = abs(us)
    for unit, factor in (("s", 1e6), ("ms", 1e3), ("us", 1.0)):
        if size >= factor:
            return f"{_precise(us / factor, digits)} {unit}"
    return "0 us" if not us else f"{_precise(us * 1e3, digits)} ns"


def _precise(value: float, digits: int) -> str:
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(places, 6)}f}"


def _bytes_text(count: float) -> str:
    size = abs(count)
    if size >= 2**30:
        return f"{count / 2**30:.2f} GiB"
    return f"{count / 2**20:.1f} MiB" if size >= 2**20 else f"{count / 1024:.1f} KiB"


def _number_text(value: float) -> str:
    if float(value).is_integer():
        return f"{int(value):,}"
    size = abs(value)
    if size >= 1e12 or size < 1e-3:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa}e{exponent[0]}{exponent[1:].lstrip('0')}"
    return f"{round(value):,}" if size >= 1000 else _precise(value, 4)
