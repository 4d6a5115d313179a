"""The file format of host tables: JSON with these records, checked as it is read.

``{"format": 1, "name": "...", "source": "...", "T1": STAT, "T4": {"kernel": STAT}, "ops": {NAME:
{"T2": STAT, "T3": STAT, "T5": STAT, "whole": STAT, "launches": ["kernel"], "shapes": {...}}}}``
where a STAT is ``{"mean": 7.7, "std": 4.9, "count": 12}``; all times in microseconds. Names are
those of ``model.ir`` without quotes. ``shapes`` holds the same record for one set of operand
shapes, under a key such as ``f32[2048,512] f32[512,512]``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

FORMAT = 1
"""Version that this library reads and writes."""


class Stat(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A measured time in microseconds.

    ``count`` is the number of samples (0: unknown), ``std`` their standard deviation,
    ``quantiles`` any of them by name (``p50``), ``source`` where the figure comes from.
    """

    mean: float
    std: float = 0.0
    count: int = 0
    source: str = ""
    quantiles: dict[str, float] = {}


class OpEntry(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename={"t2": "T2", "t3": "T3", "t5": "T5"},
):
    """Times of one operation.

    ``t5`` is the time between two launches, ``whole`` the time of an operation without launches
    (the paper calls both T5). ``launches`` are the kinds of its launches.
    """

    t2: Stat | None = None
    t3: Stat | None = None
    t5: Stat | None = None
    whole: Stat | None = None
    launches: tuple[str, ...] = ()
    shapes: dict[str, OpEntry] = {}


class HostFile(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename={"t1": "T1", "t4": "T4"},
):
    """A host's table: ``t4`` by kind of launch (``kernel``, ``memcpy``, ``memset``).

    ``within`` is the time between two launches of one call that calls nothing else.
    ``architecture`` is the generation of the device on the measured host (``volta``): devices of
    other generations come with other hosts. ``recording_std`` is the relative standard deviation of
    all times by the cost of recording that they may still include; times of a ``profiled`` table
    include all of it. ``no_graph_ratio`` is the time
    of an operation in a step that records no graph for autograd, over that in a training step, of
    which the table's times are.

    A kind that ``t4`` lacks was not counted as a launch: its time is in the T2, T3 and T5 around
    it.
    """

    format: int
    name: str
    t1: Stat
    t4: dict[str, Stat]
    ops: dict[str, OpEntry] = {}
    within: Stat | None = None
    description: str = ""
    source: str = ""
    licence: str = ""
    made_by: str = ""
    architecture: str = ""
    recording_std: float = 0.0
    no_graph_ratio: float = 1.0
    profiled: bool = False

    def records(self) -> list[dict[str, str | float | None]]:
        """Return every figure as a row, times in microseconds, ``None`` if it is unknown.

        ``kind`` is T1 to T5 or whole. ``operation`` is the name of the operation, or for T4 the
        kind of launch. ``shapes`` are the operands' shapes, ``""`` for all shapes together.
        """
        rows = [_record("T1", "", "", self.t1)]
        rows += [_record("T4", kind, "", stat) for kind, stat in self.t4.items()]
        for name, entry in self.ops.items():
            for shapes, shape_entry in (("", entry), *entry.shapes.items()):
                stats = {
                    "T2": shape_entry.t2,
                    "T3": shape_entry.t3,
                    "T5": shape_entry.t5,
                    "whole": shape_entry.whole,
                }
                rows += [_record(k, name, shapes, stat) for k, stat in stats.items() if stat]
        return rows


def _record(kind: str, operation: str, shapes: str, stat: Stat) -> dict[str, str | float | None]:
    return {
        "kind": kind,
        "operation": operation,
        "shapes": shapes,
        "mean_us": stat.mean,
        "std_us": stat.std if stat.count else None,
        "count": stat.count or None,
        **{f"{name}_us": stat.quantiles.get(name) for name in ("p50", "p95")},
    }


def pooled(stats: Sequence[Stat], source: str = "") -> Stat:
    """Return the statistics of all samples together; an unknown count weighs as one sample."""
    weights = [max(s.count, 1) for s in stats]
    total = sum(weights)
    mean = math.fsum(w * s.mean for w, s in zip(weights, stats, strict=True)) / total
    squares = math.fsum(
        w * (s.std**2 + (s.mean - mean) ** 2) for w, s in zip(weights, stats, strict=True)
    )
    return Stat(mean, math.sqrt(squares / total), sum(s.count for s in stats), source)
