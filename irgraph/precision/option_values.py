"""Parsers of command options: formats to try, and a budget."""

from __future__ import annotations

import math

from irgraph.diagnostics import fail
from irgraph.precision.candidates import FORMATS
from irgraph.precision.measure import PrecisionBench


def read_formats(text: str, kind: str = "") -> list[str]:
    """Return the formats of a list such as ``i8,i4``; ``kind`` restricts them to tables or layers.

    Raises:
        IrgraphError: a format is unknown (exit code 2).
    """
    allowed = list(
        dict.fromkeys(n for k, names in FORMATS.items() for n in names if kind in ("", k))
    )
    formats = [part.strip() for part in text.split(",") if part.strip()]
    if not formats:
        raise fail(f"--formats: {text!r} names none of {', '.join(allowed)}", exit_code=2)
    for name in formats:
        if name not in allowed:
            raise fail(f"--formats: {name!r} is none of {', '.join(allowed)}", exit_code=2)
    return formats


def read_budget(text: str, bench: PrecisionBench) -> float:
    """Return a budget in nats: ``1e-4``, or ``0.02%`` of the entropy of a bench's predictions.

    Raises:
        IrgraphError: it is not a non-negative number (exit code 2).
    """
    is_share = text.endswith("%")
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        hint = "0.02% of the predictions' entropy, or nats as in 1e-4"
        raise fail(f"--budget: not a budget: {text!r}", hint=hint, exit_code=2)
    return value / 100 * bench.entropy() if is_share else value
