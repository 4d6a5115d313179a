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
"""Family of calls of models, whose key is the call."""

TIMES = ("op_us", "spread_us", "kernel_us", "kernel_spread_us", "fastest_us", "runs")


def entries(path: str, text_filter: TextFilter, provenance: Provenance) -> list[RecordEntry]:
    """Return a file's head as a record with its measurements as rows.

    Files with equal heads are one record: a continued file adds its new measurements.

    Raises ``IrgraphError`` if the file is not a file of measurements.
    """
    head, rows = backend().measurements(path)
    content = _head(head, text_filter)
    shareable_rows = [
        row for row in (_row(case, text_filter) for case in rows if "error" not in case) if row
    ]
    failed = sum("error" in row for row in rows)
    private = len(rows) - failed - len(shareable_rows)
    omissions = ["1 case that has no time" if failed == 1 else f"{failed} cases that have no time"]
    omissions = omissions if failed else []
    if private:
        cases = "1 case" if private == 1 else f"{private} cases"
        omissions.append(f"{cases} with names that are not torch's or irgraph's")
    if not content["name"]:
        omissions.append("the name of the device")
    full_provenance = replace(
        provenance,
        card=provenance.card or content["name"],
        driver=provenance.driver or content.get("driver", ""),
        software=provenance.software or software(head, text_filter),
    )
    return [RecordEntry("kernels", content, shareable_rows, full_provenance, tuple(omissions))]


def _head(head: Mapping[str, Any], text_filter: TextFilter) -> dict[str, Any]:
    """Return the environment of measurements: numbers, versions, and the card's public name."""
    fields = figures(head)
    fields |= {
        key: text_filter.version(head[key])
        for key in ("torch", "python", "cuda", "driver")
        if key in head
    }
    return {
        **fields,
        "device": text_filter.device(head["device"]),
        "name": text_filter.card(str(head["name"])),
    }


def _row(row: Mapping[str, Any], text_filter: TextFilter) -> dict[str, Any] | None:
    """Return a measured case, ``None`` if it may not be shared."""
    times = {name: row[name] for name in TIMES if row.get(name) is not None}
    kernels = [text_filter.kernel(str(name)) for name in row.get("kernels", ())]
    common = {"family": row["family"], "key": row["key"], **times, "kernels": kernels}
    if row["family"] == CALLS:
        op = str(row["key"]).partition("(")[0]
        return {**common, "op": op} if text_filter.is_public_call(row["key"]) else None
    sizes, indices = row.get("sizes", {}), row.get("indices", "")
    is_known_dtype = text_filter.everything or row.get("dtype") in ITEMSIZE
    is_public = (
        is_known_dtype
        and text_filter.are_shipped(row["family"], row["op"], *sizes)
        and text_filter.is_index_law(indices)
    )
    expected_key = (
        f"{row['op']} {row.get('dtype')} {','.join(f'{k}={v}' for k, v in sizes.items())} {indices}"
    )
    if not is_public or not (text_filter.everything or row["key"] == expected_key.strip()):
        return None
    return {**common, "op": row["op"], "dtype": row["dtype"], "sizes": sizes, "indices": indices}
