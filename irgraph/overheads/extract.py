"""Host tables from traces: statistics of T1-T5, the profiler's own cost subtracted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from irgraph.capture.common.interrupted import EVALUATE
from irgraph.capture.common.lowering import autograd_name
from irgraph.diagnostics import fail
from irgraph.overheads.format import FORMAT, HostFile, OpEntry, Stat, pooled
from irgraph.overheads.names import current_names
from irgraph.overheads.rules import Rule, keep_all, stat
from irgraph.overheads.samples import HostSample, Samples

_FIELDS = {"T2": "t2", "T3": "t3", "T5": "t5", "whole": "whole"}

TABLE_KINDS = ("T1", "T4", *_FIELDS)
"""Kinds of samples in a host table."""


class ProfilerCost(Struct, frozen=True):
    """Time that the profiler adds to a step, in microseconds.

    Attributes:
        host: for each recorded host event.
        device: for each launch, in addition.
        is_outside: whether an event takes this before its start and after its end: none of it is
            in the time of a call that calls nothing else.
        is_launch_event: whether the driver's launch counts as one host event, too.
    """

    host: float = 2.0
    device: float = 4.0
    is_outside: bool = False
    is_launch_event: bool = True

    def overhead_of(self, sample: HostSample) -> float:
        """Return the microseconds of a sample that the profiler caused."""
        if sample.kind == "T4":
            return self.device + (self.host * sample.events if self.is_launch_event else 0.0)
        if self.is_outside and sample.kind == "whole":
            return self.host * (sample.events - 1)
        is_part = self.is_outside and sample.kind in ("T2", "T3", "T5")
        return self.host * (sample.starts if is_part else sample.events)


PAPER_COST = ProfilerCost()
"""2 us for a host event and 4 us for a device event (section III-C of the paper)."""

NO_COST = ProfilerCost(0.0, 0.0)
"""Leaves profiled times unchanged, which a replay of the profiled step requires."""


def extract(
    samples: Iterable[Samples],
    name: str,
    *,
    rule: Rule = keep_all,
    cost: ProfilerCost = PAPER_COST,
    source: str = "",
    architecture: str = "",
    description: str = "",
) -> HostFile:
    """Return the host table of one or more traces, whose samples are pooled.

    Args:
        samples: of each trace (``irgraph.overheads.samples.collect``).
        name: of the table.
        rule: selects the samples that count (``irgraph.overheads.rules``).
        cost: of the profiler; it is subtracted, but T1 to T5 stay at least 0.
        source: origin of the traces.
        architecture: of their device, if known.
        description: of the table.
    """
    parts = [subtract_cost(part, cost) for part in samples]
    all_samples = [s for part in parts for group in part.by_key.values() for s in group]
    launches_by_op: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for part in parts:
        for operation, launches in part.launches.items():
            launches_by_op[ir_name(operation)].update(launches)
    by_kind: dict[str, list[HostSample]] = defaultdict(list)
    for sample in all_samples:
        by_kind[sample.kind].append(sample)
    gaps = [s for s in by_kind["T1"] if s.place == ""] or by_kind["T1"]
    return HostFile(
        FORMAT,
        name,
        _stat(gaps, rule),
        _launches(by_kind["T4"], rule),
        _operations(all_samples, launches_by_op, rule),
        description=description,
        source=source,
        made_by="irgraph overheads",
        architecture=architecture,
    )


def subtract_cost(samples: Samples, cost: ProfilerCost) -> Samples:
    """Return samples without the profiler's cost; shorter ones become 0."""
    if cost == NO_COST:
        return samples
    result = Samples(launches=samples.launches)
    for key, group in samples.by_key.items():
        times = (max(0.0, sample.time - cost.overhead_of(sample)) for sample in group)
        result.by_key[key] = [replace(s, time=time) for s, time in zip(group, times, strict=True)]
    return result


def clipped_counts(
    samples: Iterable[Samples], costs: Iterable[ProfilerCost]
) -> dict[str, tuple[int, int]]:
    """Return by kind the number of samples shorter than the profiler's cost, and of all samples.

    Such samples count as 0. Kinds without any are omitted.

    Args:
        samples: of each trace.
        costs: of each trace.
    """
    kinds: dict[str, list[bool]] = defaultdict(list)
    for part, cost in zip(samples, costs, strict=True):
        for (kind, _, _), group in part.by_key.items():
            if kind in TABLE_KINDS:
                kinds[kind] += (sample.time < cost.overhead_of(sample) for sample in group)
    return {kind: (sum(short), len(short)) for kind, short in sorted(kinds.items()) if any(short)}


def _stat(samples: Sequence[HostSample], rule: Rule) -> Stat:
    times = [sample.time for sample in samples]
    return stat(times, rule) if times else Stat(0.0)


def _launches(samples: Sequence[HostSample], rule: Rule) -> dict[str, Stat]:
    """Return T4 by kind of launched work, and by runtime function."""
    groups: dict[str, list[HostSample]] = defaultdict(list)
    for sample in samples:
        groups[sample.place].append(sample)
    for sample in (s for s in samples if s.name != s.place):
        groups[sample.name].append(sample)
    return {key: _stat(group, rule) for key, group in groups.items()}


def _operations(
    samples: Iterable[HostSample],
    launches_by_op: Mapping[str, Counter[tuple[str, ...]]],
    rule: Rule,
) -> dict[str, OpEntry]:
    by_name: dict[str, dict[str, dict[str, list[HostSample]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for sample in samples:
        if sample.kind in _FIELDS:
            by_name[ir_name(sample.name)][_FIELDS[sample.kind]][sample.shape].append(sample)
    return {
        name: _entry(kinds, launches_by_op.get(name, Counter()), rule)
        for name, kinds in sorted(by_name.items())
    }


def _entry(
    kinds: Mapping[str, Mapping[str, list[HostSample]]],
    launch_counts: Counter[tuple[str, ...]],
    rule: Rule,
) -> OpEntry:
    stats = {
        kind: _stat([s for group in shapes.values() for s in group], rule)
        for kind, shapes in kinds.items()
    }
    keys = dict.fromkeys(key for shapes in kinds.values() for key in shapes if key)
    by_shapes = {
        key: OpEntry(
            **{kind: _stat(g[key], rule) for kind, g in kinds.items() if key in g}  # type: ignore[arg-type]
        )
        for key in keys
    }
    typical_launches = launch_counts.most_common(1)[0][0] if launch_counts else ()
    return OpEntry(**stats, launches=typical_launches, shapes=by_shapes)


def ir_name(name: str) -> str:
    """Return the name in ``model.ir`` of an operator of a trace."""
    if name.startswith((EVALUATE, "torch::autograd::")):
        base_name = name.removeprefix(EVALUATE)
        return autograd_name(base_name) if "::" in base_name else current_names(base_name)[0]
    return current_names(name)[0]


def merge(files: Sequence[HostFile], name: str) -> HostFile:
    """Return one table of several workloads (the paper's shared overheads).

    Every sample counts once: means and deviations are of all samples together, and counts add up.
    Quantiles cannot be merged; they are retained only for entries of a single table. Raises
    ``IrgraphError`` if some tables are as profiled and others are not.
    """
    _require_one_kind(files)
    functions = dict.fromkeys(key for file in files for key in file.t4)
    operations = dict.fromkeys(key for file in files for key in file.ops)
    architectures = {file.architecture for file in files}
    return HostFile(
        FORMAT,
        name,
        _pooled([file.t1 for file in files]),
        {f: _pooled([file.t4[f] for file in files if f in file.t4]) for f in functions},
        {
            op: _merge_entries([file.ops[op] for file in files if op in file.ops])
            for op in operations
        },
        source="; ".join(dict.fromkeys(file.source for file in files if file.source)),
        made_by="irgraph overheads",
        architecture=architectures.pop() if len(architectures) == 1 else "",
        recording_std=max(file.recording_std for file in files),
        no_graph_ratio=max(file.no_graph_ratio for file in files),
        profiled=files[0].profiled,
    )


def _require_one_kind(files: Sequence[HostFile]) -> None:
    """Raise ``IrgraphError`` if the times of some tables include their recording."""
    profiled = [file.name for file in files if file.profiled]
    others = [file.name for file in files if not file.profiled]
    if profiled and others:
        raise fail(
            f"the times of {', '.join(profiled)} include the cost of their recording, those of "
            f"{', '.join(others)} do not",
            hint="`overheads TRACE --profiler 0,0` leaves the cost of recording in a trace's times",
            exit_code=2,
        )


def _pooled(stats: Sequence[Stat]) -> Stat:
    return stats[0] if len(stats) == 1 else pooled(stats)


def _merge_entries(entries: Sequence[OpEntry]) -> OpEntry:
    stats: dict[str, Stat] = {}
    for kind in _FIELDS.values():
        stats_of_kind = [s for entry in entries if (s := getattr(entry, kind)) is not None]
        if stats_of_kind:
            stats[kind] = _pooled(stats_of_kind)
    keys = dict.fromkeys(key for entry in entries for key in entry.shapes)
    shapes = {k: _merge_entries([e.shapes[k] for e in entries if k in e.shapes]) for k in keys}
    launches = Counter(entry.launches for entry in entries if entry.launches)
    typical_launches = launches.most_common(1)[0][0] if launches else ()
    return OpEntry(**stats, launches=typical_launches, shapes=shapes)
