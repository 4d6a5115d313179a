"""The sections of a page, as plain records that its scripts draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Section = dict[str, Any]

KINDS = ("text", "us", "bytes", "share", "number", "change")
"""Kinds of columns: text; microseconds; bytes; a share between 0 and 1; a number; a signed change
in microseconds."""


SHARES = ("share", "utilization", "of_peak", "of_bandwidth", "of_limit", "error")
"""Columns of records that contain shares."""

LABELS = {"us": "time", "tflop_s": "TFLOP/s", "tb_s": "TB/s", "gflop": "GFLOP", "mbyte": "MB"}
"""Headings of columns whose names are too short."""


def headline(
    numbers: Iterable[Mapping[str, str]],
    *,
    span: Mapping[str, float | None] | None = None,
    provenance: Mapping[str, float] | None = None,
    longest: Iterable[tuple[str, float, float]] = (),
    span_title: str = "",
) -> Section:
    """Return the first section of a page.

    Args:
        numbers: each with ``label``, ``value`` and, optionally, ``detail`` and ``tone``
            (``good`` or ``bad``); the first is the largest.
        span: ``low``, ``value`` and ``high`` of a 90 % interval in microseconds, with ``measured``.
        provenance: shares of device time by their source.
        longest: operations with most time on the critical path: name, microseconds, share of the
            path. A click on one searches the section ``path`` for it.
        span_title: title of the span, if it is not the first of the numbers.
    """
    shares = [[name, share] for name, share in (provenance or {}).items()]
    return {
        "type": "headline",
        "numbers": list(numbers),
        "span": span,
        "provenance": shares,
        "longest": [list(operation) for operation in longest],
        "of": span_title,
    }


def notes(lines: Iterable[str], *, warning: bool = False) -> Section:
    """Return remarks, one line each."""
    return {"type": "notes", "lines": list(lines), "warning": warning}


def facts(name: str, title: str, rows: Iterable[tuple[str, str]]) -> Section:
    """Return figures with their labels; ``name`` is the section's anchor."""
    return {"type": "facts", "id": name, "title": title, "rows": [list(row) for row in rows]}


def table(
    name: str,
    title: str,
    columns: Sequence[tuple[str, str]],
    rows: Iterable[Sequence[Any]],
    *,
    text: str = "",
    bars: Sequence[str] = (),
) -> Section:
    """Return a table that can be sorted, filtered and saved as CSV.

    Args:
        name: the section's anchor, and the name of its CSV file.
        title: title of the table.
        columns: name and kind (``KINDS``) of each.
        rows: a cell for each column; ``None`` is unknown.
        text: a sentence below the title.
        bars: columns that also show their values as bars.
    """
    cells = [list(row) for row in rows]
    columns_ = [{"name": column, "kind": kind, "bar": column in bars} for column, kind in columns]
    return {
        "type": "table",
        "id": name,
        "title": title,
        "columns": columns_,
        "rows": cells,
        "text": text,
    }


def records(
    name: str,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    text: str = "",
    bars: Sequence[str] = (),
) -> Section:
    """Return a table of records; the suffixes ``_us`` and ``_bytes`` of columns are units.

    Columns that are empty in all rows are left out.
    """
    keys = dict.fromkeys(key for row in rows for key in row)
    names = [key for key in keys if any(row.get(key) not in (None, "") for row in rows)]
    columns = [(_label(key), _kind(key, rows)) for key in names]
    cells = [[_cell(row.get(key)) for key in names] for row in rows]
    return table(name, title, columns, cells, text=text, bars=bars)


def _label(key: str) -> str:
    return LABELS.get(key) or key.removesuffix("_us").removesuffix("_bytes").replace("_", " ")


def _cell(value: Any) -> Any:  # noqa: ANN401  (any field of a record)
    is_plain = value is None or isinstance(value, str | int | float)
    return value if is_plain else ", ".join(map(str, value))


def _kind(key: str, rows: Sequence[Mapping[str, Any]]) -> str:
    values = [row.get(key) for row in rows if row.get(key) is not None]
    if not values or not all(isinstance(value, int | float) for value in values):
        return "text"
    kind_by_suffix = {"_us": "us", "_bytes": "bytes"}
    kind_by_name = {"us": "us"} | dict.fromkeys(SHARES, "share")
    unit_kind = next(
        (kind for suffix, kind in kind_by_suffix.items() if key.endswith(suffix)), "number"
    )
    return kind_by_name.get(key, unit_kind)


def tabs(name: str, title: str, parts: Mapping[str, Section], *, text: str = "") -> Section:
    """Return a section with tabs, one section each."""
    entries = [{"label": label, "section": part} for label, part in parts.items()]
    return {"type": "tabs", "id": name, "title": title, "tabs": entries, "text": text}


def slices(
    name: str, title: str, columns: Mapping[str, Any], *, text: str = "", tall: bool = False
) -> Section:
    """Return slices of time on tracks; ``irgraph.pages`` builds their columns.

    All such sections of a page show the same part of the step; with ``tall`` each track is a band.
    """
    return {"type": "slices", "id": name, "title": title, "text": text, "tall": tall, **columns}


def areas(
    name: str,
    title: str,
    times_us: Sequence[float],
    layers: Mapping[str, Sequence[float]],
    *,
    limit: float | None = None,
    text: str = "",
) -> Section:
    """Return stacked amounts over time: bytes of each layer at the times ``times_us``."""
    return {
        "type": "areas",
        "id": name,
        "title": title,
        "text": text,
        "at": list(times_us),
        "layers": [[label, list(values)] for label, values in layers.items()],
        "limit": limit,
    }


def roof(
    name: str,
    title: str,
    points: Iterable[Mapping[str, Any]],
    peaks: Mapping[str, float],
    bandwidth: float,
    *,
    text: str = "",
) -> Section:
    """Return a roofline: operations per second over operations per byte.

    Args:
        name: the section's anchor.
        title: of the section.
        points: points with ``name``, ``group``, ``flop``, ``bytes`` and ``us`` each.
        peaks: GFLOP/s by element type.
        bandwidth: bandwidth of the memory in GB/s.
        text: a sentence below the title.
    """
    return {
        "type": "roof",
        "id": name,
        "title": title,
        "text": text,
        "points": list(points),
        "peaks": [[label, peak] for label, peak in peaks.items()],
        "bandwidth": bandwidth,
    }


def scatter(
    name: str,
    title: str,
    points: Iterable[Mapping[str, Any]],
    x: tuple[str, str],
    y: tuple[str, str],
    *,
    text: str = "",
) -> Section:
    """Return points of two figures.

    Args:
        name: the section's anchor.
        title: of the section.
        points: points with ``name``, ``group``, ``x``, ``y`` and ``front`` each: whether no other
            point is better in both figures. A line connects the points on the front.
        x: label and kind (``KINDS``) of the first figure.
        y: label and kind of the second figure.
        text: a sentence below the title.
    """
    axes = [{"name": label, "kind": kind} for label, kind in (x, y)]
    return {
        "type": "scatter",
        "id": name,
        "title": title,
        "text": text,
        "points": list(points),
        "axes": axes,
    }


def listing(name: str, title: str, code: str, *, text: str = "") -> Section:
    """Return a verbatim text, such as a script."""
    return {"type": "listing", "id": name, "title": title, "code": code, "text": text}
