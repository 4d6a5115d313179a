"""Reads host tables and looks up an operation's overheads in them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import msgspec

from irgraph.backend import backend
from irgraph.diagnostics import IrgraphError, SourceSpan, fail, suggestion
from irgraph.diagnostics.json_keys import refuse_duplicate_keys
from irgraph.ir.cost import Overheads
from irgraph.ir.op import Op
from irgraph.ir.tf32 import plain_name
from irgraph.overheads.format import FORMAT, HostFile, OpEntry, Stat, pooled
from irgraph.overheads.physics import MAX_US, contradictions, impossible_times, range_errors

TABLE_KEYS = (b'"format"', b'"T1"')
"""Keys at the beginning of a table's file, in any order."""

MAX_START = 4096
"""Maximum number of bytes of that beginning."""

LEVELS = ("op+shape", "op", "category", "global", "default table")
"""Levels of a look-up, best first: the same operation on the same shapes; the same operation; the
mean over operations of its category (of T5, over calls that also call nothing else); the mean over
all; another table, for a type of overhead that this one lacks."""

FALLBACK_TABLE = "h100-torch-2.11"
"""Name of the table for types of overhead that another table lacks."""

SCALED_HOST = re.compile(r"(.+)@(\d+(?:\.\d+)?)(x|us)")
"""Name of a host table with the host's speed relative to the measured one (``x``), or with the time
of a kernel's launch on another host (``us``)."""

LAUNCH_EXPONENTS = {"T1": 0.47, "T2": 0.77, "T3": 1.44, "T4": 1.0, "T5": 0.75, "whole": 1.34}
"""Powers of the ratio of launch times that scale a table's times, by type of overhead.

Derived from ten machines of 2022 to 2026 by ``costmodels.evaluate.hosts.scaling``."""

LAUNCH_STD = 0.3
"""Relative standard deviation between machines, of host times that are scaled by launch times.

With exponents of the other machines for each of the ten (``irgraph evaluate hosts``)."""

COMPOSITE_LIBRARIES = ("aten", "autograd", "prim", "torch", "c10d", "irgraph")
"""Libraries whose composite ops call other ops; in other libraries a body only states what an op
computes."""

TYPES = {"t2": "T2", "t3": "T3", "t5": "T5", "whole": "times of calls without launches"}
"""Times of operations, and their names in reports."""


RUN_AS = {"aten.lift_fresh_copy": "aten.empty"}
"""The op that the host calls for an op of a captured model: Python fills a literal's memory."""


@dataclass(frozen=True)
class HostTable:
    """A host's overheads, with means by category for operations that it does not list.

    Attributes:
        file: content of the table's file.
        means: means and standard deviations by category of operations and type of overhead.
        speeds: speed of the host relative to the measured one, by type of overhead (T1 to T5,
            and ``whole``); 1 if omitted.
        suffix: speed in the table's name.
        machine_std: relative standard deviation of the times on the step's machine from these
            times; of a table of the machine, by the cost of recording that remains in it.
        is_default: whether the user named no table.
        op_ratio: factor on the times of operations, included in ``speeds``, below 1 in a step that
            records no graph for autograd.
    """

    file: HostFile
    means: Mapping[tuple[str, str], Stat] = field(default_factory=dict)
    speeds: Mapping[str, float] = field(default_factory=dict)
    suffix: str = ""
    machine_std: float = 0.0
    is_default: bool = False
    op_ratio: float = 1.0
    _cache: dict[tuple[str, int, str, bool], Overheads] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def name(self) -> str:
        """Name of the table, with the speed unless it is 1."""
        return self.file.name + self.suffix

    @property
    def lacking(self) -> tuple[str, ...]:
        """Types of overhead that the table lacks, by their names in reports."""
        lacking = [text for kind, text in TYPES.items() if ("", kind) not in self.means]
        return (*lacking, *(["T4"] if self._launches is not self.file.t4 else []))

    @property
    def _launches(self) -> Mapping[str, Stat]:
        """T4 by kind of launch; of the default table if neither T4 nor T2 is known."""
        has_times = self.file.t4 or ("", "t2") in self.means
        return self.file.t4 if has_times else load_host(FALLBACK_TABLE).file.t4

    def overheads(self, op: Op, launches: int) -> Overheads:
        """Return the overheads of a top-level operation with this number of launches.

        Each time is looked up at the levels of ``LEVELS`` in turn; ``level`` of the result is the
        worst level used. T2 and T3 matter only with launches, T5 only with two.
        """
        entry = self._entry(op)
        shapes = shape_key(op) if entry is not None and entry.shapes else ""
        within = launches > 1 and self._within_stat(op) is not None
        key = (plain_name(op.name), min(launches, 2), shapes, within)
        if key not in self._cache:
            self._cache[key] = self._overheads(op, launches)
        return self._cache[key]

    def without_graph(self) -> HostTable:
        """Return the table of a step that records no graph for autograd.

        The time between operations is the program's, which is the same.
        """
        ratio = self.file.no_graph_ratio
        speeds = {kind: self.speeds.get(kind, 1.0) / ratio for kind in ("T2", "T3", "T5", "whole")}
        return replace(self, speeds={**self.speeds, **speeds}, op_ratio=ratio, _cache={})

    def listed_time(self, kind: str, operation: str) -> float | None:
        """Return a mean time in microseconds, ``None`` if the table does not list it.

        Args:
            kind: ``T1``, ``T4`` (of kernels), ``T2``, ``T3``, ``T5`` or ``whole``.
            operation: operation of the last four.
        """
        if kind == "T4":
            stat = self._launches.get("kernel")
            return self._time("T4", stat) if stat is not None else None
        entry = self.file.ops.get(operation, OpEntry())
        stat = self.file.t1 if kind == "T1" else getattr(entry, kind.lower())
        return self._time(kind, stat) if stat is not None else None

    def _time(self, kind: str, stat: Stat) -> float:
        """Return a mean time on the host, in microseconds."""
        return stat.mean / self.speeds.get(kind, 1.0)

    def _overheads(self, op: Op, launches: int) -> Overheads:
        kinds = ("t2", "t3", "t5")[: 3 if launches > 1 else 2] if launches else ("whole",)
        matches = {kind: self._look_up(op, kind) for kind in kinds}
        zero = (Stat(0.0), LEVELS[0])
        gap = matches.get("whole") or matches.get("t5", zero)
        return Overheads(
            t1=self._time("T1", self.file.t1),
            t2=self._time("T2", matches.get("t2", zero)[0]),
            t3=self._time("T3", matches.get("t3", zero)[0]),
            t4={kind: self._time("T4", stat) for kind, stat in self._launches.items()},
            t5=self._time("whole" if "whole" in matches else "T5", gap[0]),
            level=max((level for _, level in matches.values()), key=LEVELS.index),
            listed=self._listed(op),
            std=self._relative_std({kind: stat for kind, (stat, _) in matches.items()}),
        )

    def _relative_std(self, stats_by_kind: Mapping[str, Stat]) -> dict[str, float]:
        """Return standard deviations relative to the mean, by type of overhead."""
        stats = {"t1": self.file.t1, **stats_by_kind}
        stats["t4"] = self._launches.get("kernel", Stat(0.0))
        if "whole" in stats:
            stats["t5"] = stats.pop("whole")
        return {kind.upper(): s.std / s.mean for kind, s in stats.items() if s.mean > 0.0}

    def _entry(self, op: Op) -> OpEntry | None:
        """Return the entry of an operation; tf32 makes no difference on the host."""
        return self.file.ops.get(RUN_AS.get(op.name) or plain_name(op.name))

    def _listed(self, op: Op) -> tuple[str, ...]:
        entry = self._entry(op)
        return entry.launches if entry is not None else ()

    def _look_up(self, op: Op, kind: str) -> tuple[Stat, str]:
        entry = self._entry(op) or OpEntry()
        shape_stat = (
            getattr(entry.shapes.get(shape_key(op), OpEntry()), kind) if entry.shapes else None
        )
        candidates: Iterator[tuple[Stat | None, str]] = zip(
            (
                shape_stat,
                getattr(entry, kind),
                (self._within_stat(op) if kind == "t5" else None)
                or self.means.get((category(op.name), kind)),
                self.means.get(("", kind)),
            ),
            LEVELS[:-1],
            strict=True,
        )
        match = next(((stat, level) for stat, level in candidates if stat), None)
        return match or (load_host(FALLBACK_TABLE)._look_up(op, kind)[0], LEVELS[-1])

    def _within_stat(self, op: Op) -> Stat | None:
        """Return T5 if all launches are of one call, and its library makes them directly."""
        while len(op.body) == 1:
            op = op.body[0]
        library = op.name.partition(".")[0]
        return self.file.within if not op.body or library not in COMPOSITE_LIBRARIES else None


def category(name: str) -> str:
    """Return the category of an operation by its name.

    Categories are ``autograd`` nodes, calls ``in place`` (they allocate nothing), other calls, and
    labels.
    """
    if name.startswith("autograd."):
        return "autograd"
    library, _, base = name.partition(".")
    if "#" in name or not (library.isidentifier() and base):
        return "label"
    return "in place" if base.endswith("_") and not base.endswith("__") else "call"


def shape_key(op: Op) -> str:
    """Return the key of an operation's operand shapes: ``f32[2048,512] f32[512,512]``."""
    return " ".join(f"{t.dtype}[{','.join(str(int(n)) for n in t.shape)}]" for t in op.inputs)


def host_table(file: HostFile) -> HostTable:
    """Return a table ready for look-ups, with its means by category."""
    groups: dict[tuple[str, str], list[Stat]] = {}
    for name, entry in file.ops.items():
        if category(name) == "label":
            continue
        for kind in TYPES:
            stat = getattr(entry, kind)
            if stat is not None:
                # every operation counts once, however many samples it has
                single = Stat(stat.mean)
                groups.setdefault((category(name), kind), []).append(single)
                groups.setdefault(("", kind), []).append(single)
    means = {key: pooled(stats) for key, stats in groups.items()}
    return HostTable(file, means, machine_std=file.recording_std)


def list_hosts() -> tuple[str, ...]:
    """Return the names of the shipped tables."""
    return tuple(sorted(backend().hosts()))


def is_table(name_or_path: str) -> bool:
    """Return whether a name or the first bytes of a file belong to a table."""
    if name_or_path in list_hosts() or name_or_path.startswith("db:"):
        return True
    path = Path(name_or_path)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(MAX_START)
    return all(key in start for key in TABLE_KEYS)


def load_host(name_or_path: str) -> HostTable:
    """Return a shipped table by name, or one from a file; ``NAME@2x`` is a host twice as fast.

    ``NAME@5us`` is a host on which a kernel's launch takes 5 us.
    ``db:NAME`` is a table of the team's database (``irgraph db``).

    Raises ``IrgraphError`` that names the file, and the invalid field if there is one.
    """
    if (scaled := SCALED_HOST.fullmatch(name_or_path)) is not None:
        return _scaled(name_or_path, scaled[1], float(scaled[2]), scaled[3])
    if name_or_path in list_hosts():
        return _load_shipped(name_or_path)
    if name_or_path.startswith("db:"):
        return _load_stored(name_or_path)
    path = Path(name_or_path)
    if path.is_file():
        return host_table(_decode(path.read_bytes(), name_or_path))
    hosts = ", ".join(list_hosts())
    raise fail(
        f"no host table or file {name_or_path!r}{_similar_table(name_or_path)}",
        hint=f"shipped tables: {hosts}; or `default`, which depends on the release of torch",
        exit_code=2,
    )


def _scaled(name: str, base: str, number: float, unit: str) -> HostTable:
    """Return a table of a host with another speed, or with another time of a launch."""
    message = f"a host's speed is one factor between 0.01 and 100: {name!r}"
    if SCALED_HOST.fullmatch(base):
        raise fail(message, exit_code=2)
    table = load_host(base)
    launch = table.listed_time("T4", "")
    if unit == "us" and not launch:
        reason = f"host table {base} has no time of a kernel's launch to compare with"
        raise fail(reason, hint="give its speed, as in NAME@1.5x", exit_code=2)
    speed = number
    if unit == "us":
        speed = launch / number if launch and number else 0.0
    if not 0.01 <= speed <= 100:
        raise fail(message, exit_code=2)
    suffix = f"@{number:g}{unit}"
    if unit == "x":
        speeds = dict.fromkeys(LAUNCH_EXPONENTS, speed)
        return replace(table, speeds=speeds, suffix=suffix, _cache={})
    return replace(
        table,
        speeds={kind: speed**power for kind, power in LAUNCH_EXPONENTS.items()},
        suffix=suffix,
        machine_std=math.hypot(LAUNCH_STD, table.machine_std),
        _cache={},
    )


def _similar_table(name: str) -> str:
    """Return a suggestion for an unknown name, never the table of another card's machine."""
    same_start = [table for table in list_hosts() if table.startswith(f"{name}-")]
    if same_start:
        return f"; did you mean {same_start[0]!r}?"
    return "" if _is_device(name) else suggestion(name, (*list_hosts(), "default"))


def _is_device(name: str) -> bool:
    """Return whether a device has this name."""
    try:
        backend().device(name)
    except IrgraphError:
        return False
    return True


def _load_stored(name: str) -> HostTable:
    """Return a table of the database, with its content's hash in its name."""
    from irgraph.database.references import read_record

    content, _, digits = read_record(name, "hosts")
    labelled = {**content, "name": f"{name} ({digits[:12]})"}
    return host_table(_decode(msgspec.json.encode(labelled), name))


@cache
def _load_shipped(name: str) -> HostTable:
    return host_table(_decode(backend().hosts()[name].read_bytes(), name))


def host_values() -> list[dict[str, object]]:
    """Return every shipped table as plain values."""
    return [msgspec.to_builtins(load_host(name).file) for name in list_hosts()]


def host_rows() -> list[dict[str, str]]:
    """Return a row of text for each shipped table."""
    files = (load_host(name).file for name in list_hosts())
    return [
        {
            "host": file.name,
            "operations": str(len(file.ops)),
            "T1 us": f"{file.t1.mean:.1f}",
            "T4 us": ", ".join(f"{kind} {stat.mean:.1f}" for kind, stat in file.t4.items()),
            "measured": file.description,
            "source": f"{file.source} ({file.licence})",
        }
        for file in files
    ]


def _decode(data: bytes, source: str) -> HostFile:
    span = SourceSpan(source)
    try:
        version = msgspec.json.decode(data, type=_Version).format
        refuse_duplicate_keys(data)
    except (ValueError, RecursionError) as error:
        raise fail(f"not a host table: {error}", span) from error
    if version > FORMAT:
        raise fail(
            f"this host table has format {version}; format {FORMAT} is the newest known", span
        )
    try:
        file = msgspec.json.decode(data, type=HostFile)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise fail(f"wrong field in a host table: {error}", span) from error
    impossible = next(impossible_times(file), "")
    if impossible:
        raise fail(f"a time below 0 or above {MAX_US:g} us in a host table: {impossible}", span)
    reason = next(filter(None, range_errors(file)), "") or next(contradictions(file), "")
    if reason:
        raise fail(f"host table: {reason}", span, hint="all times of host tables are microseconds")
    return file


class _Version(msgspec.Struct):
    format: int
