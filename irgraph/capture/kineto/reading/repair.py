"""Repairs a trace once all events are in columns: order, times, copies, clocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from irgraph.capture.kineto.reading.health import MAX_MINOR_SHARE
from irgraph.capture.kineto.reading.trace import (
    DEVICE_WORK,
    Array,
    EventKind,
    Integers,
    KinetoTrace,
)

MICROSECOND = 1000
"""Nanoseconds in a microsecond: the resolution of older traces, and the largest rounding error."""

_HOUR = 3600 * 10**9
_DAY = 24 * _HOUR


def clean(trace: KinetoTrace, flows: Sequence[tuple[int, bool, int, int]] = ()) -> None:
    """Repair a trace in place and count every repair in its health report."""
    base = trace.base
    _repair_times(trace)
    _sort_events(trace)
    _drop_copies(trace)
    _repair_early_events(trace)
    _count_overlaps(trace)
    _count_launch_faults(trace)
    _report_missing_kinds(trace)
    trace.forward_links = _forward_links(trace, flows, trace.base - base)


def select_rows(trace: KinetoTrace, rows: Array) -> None:
    """Drop all other rows of a trace; ``rows`` is a mask or a list of positions."""
    count = int(rows.sum()) if rows.dtype == bool else len(rows)
    for key, values in trace.columns.items():
        is_constant = values.strides == (0,) and len(values)
        trace.columns[key] = np.broadcast_to(values[0], count) if is_constant else values[rows]


def drop_later_work(trace: KinetoTrace, end: int) -> None:
    """Drop device work that starts at or after ``end`` and has no launch in the trace."""
    later = (trace.columns["start"] >= end) & (trace.columns["kind"] != EventKind.RUNTIME)
    select_rows(trace, ~(later & (launch_rows(trace) < 0)))


def _repair_times(trace: KinetoTrace) -> None:
    """Drop events far from all others; clamp negative durations; fill in missing kernel times."""
    start, duration = trace.columns["start"], trace.columns["duration"]
    plausible = (start >= 0) & (start < start.min(initial=0, where=start >= 0) + 7 * _DAY)
    far = ~plausible | (duration > _DAY)
    if far.any():
        trace.health.add("K09", int(far.sum()), "times far from all others: dropped")
        select_rows(trace, ~far)
        start, duration = trace.columns["start"], trace.columns["duration"]
    if len(start):
        _drop_outliers(trace)
    start, duration = trace.columns["start"], trace.columns["duration"]
    negative = duration < 0
    if negative.any():
        trace.health.add("K09", int(negative.sum()), "durations missing or negative")
        duration[negative] = 0
    kernels = trace.columns["kind"] == EventKind.KERNEL
    _fill_in_durations(trace, kernels & negative)
    trace.health.add("K10", int((duration == 0).sum()))


def _drop_outliers(trace: KinetoTrace) -> None:
    """Drop outliers: events further from the main span of the trace than its length."""
    start = trace.columns["start"]
    low, high = np.quantile(start, (0.02, 0.98))
    reach = 20 * (high - low) + 10**9
    far = (start < low - reach) | (start > high + reach)
    end = start + trace.columns["duration"]
    long = end > high + 2 * reach
    if (far | long).any():
        count = int((far | long).sum())
        trace.health.add("K09", count, "times far from all others: dropped")
        select_rows(trace, ~(far | long))


def _fill_in_durations(trace: KinetoTrace, missing: Array) -> None:
    """Set the duration of kernels without one to the median of kernels of the same name."""
    name, duration = trace.columns["name"], trace.columns["duration"]
    for row in np.flatnonzero(missing).tolist():
        same = (name == name[row]) & ~missing
        if same.any():
            duration[row] = int(np.median(duration[same]))


def _sort_events(trace: KinetoTrace) -> None:
    """Sort by start, outer events before inner ones; move time 0 to the first event."""
    start = trace.columns["start"]
    if len(start):
        first = int(start.min())
        trace.base += first
        trace.columns["start"] = start - first
    kind = trace.columns["kind"]
    # runtime calls are inside operators that start and end in the same microsecond
    rank = np.ones(len(EventKind), "i8")
    rank[[EventKind.ANNOTATION, EventKind.RUNTIME]] = 0, 2
    inner = rank[kind] - 4 * trace.columns["duration"]
    select_rows(trace, _order(trace.columns["start"], inner))


def _order(first: Integers, second: Integers) -> Integers:
    """Return the stable order by two keys; few rows share the first."""
    order = np.argsort(first, kind="stable")
    ordered = first[order]
    has_equal_next = np.append(ordered[1:] == ordered[:-1], [False])
    if has_equal_next.any():
        has_equal = has_equal_next.copy()
        has_equal[1:] |= has_equal_next[:-1]
        positions = np.flatnonzero(has_equal)
        rows = order[positions]
        order[positions] = rows[np.lexsort((second[rows], first[rows]))]
    return order


def _drop_copies(trace: KinetoTrace) -> None:
    """Drop events that equal another one in every property."""
    if not len(trace):
        return
    keys = ("kind", "name", "thread", "start", "duration", "correlation", "external", "stream")
    table = [trace.columns[key] for key in keys]
    is_copy = np.ones(len(trace) - 1, bool)
    for values in table:
        is_copy &= values[1:] == values[:-1]
    # ids distinguish copies from repeated calls: without ids, two equal events may be two calls
    is_copy &= (table[5][1:] >= 0) | (table[6][1:] >= 0) | (table[0][1:] == EventKind.ANNOTATION)
    if is_copy.any():
        trace.health.add("K16", int(is_copy.sum()))
        select_rows(trace, np.concatenate([[True], ~is_copy]))


def _repair_early_events(trace: KinetoTrace) -> None:
    """Shift device clocks ahead of the host's; move single early events to their launch."""
    launch = launch_rows(trace)
    work = np.flatnonzero(trace.on_device & (launch >= 0))
    start = trace.columns["start"]
    if not (start[launch[work]] - start[work] > 2 * MICROSECOND).any():
        return
    for device in np.unique(trace.columns["device"][work]).tolist():
        _repair_device_clock(trace, device, launch)
    _sort_events(trace)


def _repair_device_clock(trace: KinetoTrace, device: int, launch: Integers) -> None:
    """Repair the early events of one device; a consistent lead is attributed to its clock."""
    on_device = trace.on_device & (trace.columns["device"] == device)
    rows = np.flatnonzero(on_device & (launch >= 0))
    start = trace.columns["start"]
    lead = start[launch[rows]] - start[rows]
    early = lead > 2 * MICROSECOND
    if not early.any():
        return
    # host and device clocks differ by up to a millisecond; single records can be off by any amount
    typical_lead = float(np.median(lead[early]))
    consistent = early & (lead <= 4 * typical_lead)
    if consistent.sum() >= max(3, 0.01 * len(rows)):
        offset = int(lead[consistent].max())
        start[on_device] += offset
        detail = f"the clock of device {device} runs {offset / 1000:,.0f} us ahead: shifted"
        trace.health.add("K13", int(consistent.sum()), detail)
        early &= ~consistent
    late = rows[early]
    start[late] = np.maximum(start[late], start[launch[late]])
    detail = f"by up to {lead.max() / 1000:,.0f} us: moved to their launch"
    trace.health.add("K13", len(late), detail)


def launch_rows(trace: KinetoTrace) -> Integers:
    """Return the row of the runtime call with the correlation of each event, -1 if none."""
    correlation, kind = trace.columns["correlation"], trace.columns["kind"]
    calls = np.flatnonzero((kind == EventKind.RUNTIME) & (correlation >= 0))
    launches = np.full(len(trace), -1, "i4")
    if not len(calls):
        return launches
    order = calls[np.argsort(correlation[calls], kind="stable")]
    events = np.flatnonzero((kind != EventKind.RUNTIME) & (correlation >= 0))
    positions = np.searchsorted(correlation[order], correlation[events])
    positions[positions == len(order)] = 0
    match = correlation[order[positions]] == correlation[events]
    launches[events[match]] = order[positions[match]]
    return launches


def _count_overlaps(trace: KinetoTrace) -> None:
    """Count kernels that overlap on one stream; they are assumed to run concurrently."""
    start, end = trace.columns["start"], trace.end
    device, stream = trace.columns["device"], trace.columns["stream"]
    rows = np.flatnonzero(trace.on_device)
    rows = rows[np.lexsort((start[rows], stream[rows], device[rows]))]
    if len(rows) < 2:
        return
    a, b = rows[:-1], rows[1:]
    same = (stream[a] == stream[b]) & (device[a] == device[b]) & (stream[a] >= 0)
    overlaps = np.minimum(end[a], end[b]) - start[b]
    overlapping = same & (end[a] - start[b] > MICROSECOND)
    time = int((end[rows] - start[rows]).sum())
    is_minor = int(overlaps[overlapping].sum()) <= MAX_MINOR_SHARE * time
    count, detail = int(overlapping.sum()), "taken to run beside each other"
    trace.health.add("K12", count, detail, is_minor=is_minor)


def _count_launch_faults(trace: KinetoTrace) -> None:
    """Count launches of several kernels, calls that share an id, and device work without launch."""
    correlation, kind = trace.columns["correlation"], trace.columns["kind"]
    calls = np.sort(correlation[(kind == EventKind.RUNTIME) & (correlation > 0)])
    trace.health.add("K29", int((calls[1:] == calls[:-1]).sum()))
    device = trace.on_device
    launches = launch_rows(trace)
    used = launches[device & (launches >= 0)]
    counts = np.bincount(used)
    trace.health.add("K15", int((counts > 1).sum()), f"up to {counts.max(initial=0)} events each")
    orphans = device & (launches < 0)
    if {"K31", "K32"} & set(trace.health.counts):
        # work of steps before the selected ones
        orphans &= correlation > correlation[kind == EventKind.RUNTIME].max(initial=0)
    trace.health.add("K14", int(orphans.sum()), _orphan_causes(trace, orphans))


def _orphan_causes(trace: KinetoTrace, orphans: Array) -> str:
    correlation = trace.columns["correlation"]
    calls = trace.columns["kind"] == EventKind.RUNTIME
    call_ids = correlation[calls & (correlation > 0)]
    first = int(call_ids.min()) if len(call_ids) else 1 << 62
    uncorrelated = orphans & (correlation < 0)
    launched_earlier = orphans & ~uncorrelated & (correlation < first)
    rest = int(orphans.sum() - uncorrelated.sum() - launched_earlier.sum())
    parts = {
        "without correlation": int(uncorrelated.sum()),
        "launched before the recording": int(launched_earlier.sum()),
        "whose launch is not in the trace": rest,
    }
    return ", ".join(f"{count} {cause}" for cause, count in parts.items() if count)


def _report_missing_kinds(trace: KinetoTrace) -> None:
    kind = trace.columns["kind"]
    operators = kind == EventKind.OP
    if not np.isin(kind, DEVICE_WORK).any():
        cut = "K01" in trace.health.counts
        trace.health.add("K27", detail="or that part of the file is cut off" if cut else "")
    elif not (kind == EventKind.SYNC).any():
        trace.health.add("K19")
    if operators.any() and not (trace.columns["shape"][operators] > 0).any():
        trace.health.add("K20", int(operators.sum()))


def _forward_links(
    trace: KinetoTrace, flows: Sequence[tuple[int, bool, int, int]], origin: int
) -> dict[int, int]:
    """Return the row of the forward operator by that of its backward operator, from flow events.

    ``origin`` is the time of the flow events at which the trace's times begin.
    """
    if not flows:
        return {}
    flows = [(number, begins, t, time_ns - origin) for number, begins, t, time_ns in flows]
    rows = {}
    thread, start = trace.columns["thread"], trace.columns["start"]
    operators = np.flatnonzero(trace.columns["kind"] == EventKind.OP)
    operators = operators[np.isin(start[operators], [time_ns for *_, time_ns in flows])]
    places = zip(thread[operators].tolist(), start[operators].tolist(), strict=True)
    for row, (t, time_ns) in zip(operators.tolist(), places, strict=True):
        rows[t, time_ns] = row
    begins = {n: rows.get((t, time)) for n, begin, t, time in flows if begin}
    links = {}
    for number, begin, t, time_ns in flows:
        target, source = rows.get((t, time_ns)), begins.get(number)
        if not begin and target is not None and source is not None:
            links[target] = source
    return links
