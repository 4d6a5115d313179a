"""Reading a file of measurements: JSON lines, each against a schema with ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from irgraph.diagnostics import SourceSpan, fail
from irgraph.diagnostics.json_keys import refuse_duplicate_keys
from irgraph.files import read_text

FORMAT = 2

CALLS = "calls"
"""Family of calls of models, whose key is the call."""

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
    runs: float = 0
    error: str = ""


def read_rows(path: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the head and the rows of a file of measurements; an incomplete last line is skipped.

    Raises:
        IrgraphError: the file is not a file of measurements, or a number is out of range.
    """
    lines = read_text(path).splitlines()
    head: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    line_by_call: dict[tuple[str, str], tuple[int, float]] = {}
    for number, line in enumerate(lines, 1):
        span = SourceSpan(str(path), "", number)
        try:
            raw = msgspec.json.decode(line.encode("utf-8", "replace"))
            refuse_duplicate_keys(line)
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
        missing_names = [name for name in ("op", "dtype") if name not in raw]
        if missing_names and row.family != CALLS and not row.error:
            raise fail(f"not a line of measurements: it lacks {missing_names[0]!r}", span)
        if not row.error:
            _check_figures(row, span)
            _check_repetition(row, line_by_call, span)
        rows.append(raw)
    return head or _head(None, path), rows


MAX_OP_SPREAD, MAX_KERNEL_SPREAD = 1e5, 100.0
"""Largest spread of a call and of its kernels, as multiples of the time: of 21,884 calls on an H100
43 and 0.7. A busy host can interrupt a call of a microsecond for milliseconds."""

MAX_RATIO = 100.0
"""Largest ratio of two times of one call in a file."""

MIN_RUNS = 5
"""Runs from which a spread of exactly 0 is impossible."""


def _check_figures(row: _Row, span: SourceSpan) -> None:
    """Raise ``IrgraphError`` for a time or a spread that no measurement gives."""
    pairs = (
        ("op_us", row.op_us, "spread_us", row.spread_us, MAX_OP_SPREAD),
        ("kernel_us", row.kernel_us, "kernel_spread_us", row.kernel_spread_us, MAX_KERNEL_SPREAD),
    )
    for name, time, spread_name, spread, max_spread in pairs:
        if time is None or spread is None:
            continue
        if time == 0:
            raise fail(f"{name} of {row.key!r} is 0: every call takes time", span)
        if spread > max_spread * time:
            message = f"{spread_name} of {row.key!r} is {spread:g} us, of a time of {time:g} us"
            raise fail(message, span, hint=f"at most {max_spread:g} times the time is plausible")
    if row.spread_us == 0 and row.runs >= MIN_RUNS:
        raise fail(f"spread_us of {row.key!r} is 0 over {row.runs:g} runs", span)


def _check_repetition(
    row: _Row, line_by_call: dict[tuple[str, str], tuple[int, float]], span: SourceSpan
) -> None:
    """Raise ``IrgraphError`` for a call that an earlier line measured at a very different time."""
    time = row.kernel_us or row.op_us or 0.0
    line, other = line_by_call.setdefault((row.family, row.key), (span.line, time))
    if max(time, other) > MAX_RATIO * min(time, other):
        message = f"{row.key!r} takes {time:g} us here and {other:g} us in line {line}"
        raise fail(message, span, hint="remove one of them, or measure the call again")


def _head(raw: object, path: str | Path) -> dict[str, Any]:
    span = SourceSpan(str(path))
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise fail(f"not a file of measurements of format {FORMAT}", span)
    try:
        msgspec.convert(raw, _Head)
    except msgspec.ValidationError as error:
        raise fail(f"not the head of measurements: {error}", span) from None
    return raw
