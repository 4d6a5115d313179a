"""Host times of a replay from a host table, for the operations of the replayed trace.

A trace's times include its recording. Its cost is added to the times of a table that does not
include any, so that simulated and measured steps can be compared.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean, median

from msgspec import Struct

from irgraph.overheads.default_host import DEFAULT_HOST, MACHINE_STD, RECENT_TABLE
from irgraph.overheads.extract import NO_COST, ProfilerCost, ir_name
from irgraph.overheads.format import OpEntry, Stat
from irgraph.overheads.recording import recording_of
from irgraph.overheads.samples import HostSample, Samples
from irgraph.overheads.table import SCALED_HOST, HostTable, is_table, load_host
from irgraph.replay.host_times import HostTimes
from irgraph.replay.replay import Replayer

ANY_SHAPE = "*"
"""Shape of these samples, which no call has: they are not of equal shapes."""

DEVIATIONS = (-1.0, 0.0, 1.0)
"""Deviations of the samples that represent a statistic: their sample deviation is 1."""


class TableTimes(Struct, frozen=True):
    """Host times of a replay from a table.

    Attributes:
        table: name of the table, with its scale.
        times: its times for the operations of the replayed trace.
        profiled: whether its times include the cost of another recording.
    """

    table: str
    times: HostTimes
    profiled: bool


def names_table(name_or_path: str) -> bool:
    """Return whether a name or a path is of a host table, instead of a trace.

    A name without a file is a table's, unknown or not: traces are files.
    """
    base = scaled[1] if (scaled := SCALED_HOST.fullmatch(name_or_path)) else name_or_path
    return base == DEFAULT_HOST or is_table(base) or not (base == "-" or Path(base).exists())


def table_times(replayer: Replayer, name: str, *, match_speed: bool) -> TableTimes:
    """Return the host times of a table for a replayed trace.

    Args:
        replayer: the trace.
        name: name or path of the table; ``default`` is the table of torch 2.
        match_speed: whether the trace's launch time scales a table that the name does not scale.

    Raises ``IrgraphError`` as ``load_host`` does.
    """
    full_name = re.sub(rf"^{DEFAULT_HOST}(?=@|$)", RECENT_TABLE, name)
    scaled = SCALED_HOST.fullmatch(full_name)
    profiled = load_host(scaled[1] if scaled else full_name).file.profiled
    measured = replayer.samples()
    cost = NO_COST if profiled else recording_of(replayer.tree).cost
    launch_us = _launch_us(measured, cost)
    if match_speed and launch_us and not scaled:
        full_name = f"{full_name}@{launch_us:.2f}us"
    table = load_host(full_name)
    if not any(ir_name(name).startswith("autograd.") for _, name, _ in measured.by_key):
        table = table.without_graph()
    is_default = full_name != name
    std = table.machine_std or (MACHINE_STD if is_default else 0.0)
    samples = _table_samples(measured, table, cost)
    return TableTimes(table.name, HostTimes(samples, other=True, machine_std=std), profiled)


def _launch_us(samples: Samples, cost: ProfilerCost) -> float:
    """Return the median time of a kernel launch less the cost, 0 if there is none."""
    launches = [
        s for key, group in samples.by_key.items() if key[::2] == ("T4", "kernel") for s in group
    ]
    return median(max(0.0, s.time - cost.overhead_of(s)) for s in launches) if launches else 0.0


def _table_samples(measured: Samples, table: HostTable, cost: ProfilerCost) -> Samples:
    """Return samples that represent a table's statistics, for each kind of sample of a trace."""
    samples = Samples()
    for (kind, name, place), group in measured.by_key.items():
        stat = _stat(table, kind, name, place)
        if stat is None:
            continue
        mean = stat.mean / table.speeds.get(kind, 1.0)
        std = min(stat.std / stat.mean, 1.0) * mean if stat.mean else 0.0
        recording = fmean(cost.overhead_of(sample) for sample in group)
        for deviation in DEVIATIONS:
            time = mean + deviation * std + recording
            samples.add(HostSample(kind, name, ANY_SHAPE, time, place=place))
    return samples


def _stat(table: HostTable, kind: str, name: str, place: str) -> Stat | None:
    """Return a table's statistic of a kind of sample, ``None`` if it has none."""
    if kind == "T1":
        return table.file.t1 if place == "" else None
    if kind == "T4":
        return table.file.t4.get(name) or table.file.t4.get(place)
    entry = table.file.ops.get(ir_name(name), OpEntry())
    return getattr(entry, kind.lower(), None)
