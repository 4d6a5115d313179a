"""Reader of plans in irgraph's or TorchRec's text form."""

from __future__ import annotations

import json

import msgspec

from irgraph.diagnostics import SourceSpan, fail
from irgraph.diagnostics.json_keys import unique_keys
from irgraph.plans.plan import Plan
from irgraph.plans.torchrec import from_torchrec

NATIVE = frozenset({"tables", "layers", "pins", "parameters", "optimizer"})
"""Keys of irgraph's own form, of which a plan has at least one."""


def read_plan(data: bytes | str, source: str = "") -> Plan:
    """Return the plan of a text: irgraph's form, or TorchRec's as ``to_torchrec`` writes it.

    Raises ``IrgraphError`` (exit code 2) if it is neither, or has a duplicate key.
    """
    try:
        raw = json.loads(data, object_pairs_hook=unique_keys)
        if not isinstance(raw, dict) or isinstance(raw.get("ranks", {}), dict):
            return from_torchrec(raw)
        if NATIVE.isdisjoint(raw):
            raise ValueError(f"it has none of {', '.join(sorted(NATIVE))}")
        return msgspec.convert(raw, Plan)
    except (ValueError, RecursionError) as error:
        hint = (
            'a plan is {"format": 1, "ranks": 8, "tables": {"NAME": {"scheme": …, "ranks": […]}}}'
            ' or has "layers": {"NAME": "column-parallel" or "row-parallel"}'
            ' or "pins": {"NAME": "split 1"}'
        )
        place = SourceSpan(source) if source else None
        raise fail(f"not a plan: {error}", place, hint=hint, exit_code=2) from None
