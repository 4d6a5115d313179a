"""Measured kernels and calls (``irgraph measure``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from irgraph.backend import backend
from irgraph.database.entry import Provenance, RecordEntry
from irgraph.intake.privacy import TextFilter, figures, software
from irgraph.ir.dtypes import ITEMSIZE

CALLS = "calls"
"""The family of calls of models, whose key is the call."""

TIMES = ("op_us", "spread_us", "kernel_us", "kernel_spread_us", "fastest_us", "runs")


def entries(path: str, kept: TextFilter, provenance: Provenance) -> list[RecordEntry]:
    """Return a file's head as a record with its measurements as rows.

    Files of equal heads are one record: a file that was continued adds what is new in it.

    Raises ``IrgraphError`` where the file is no file of measurements.
    """
    head, rows = backend().measurements(path)
    content = _head(head, kept)
    shared = [row for row in (_row(one, kept) for one in rows if "error" not in one) if row]
    failed = sum("error" in row for row in rows)
    private = len(rows) - failed - len(shared)
    said = ["1 case that has no time" if failed == 1 else f"{failed} cases that have no time"]
    said = said if failed else []
    if private:
        cases = "1 case" if private == 1 else f"{private} cases"
        said.append(f"{cases} with names that are not torch's or irgraph's")
    if not content["name"]:
        said.append("the name of the device")
    known = replace(
        provenance,
        card=provenance.card or content["name"],
        driver=provenance.driver or content.get("driver", ""),
        software=provenance.software or software(head, kept),
    )
    return [RecordEntry("kernels", content, shared, known, tuple(said))]


def _head(head: Mapping[str, Any], kept: TextFilter) -> dict[str, Any]:
    """Return what a file was measured on: numbers, versions, and the card's public name."""
    found = figures(head)
    found |= {
        key: kept.version(head[key]) for key in ("torch", "python", "cuda", "driver") if key in head
    }
    return {**found, "device": kept.device(head["device"]), "name": kept.card(str(head["name"]))}


def _row(row: Mapping[str, Any], kept: TextFilter) -> dict[str, Any] | None:
    """Return a case that may be shared, ``None`` for another."""
    times = {name: row[name] for name in TIMES if row.get(name) is not None}
    kernels = [kept.kernel(str(name)) for name in row.get("kernels", ())]
    common = {"family": row["family"], "key": row["key"], **times, "kernels": kernels}
    if row["family"] == CALLS:
        op = str(row["key"]).partition("(")[0]
        return {**common, "op": op} if kept.call(row["key"]) else None
    sizes, indices = row.get("sizes", {}), row.get("indices", "")
    plain = kept.everything or row.get("dtype") in ITEMSIZE
    public = plain and kept.shipped(row["family"], row["op"], *sizes) and kept.indices(indices)
    built = (
        f"{row['op']} {row.get('dtype')} {','.join(f'{k}={v}' for k, v in sizes.items())} {indices}"
    )
    if not public or not (kept.everything or row["key"] == built.strip()):
        return None
    return {**common, "op": row["op"], "dtype": row["dtype"], "sizes": sizes, "indices": indices}
