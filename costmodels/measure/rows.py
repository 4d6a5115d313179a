"""Reading a file of measurements: JSON lines, each against a schema with ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from irgraph.diagnostics import SourceSpan, fail
from irgraph.files import read_text

FORMAT = 2

Time = Annotated[float, Meta(ge=0, le=1e12)]
"""Microseconds; no call takes eleven days."""


class _Head(Struct):
    device: str
    name: str
    threads: int = 0
    python_us: Time = 0.0


class _Row(Struct, kw_only=True):
    family: str
    key: str
    op: str = ""
    dtype: str = ""
    sizes: dict[str, Annotated[int, Meta(ge=0, le=2**62)]] = {}
    indices: str = ""
    op_us: Time | None = None
    spread_us: Time | None = None
    kernel_us: Time | None = None
    kernel_spread_us: Time | None = None
    cold_us: Time | None = None
    error: str = ""


def read_rows(path: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the head and the rows of a file of measurements; an incomplete last line is skipped.

    Raises:
        IrgraphError: the file is not a file of measurements, or a number is out of range.
    """
    lines = read_text(path).splitlines()
    head: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        span = SourceSpan(str(path), "", number)
        try:
            raw = msgspec.json.decode(line.encode("utf-8", "replace"))
        except (ValueError, RecursionError):
            if number == len(lines):
                break
            raise fail("not a line of measurements", span) from None
        if number == 1:
            head = _head(raw, path)
            continue
        try:
            row = msgspec.convert(raw, _Row)
        except msgspec.ValidationError as error:
            raise fail(f"not a line of measurements: {error}", span) from None
        timed = row.op_us is not None and row.spread_us is not None
        if not row.error and not (
            timed and (row.kernel_us is None) == (row.kernel_spread_us is None)
        ):
            raise fail("not a line of measurements: it lacks a time or its spread", span)
        rows.append(raw)
    return head or _head(None, path), rows


def _head(raw: object, path: str | Path) -> dict[str, Any]:
    span = SourceSpan(str(path))
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise fail(f"not a file of measurements of format {FORMAT}", span)
    try:
        msgspec.convert(raw, _Head)
    except msgspec.ValidationError as error:
        raise fail(f"not the head of measurements: {error}", span) from None
    return raw
