"""The list of the shipped trained models."""

from __future__ import annotations

from typing import Any

from costmodels.learned.weights import load_shipped, parameters, shipped_models


def model_rows() -> list[dict[str, Any]]:
    """Return one row for each held-out op and device of each shipped model; errors in percent."""
    rows: list[dict[str, Any]] = []
    for family in shipped_models():
        weights = load_shipped(family)
        for label, parts in weights.made["held_out_pct"].items():
            op, _, device = label.partition(" ")
            long = parts.get("long", {})
            rows.append(
                {
                    "family": family,
                    "op": op,
                    "device": device,
                    "rows": parts["all"]["count"],
                    "GMAE %": parts["all"]["gmae"],
                    "MAPE %": parts["all"]["mape"],
                    "long GMAE %": long.get("gmae", "-"),
                    "coverage %": parts["all"]["coverage"],
                    "unseen": f"{weights.unseen:.0%}",
                    "parameters": parameters(weights),
                    "trained by": weights.made["command"],
                }
            )
    return rows
