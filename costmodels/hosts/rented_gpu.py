"""Builds the host table of a GPU rented for minutes: ``python -m costmodels.hosts.rented_gpu``.

The tables of its traces are in ``costmodels/measurements/NAME/hosts``, one for each traced step,
named MODEL@VARIANT. ``irgraph overheads`` extracted them, less the profiler's cost that ``irgraph
calibrate-profiler`` measured there (2.92 us per host event).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from costmodels.hosts.no_graph import no_graph_ratio
from costmodels.hosts.writing import write
from irgraph.overheads.extract import merge
from irgraph.overheads.format import HostFile

MEASURED = Path(__file__).parents[1] / "measurements"

TABLES = {"h100-torch-2.11": "h100-80gb-hbm3"}
"""Folder of the measurements that each table is built from, by name of the table."""

DESCRIPTION = (
    "Host of an H100 SXM: a virtual machine of 16 cores; 20 traced steps of nine models "
    "(torchvision, GPT-2, DLRM), torch 2.11, CUDA 13.0"
)
SOURCE = "irgraph's own traces, costmodels/measurements"


def step_tables(device: str, without: str = "") -> Iterator[HostFile]:
    """Yield the tables of a device's traced steps, except for the model ``without``."""
    for path in sorted((MEASURED / device / "hosts").glob("*.json")):
        if path.stem.partition("@")[0] != without:
            yield msgspec.json.decode(path.read_bytes(), type=HostFile)


def merged_table(name: str, device: str, without: str = "") -> HostFile:
    """Return one table merged from a device's traced steps, except for the model ``without``."""
    tables = list(step_tables(device, without))
    table = merge(tables, name)
    return msgspec.structs.replace(
        table,
        description=DESCRIPTION,
        source=SOURCE,
        licence="MIT",
        made_by="python -m costmodels.hosts.rented_gpu",
        architecture="hopper",
        no_graph_ratio=no_graph_ratio(tables),
    )


if __name__ == "__main__":
    write(merged_table(*pair) for pair in TABLES.items())
