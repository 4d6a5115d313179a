"""Reader of plans in irgraph's or TorchRec's text form."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from irgraph.diagnostics import SourceSpan, fail
from irgraph.plans.plan import Plan
from irgraph.plans.torchrec import from_torchrec


def read_plan(data: bytes | str, source: str = "") -> Plan:
    """Return the plan of a text: irgraph's form, or TorchRec's as ``to_torchrec`` writes it.

    Raises ``IrgraphError`` (exit code 2) if it is neither, or has a duplicate key.
    """
    try:
        raw = json.loads(data, object_pairs_hook=_unique_keys)
        is_native = (
            isinstance(raw, dict) and "ranks" in raw and ("tables" in raw or "layers" in raw)
        )
        return msgspec.convert(raw, Plan) if is_native else from_torchrec(raw)
    except (ValueError, RecursionError) as error:
        hint = (
            'a plan is {"format": 1, "ranks": 8, "tables": {"NAME": {"scheme": …, "ranks": […]}}}'
            ' or has "layers": {"NAME": "column-parallel" or "row-parallel"}'
        )
        place = SourceSpan(source) if source else None
        raise fail(f"not a plan: {error}", place, hint=hint, exit_code=2) from None


def _unique_keys(items: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object; raise ``ValueError`` for a duplicate key, which JSON would drop."""
    result = dict(items)
    if len(result) < len(items):
        keys = [key for key, _ in items]
        raise ValueError(f"it names {next(k for k in keys if keys.count(k) > 1)!r} twice")
    return result
