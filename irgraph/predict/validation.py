"""Validation of predicted changes by measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

UNVALIDATED = "unvalidated: no pair of measured steps, before and after, confirms it"
"""Remark on every predicted gain that was not measured."""

SIMILAR = {
    "fuse-embedding": (
        "of similar programs: TorchRec's embedding bags, as many as DLRM has, fused on a V100 are "
        "14.1 and 17.5 times as fast, predicted 13.9 and 17.3 (irgraph evaluate gains)"
    ),
}
"""Published gains of similar programs, measured and predicted, by pass."""

REMEDY = "measure both steps and give --measured-before and --measured-after"


def validation(
    change: float, interval: Sequence[float], measured: Sequence[float] | None = None
) -> dict[str, Any]:
    """Compare a predicted change of the step time with a measured one; times in microseconds.

    ``interval`` are the ends of the prediction's 90 % interval, ``measured`` the step times before
    and after. ``status`` is ``unvalidated`` without measured times, ``validated`` if the measured
    change is in the interval, else ``contradicted``.
    """
    if measured is None:
        return {"status": "unvalidated", "measured_us": None}
    measured_change = measured[1] - measured[0]
    return {
        "status": "validated" if interval[0] <= measured_change <= interval[1] else "contradicted",
        "measured_us": list(measured),
        "measured_change_us": measured_change,
        "error_us": change - measured_change,
        "error_of_step": (change - measured_change) / measured[0],
    }


def validation_text(comparison: dict[str, Any]) -> str:
    """Return a validation as one sentence."""
    if comparison["measured_us"] is None:
        return f"{UNVALIDATED}; {REMEDY}"
    before, after = (time / 1000 for time in comparison["measured_us"])
    return (
        f"{comparison['status']}: measured {before:.3f} ms before and {after:.3f} ms after, "
        f"{comparison['measured_change_us'] / 1000:+.3f} ms; the prediction is off by "
        f"{comparison['error_us'] / 1000:+.3f} ms, {comparison['error_of_step']:+.1%} of the step"
    )
