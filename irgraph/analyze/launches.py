"""Statistics of launches: queues of streams, delays, kernel sequences, and the critical path."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from irgraph.capture.kineto.events.device import stream_of
from irgraph.capture.kineto.events.launch_queues import LaunchQueue, launch_queues
from irgraph.capture.kineto.events.tree import Tree
from irgraph.capture.kineto.reading.trace import Configuration, EventKind, Integers, decode_value
from irgraph.replay.host_times import HostTimes
from irgraph.replay.replay import build_replayer, select_typical_steps
from irgraph.schedule.critical_path import critical_path
from irgraph.schedule.intervals import CAUSES
from irgraph.schedule.timeline import Interval, Timeline

US = 1000
SEQUENCE_LENGTH = 3
"""Default number of kernels in a sequence."""


def launched_rows(tree: Tree) -> Integers:
    """Return the device events that the typical steps launched, in order of their starts."""
    typical_steps = select_typical_steps(tree)
    step_indices = [i for i, step in enumerate(tree.steps) if step in typical_steps]
    is_launched = tree.trace.on_device & (tree.launch >= 0) & np.isin(tree.step, step_indices)
    rows: Integers = np.flatnonzero(is_launched)
    return rows[np.argsort(tree.trace.columns["start"][rows], kind="stable")]


def queues(trees: Sequence[Tree]) -> list[dict[str, Any]]:
    """Return the number of waiting and of outstanding launches of each stream.

    A launch waits from the start of its runtime call to the start of its work, and is outstanding
    until the end of the work. Means are over the time from a stream's first launch to the end of
    its work. ``limit`` is the number of launches at which the trace shows that a further one
    blocks the host, ``None`` if it shows none, and ``full_share`` the share of the time with as
    many. ``priority`` and ``channel`` are recorded values of its work.
    """
    result = []
    for tree in trees:
        shown_queues = launch_queues(tree).by_stream
        streams: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row in launched_rows(tree).tolist():
            streams[stream_of(tree.trace, row)].append(row)
        for (device, stream), rows in sorted(streams.items()):
            head = {"rank": tree.trace.rank, "device": device, "stream": stream}
            queue = shown_queues[device, stream]
            statistics = _stream_statistics(tree, np.array(rows), queue)
            result.append({**head, **statistics, **_hardware(tree, rows)})
    return result


def _hardware(tree: Tree, rows: Sequence[int]) -> dict[str, str | None]:
    """Return the priorities and hardware queues of device work, ``None`` if not recorded."""
    numbers = np.unique(tree.trace.columns["configuration"][rows]).tolist()
    records = [tree.trace.configurations[number] for number in numbers]
    return {
        "priority": _distinct((record.priority,) for record in records),
        "channel": _distinct((record.channel, record.channel_type) for record in records),
    }


def _distinct(values: Iterable[tuple[bytes, ...]]) -> str | None:
    """Return distinct recorded values as a text, ``None`` if there are none."""
    recorded = {" ".join(map(_word, parts)).strip() for parts in values if parts[0]}
    return ", ".join(sorted(recorded)) or None


def _word(text: bytes) -> str:
    value = decode_value(text)
    return "" if value is None else str(value)


def _stream_statistics(tree: Tree, rows: Integers, queue: LaunchQueue) -> dict[str, Any]:
    start = tree.trace.columns["start"]
    call_starts, work_starts, work_ends = (
        start[tree.launch[rows]],
        start[rows],
        tree.trace.end[rows],
    )
    last_end = int(work_ends.max())
    waiting = _load(call_starts, work_starts, last_end, queue.limit)
    outstanding = _load(call_starts, work_ends, last_end, queue.limit)
    full_share = (outstanding if queue.until_end else waiting).full_share
    return {
        "launches": len(rows),
        "waiting_mean": round(waiting.mean, 3),
        "waiting_most": waiting.maximum,
        "limit": queue.limit or None,
        "full_share": round(full_share, 6),
        "outstanding_mean": round(outstanding.mean, 3),
        "outstanding_most": outstanding.maximum,
    }


class _Load(NamedTuple):
    """Number of overlapping intervals: mean and maximum over time, and share of time at a limit."""

    mean: float
    maximum: int
    full_share: float


def _load(starts: Integers, ends: Integers, until: int, limit: int) -> _Load:
    """Return the number of overlapping intervals over time; a ``limit`` of 0 is none."""
    times = np.concatenate([starts, np.maximum(ends, starts)])
    changes = np.repeat([1, -1], len(starts))
    order = np.lexsort((changes, times))
    load, sorted_times = np.cumsum(changes[order]), times[order]
    lengths = np.diff(np.append(sorted_times, until)).clip(min=0)
    total = max(1, until - int(sorted_times[0]))
    full_share = lengths[load >= limit].sum() / total if limit else 0.0
    return _Load(
        float((load * lengths).sum() / total),
        int(load[lengths > 0].max(initial=0)),
        float(full_share),
    )


def launch_delays(trees: Sequence[Tree]) -> list[dict[str, Any]]:
    """Return calls per step, times and delays by runtime function and kernel.

    ``delay_us`` is from the end of the call to the start of the work. ``short`` counts work that
    is shorter than the call that launched it: there the host is the limit.
    """
    steps = sum(len(select_typical_steps(tree)) for tree in trees) or 1
    times_by_key: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    for tree in trees:
        duration, start = tree.trace.columns["duration"], tree.trace.columns["start"]
        for row in launched_rows(tree).tolist():
            call = int(tree.launch[row])
            delay = max(0, int(start[row]) - int(start[call]) - int(duration[call]))
            key = tree.trace.text(call), tree.trace.text(row)
            times_by_key[key].append((duration[call] / US, duration[row] / US, delay / US))
    rows = []
    for (function, kernel), samples in times_by_key.items():
        calls, works, delays = (np.array(column) for column in zip(*samples, strict=True))
        rows.append(
            {
                "function": function,
                "kernel": kernel,
                "calls": round(len(samples) / steps, 2),
                "call_us": round(float(calls.mean()), 3),
                "work_us": round(float(works.mean()), 3),
                "delay_us": round(float(np.median(delays)), 3),
                "short": round(int((works < calls).sum()) / steps, 2),
            }
        )
    return sorted(rows, key=lambda row: -row["short"])


def configurations(trees: Sequence[Tree]) -> list[dict[str, Any]]:
    """Return the kernels by the configuration of their launches, the longest in all first.

    ``None`` is a figure that the trace does not record.
    """
    steps = sum(len(select_typical_steps(tree)) for tree in trees) or 1
    times: dict[tuple[str, Configuration], list[float]] = defaultdict(list)
    for tree in trees:
        trace = tree.trace
        for row in launched_rows(tree).tolist():
            if trace.columns["kind"][row] == EventKind.KERNEL:
                configuration = trace.configurations[int(trace.columns["configuration"][row])]
                # streams and hardware queues are no part of it
                configuration = Configuration(*configuration[:5])
                times[trace.text(row), configuration].append(trace.columns["duration"][row] / US)
    rows = [
        {
            "kernel": name,
            "grid": _axes(configuration.grid),
            "block": _axes(configuration.block),
            "registers": _figure(configuration.registers),
            "shared_bytes": _figure(configuration.block_memory),
            "occupancy": _figure(configuration.occupancy),
            "calls": round(len(durations) / steps, 2),
            "us": round(float(sum(durations)) / steps, 3),
            "min_us": round(float(min(durations)), 3),
            "median_us": round(float(np.median(durations)), 3),
            "max_us": round(float(max(durations)), 3),
        }
        for (name, configuration), durations in times.items()
    ]
    return sorted(rows, key=lambda row: -float(str(row["us"])))


def _axes(text: bytes) -> str | None:
    """Return sizes by axis, such as ``64 x 1 x 1``."""
    sizes = decode_value(text)
    return " x ".join(map(str, sizes)) if isinstance(sizes, list) and sizes else None


def _figure(text: bytes) -> float | None:
    number = decode_value(text)
    return number if isinstance(number, (int, float)) else None


def sequences(trees: Sequence[Tree], length: int = SEQUENCE_LENGTH) -> list[dict[str, Any]]:
    """Return the most frequent sequences of kernels on a stream.

    ``us`` is their run time per step; sequences overlap, so times do not add up.
    """
    steps = sum(len(select_typical_steps(tree)) for tree in trees) or 1
    counts: Counter[tuple[str, ...]] = Counter()
    times: Counter[tuple[str, ...]] = Counter()
    for tree in trees:
        for rows in _streams(tree):
            names = [tree.trace.text(row) for row in rows]
            duration = tree.trace.columns["duration"][rows]
            for start in range(len(rows) - length + 1):
                key = tuple(names[start : start + length])
                counts[key] += 1
                times[key] += int(duration[start : start + length].sum())
    repeated = [(key, count) for key, count in counts.items() if count > 1]
    return [
        {
            "sequence": " → ".join(key),
            "calls": round(n / steps, 2),
            "us": round(times[key] / US / steps, 3),
        }
        for key, n in sorted(repeated, key=lambda item: (-item[1], -times[item[0]]))
    ]


def _streams(tree: Tree) -> Iterator[list[int]]:
    """Yield the kernels of each step and stream in order of time."""
    rows_by_stream: dict[tuple[int, tuple[int, int]], list[int]] = defaultdict(list)
    for row in launched_rows(tree).tolist():
        if tree.trace.columns["kind"][row] == EventKind.KERNEL:
            rows_by_stream[int(tree.step[row]), stream_of(tree.trace, row)].append(row)
    yield from rows_by_stream.values()


def critical_work(trees: Sequence[Tree]) -> list[dict[str, Any]]:
    """Return the parts of the critical path of each trace's last typical step, longest first.

    The step is simulated with its own times (``irgraph.replay``). Kernels, including those of a
    graph launch, are grouped by name, and the host's time by cause. The times of one rank add up to
    its step, or to the end of its device work if that is later.
    """
    result: list[dict[str, Any]] = []
    for tree in trees:
        typical_steps = select_typical_steps(tree)
        if not typical_steps or not tree.trace.on_device.any():
            continue
        timeline = build_replayer(tree).replay(typical_steps[-1], HostTimes()).timeline
        times: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for interval in critical_path(timeline).intervals:
            times[_location(timeline, interval)].append(interval.end - interval.start)
        head = {"rank": tree.trace.rank, "step": typical_steps[-1].number}
        result += [
            {
                **head,
                "where": location,
                "what": cause,
                "name": name,
                "pieces": len(durations),
                "us": round(sum(durations), 3),
                "share": round(sum(durations) / timeline.step_time, 6),
            }
            for (location, cause, name), durations in times.items()
        ]
    return sorted(result, key=lambda row: -row["us"])


def _location(timeline: Timeline, interval: Interval) -> tuple[str, str, str]:
    """Return an interval's location and cause, and the kernel or the description of the cause."""
    location = "host" if timeline.on_host(interval) else "device"
    is_kernel = interval.kernel is not None and location == "device"
    name = interval.kernel.name if is_kernel and interval.kernel else CAUSES[interval.cause]
    return location, interval.cause, name
