"""Separates the processes of one file: each that launches device work is one rank."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from irgraph.capture.kineto.reading.health import Health
from irgraph.capture.kineto.reading.repair import MICROSECOND, select_rows
from irgraph.capture.kineto.reading.trace import (
    DEVICE_WORK,
    HOST_KINDS,
    Array,
    EventKind,
    KinetoTrace,
)


def split_processes(trace: KinetoTrace) -> list[KinetoTrace]:
    """Return one trace for each process that runs operators and launches device work.

    Ranks are numbered by their devices, then by process. Correlation ids are numbers of a process:
    device work belongs to the process that launched the work of its stream. Thread ids differ
    between processes; if one is in two of them, the file's process ids are no guide, and all events
    are read as one process's, with a finding.
    """
    owners = _thread_owners(trace)
    host = np.isin(trace.columns["kind"], HOST_KINDS)
    owner = np.where(host, owners[trace.columns["thread"]], -1)
    processes = _launching_processes(trace, owner)
    if len(processes) > 1 and _shares_threads(trace):
        trace.health.add("K41", len(processes), "read as one: operators share thread ids")
        return [trace]
    if len(processes) < 2:
        return [trace]
    _assign_device_work(trace, owner, processes)
    work = np.isin(trace.columns["kind"], DEVICE_WORK)
    highest = np.iinfo("i2").max
    devices = {
        process: int(trace.columns["device"].min(initial=highest, where=work & (owner == process)))
        for process in processes
    }
    pids = {int(owners[thread]): str(pid) for thread, (pid, _) in enumerate(trace.threads)}
    ordered = sorted(processes, key=lambda process: (devices[process], pids[process].zfill(20)))
    return [
        _part(trace, owner, owners, number, process, pids[process])
        for number, process in enumerate(ordered)
    ]


def _thread_owners(trace: KinetoTrace) -> Array:
    """Return the number of each thread's process."""
    numbers: dict[int | str, int] = {}
    return np.array([numbers.setdefault(p, len(numbers)) for p, _ in trace.threads], "i8")


def _launching_processes(trace: KinetoTrace, owner: Array) -> list[int]:
    """Return the processes with operators, and with calls whose ids device work has."""
    kind, correlation = trace.columns["kind"], trace.columns["correlation"]
    work = correlation[np.isin(kind, DEVICE_WORK) & (correlation >= 0)]
    launching = (kind == EventKind.RUNTIME) & np.isin(correlation, work)
    operating = np.unique(owner[kind == EventKind.OP])
    return sorted(set(np.unique(owner[launching]).tolist()) & set(operating.tolist()))


def _shares_threads(trace: KinetoTrace) -> bool:
    """Return whether operators of two processes have the same thread id."""
    operators = trace.columns["kind"] == EventKind.OP
    names = [trace.threads[t][1] for t in np.unique(trace.columns["thread"][operators]).tolist()]
    return len(set(names)) < len(names)


def _assign_device_work(trace: KinetoTrace, owner: Array, processes: list[int]) -> None:
    """Fill in the process of device events: the one that launched most work of their stream.

    Equal programs number their launches equally, at nearly the same times. With its own calls the
    work of a stream starts after each call, and with a steady delay.
    """
    columns = trace.columns
    work = np.isin(columns["kind"], DEVICE_WORK)
    rows = np.flatnonzero(work | ((columns["correlation"] >= 0) & (owner < 0)))
    delays = np.stack([_launch_delays(trace, owner, process, rows) for process in processes])
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    starts = columns["start"][rows]
    keys = (columns[key][rows].tolist() for key in ("thread", "device", "stream"))
    for position, key in enumerate(zip(*keys, strict=True)):
        groups[key].append(position)
    used = dict.fromkeys(range(len(processes)), 0)
    for positions in groups.values():
        group = delays[:, positions]
        usual = min(used, key=lambda number: (*_misfit(group[number]), used[number]))
        used[usual] += 1
        has_call = group >= -2 * MICROSECOND
        best = np.where(has_call[usual], usual, has_call.argmax(axis=0))
        # calls of another process may have the ids of work that was launched before the recording
        first = starts[positions][has_call[usual]].min(initial=np.iinfo("i8").max)
        is_earlier = starts[positions] < first
        best[~has_call.any(axis=0) | is_earlier] = usual
        owner[rows[positions]] = np.array(processes)[best]


def _misfit(delays: Array) -> tuple[int, float]:
    """Return how badly the calls of a process fit the work of a stream.

    The first figure is the number of events that have no call before them, the second the
    deviation of the delays.
    """
    is_early = np.isnan(delays) | (delays < -2 * MICROSECOND)
    own_delays = delays[~is_early]
    return int(is_early.sum()), round(float(np.std(own_delays)), 3) if len(own_delays) else 0.0


def _launch_delays(trace: KinetoTrace, owner: Array, process: int, rows: Array) -> Array:
    """Return the time from the call of a process with its id to each device event, NaN for none."""
    correlation, start = trace.columns["correlation"], trace.columns["start"]
    calls = np.flatnonzero((trace.columns["kind"] == EventKind.RUNTIME) & (owner == process))
    calls = calls[np.argsort(correlation[calls], kind="stable")]
    positions = np.searchsorted(correlation[calls], correlation[rows])
    candidates = calls[np.minimum(positions, len(calls) - 1)]
    has_call = (correlation[candidates] == correlation[rows]) & (correlation[rows] >= 0)
    return np.where(has_call, start[rows] - start[candidates], np.nan)


def _part(
    trace: KinetoTrace, owner: Array, owners: Array, number: int, process: int, pid: str
) -> KinetoTrace:
    """Return the trace of one process as a rank; events of no process are in each."""
    source = f"{trace.source}, process {pid}"
    known = trace.header.get("distributedInfo")
    info = {**(known if isinstance(known, dict) else {}), "rank": number}
    health = Health(source, dict(trace.health.counts), dict(trace.health.details))
    health.minor = set(trace.health.minor)
    health.add("K40", detail=f"process {pid} is rank {number}")
    part = replace(
        trace,
        source=source,
        columns=dict(trace.columns),
        header={**trace.header, "distributedInfo": info},
        health=health,
        memory=trace.memory[:, owners[trace.memory[0]] == process],
    )
    select_rows(part, (owner == process) | (owner < 0))
    return part
