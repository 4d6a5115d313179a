"""Findings: broken rules of a graph."""

from __future__ import annotations

from msgspec import Struct

from irgraph.ir.op import Op


class Finding(Struct, frozen=True):
    """One broken rule: its name, the error, the op that breaks it, if any, and the remedy."""

    rule: str
    message: str
    op: Op | None = None
    hint: str = ""
