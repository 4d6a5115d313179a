"""Tables of host overheads (``irgraph overheads -o``)."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from irgraph.backend import backend
from irgraph.database.entry import Provenance, RecordEntry
from irgraph.intake.privacy import TextFilter
from irgraph.overheads import load_host
from irgraph.overheads.format import HostFile, OpEntry, Stat
from irgraph.overheads.names import LAUNCHES

LAUNCH_KINDS = frozenset((*LAUNCHES.values(), "call"))
"""Kinds of launch that tables name."""


def entries(path: str, kept: TextFilter, provenance: Provenance) -> list[RecordEntry]:
    """Return a table as a record without its name, its figures as rows.

    Raises ``IrgraphError`` where the file is no host table.
    """
    file = load_host(path).file
    shared = _shared(file, kept)
    content: dict[str, Any] = msgspec.to_builtins(shared)
    del content["name"]
    rows = [{"type": row.pop("kind"), **row} for row in shared.records()]
    source = provenance.source or kept.free(file.source)
    said = ["its name, description and source"] if not kept.everything else []
    changed = sum(name not in shared.ops for name in file.ops)
    said += [f"the names of {changed} operations that are not torch's"] if changed else []
    return [RecordEntry("hosts", content, rows, replace(provenance, source=source), tuple(said))]


def _shared(file: HostFile, kept: TextFilter) -> HostFile:
    """Return what of a table may be shared."""
    if kept.everything:
        return file
    known = {device.architecture for device in backend().devices()} | {"cpu"}
    within = _stat(file.within)
    return HostFile(
        file.format,
        "",
        _bare(file.t1),
        {kind: _bare(stat) for kind, stat in file.t4.items() if kind in LAUNCH_KINDS},
        {kept.name(name): _entry(entry, kept) for name, entry in file.ops.items()},
        within,
        architecture=file.architecture if file.architecture in known else "",
    )


def _entry(entry: OpEntry, kept: TextFilter) -> OpEntry:
    shapes = {key: one for key, one in entry.shapes.items() if kept.shapes(key)}
    return OpEntry(
        _stat(entry.t2),
        _stat(entry.t3),
        _stat(entry.t5),
        _stat(entry.whole),
        launches=tuple(kind for kind in entry.launches if kind in LAUNCH_KINDS),
        shapes={key: _entry(one, kept) for key, one in shapes.items()},
    )


def _stat(stat: Stat | None) -> Stat | None:
    return None if stat is None else _bare(stat)


def _bare(stat: Stat) -> Stat:
    """Return a figure without the text of where it comes from."""
    known = {name: value for name, value in stat.quantiles.items() if name[1:].isdecimal()}
    return Stat(stat.mean, stat.std, stat.count, quantiles=known)
