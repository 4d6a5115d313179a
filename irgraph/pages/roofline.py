"""The roofline of a predicted step, as a chart and a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from irgraph.backend import DeviceFacts
from irgraph.html import sections
from irgraph.html.sections import Section
from irgraph.report.roofline import CallWork, roofline

MAX_POINTS = 600
"""Maximum number of points of the chart; they are those of the longest calls."""

TEXT = (
    "operations a second over operations a byte, for calls of products, convolutions and "
    "attention, those of one shape together. No call can lie above the roof of its element type."
)


def roof_sections(works: Sequence[CallWork], device: DeviceFacts, steps: int = 1) -> list[Section]:
    """Return the chart, if some call's operations are counted, and the table of all calls."""
    total = sum(work.time for work in works) / steps
    rows = [row.row("op", total) for row in roofline(works, "op", device, steps)]
    rows = [{key: row[key] for key in row if key != "uncounted_calls"} for row in rows]
    table = sections.records(
        "roofline-ops",
        "Operators beside the device's limits",
        rows,
        text="Of limit: the time that peak and bandwidth would allow, as a share of the time.",
        bars=("time",),
    )
    points = _points(works, steps)
    if not points:
        return [table] if rows else []
    dtypes = sorted({work.dtype for work in works if work.flop})
    peaks = {dtype: device.peak(dtype)[0] for dtype in dtypes}
    chart = sections.roof(
        "roofline", "Roofline", points, peaks, device.bandwidth, text=f"{device.name}: {TEXT}"
    )
    return [chart, table]


def _points(works: Sequence[CallWork], steps: int) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str, str], list[CallWork]] = defaultdict(list)
    for work in works:
        if work.flop and work.nbytes and work.time:
            groups[work.op, work.shape, work.dtype].append(work)
    longest = sorted(groups.items(), key=lambda item: -sum(work.time for work in item[1]))
    return [
        {
            "name": f"{op}({shape})",
            "group": f"{op}, {dtype}",
            "calls": len(equal_calls) / steps,
            "flop": equal_calls[0].flop,
            "bytes": equal_calls[0].nbytes,
            "us": sum(work.time for work in equal_calls) / len(equal_calls),
        }
        for (op, shape, dtype), equal_calls in longest[:MAX_POINTS]
    ]
