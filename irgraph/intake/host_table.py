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
"""Kinds of launches in host tables."""


def entries(path: str, text_filter: TextFilter, provenance: Provenance) -> list[RecordEntry]:
    """Return a table as a record without its name, its figures as rows.

    Raises ``IrgraphError`` if the file is not a host table.
    """
    file = load_host(path).file
    table = _shareable_table(file, text_filter)
    content: dict[str, Any] = msgspec.to_builtins(table)
    del content["name"]
    rows = [{"type": row.pop("kind"), **row} for row in table.records()]
    source = provenance.source or text_filter.free_text(file.source)
    omissions = ["its name, description and source"] if not text_filter.everything else []
    renamed_count = sum(name not in table.ops for name in file.ops)
    omissions += (
        [f"the names of {renamed_count} operations that are not torch's"] if renamed_count else []
    )
    return [
        RecordEntry("hosts", content, rows, replace(provenance, source=source), tuple(omissions))
    ]


def _shareable_table(file: HostFile, text_filter: TextFilter) -> HostFile:
    """Return the shareable content of a table."""
    if text_filter.everything:
        return file
    architectures = {device.architecture for device in backend().devices()} | {"cpu"}
    return replace(
        file,
        name="",
        t1=_strip_source(file.t1),
        t4={kind: _strip_source(stat) for kind, stat in file.t4.items() if kind in LAUNCH_KINDS},
        ops={
            text_filter.name(name): _shareable_entry(entry, text_filter)
            for name, entry in file.ops.items()
        },
        within=_stat(file.within),
        description="",
        source="",
        licence="",
        made_by="",
        architecture=file.architecture if file.architecture in architectures else "",
    )


def _shareable_entry(entry: OpEntry, text_filter: TextFilter) -> OpEntry:
    shapes = {
        key: shape_entry
        for key, shape_entry in entry.shapes.items()
        if text_filter.is_public_shape(key)
    }
    return OpEntry(
        _stat(entry.t2),
        _stat(entry.t3),
        _stat(entry.t5),
        _stat(entry.whole),
        launches=tuple(kind for kind in entry.launches if kind in LAUNCH_KINDS),
        shapes={
            key: _shareable_entry(shape_entry, text_filter) for key, shape_entry in shapes.items()
        },
    )


def _stat(stat: Stat | None) -> Stat | None:
    return None if stat is None else _strip_source(stat)


def _strip_source(stat: Stat) -> Stat:
    """Return a figure without the text of its source."""
    quantiles = {name: value for name, value in stat.quantiles.items() if name[1:].isdecimal()}
    return Stat(stat.mean, stat.std, stat.count, quantiles=quantiles)
