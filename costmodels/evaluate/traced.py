"""Kernels of four traced V100 steps of DLRM by family, compared with the paper's heuristics.

Traced kernel times and predictions exclude launches: the host's time for a launch is part of the
schedule. Sizes follow from the models; none is read from the traces.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict
from rich.console import RenderableType
from rich.table import Table

from costmodels.devices.library import PAPER, load_device
from costmodels.evaluate.errors import error
from costmodels.evaluate.measurements import measurements
from costmodels.evaluate.recorded import recorded_residuals
from costmodels.evaluate.traced_residuals import Residual, residuals
from costmodels.formulas.lookup import LookupTable as Lookup
from costmodels.formulas.lookup import (
    forward_time,
    misses,
    paper_hit_rate_time,
    paper_time,
    update_traffic_time,
)
from costmodels.formulas.machine import Machine
from costmodels.formulas.software import software_profile
from costmodels.learned.predictors import SOFTWARE, predictors

DEVICE, BUILD = PAPER, "torch-1.10-cuda-11.3"
SAMPLES = "paper/kernel_microbench_samples_v100_legacy.csv"
NOTE = (
    "Some constants of the formulas come from these traces (launch floor, random updates, starts "
    "of reductions, splits of products): a check of fit. The learned models saw none of them; they "
    "were trained on a newer cuBLAS."
)


class Sample(Struct, frozen=True):
    """One embedding kernel measured in isolation: microseconds, and bytes from DRAM."""

    kernel: str
    sizes: str
    measured: float
    formula: float
    paper: float
    paper_hit_rate: float
    dram: float
    dram_predicted: float


class TracedEvaluation(Struct, frozen=True):
    """Result of ``irgraph evaluate traced``: residuals by model, samples, other steps."""

    rows: Mapping[str, Sequence[Residual]]
    samples: Sequence[Sample]
    recorded: Sequence[Residual]

    def render(self) -> list[RenderableType]:
        """Return the tables to print."""
        return [_families(self.rows), NOTE, _samples(self.samples), _recorded(self.recorded)]

    def as_json(self) -> dict[str, Any]:
        """Return all figures as plain values: microseconds, bytes, errors as shares."""
        rows = {
            name: [{**asdict(row), "error": row.error} for row in mode_rows]
            for name, mode_rows in self.rows.items()
        }
        return {
            "evaluation": "traced",
            "families": rows,
            "embedding_samples": [asdict(sample) for sample in self.samples],
            "recorded": [{**asdict(row), "error": row.error} for row in self.recorded],
        }


def evaluate_traced() -> TracedEvaluation:
    """Compare the traced steps with formulas, learned models and the paper's heuristics."""
    folder = measurements()
    learned = predictors(load_device(DEVICE), SOFTWARE)
    rows = {
        "formulas": sum_over_traces(residuals(folder)),
        "learned": sum_over_traces(residuals(folder, learned=learned)),
        "paper": sum_over_traces(residuals(folder, mode="paper")),
    }
    samples = embedding_samples(folder / SAMPLES)
    return TracedEvaluation(rows, samples, recorded_residuals(folder))


def sum_over_traces(rows: Sequence[Residual]) -> list[Residual]:
    """Return residuals by group summed over the traces, longest group first, the total last."""
    residuals_by_group: dict[str, list[Residual]] = {}
    for row in rows:
        residuals_by_group.setdefault(row.group, []).append(row)
    sums = [_sum_residuals(group, parts) for group, parts in residuals_by_group.items()]
    return sorted(sums, key=lambda row: (row.group == "total", -row.measured))


def _sum_residuals(group: str, parts: Sequence[Residual]) -> Residual:
    names = ("ops", "measured", "predicted", "absolute", "inside")
    return Residual("all", group, **{n: sum(getattr(p, n) for p in parts) for n in names})


def embedding_samples(path: Path) -> list[Sample]:
    """Return the measured batched lookups and updates of a file of single kernels."""
    machine = Machine(load_device(DEVICE), software_profile(BUILD))
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [row for row in csv.DictReader(lines) if "embedding" in row["kernel_name"]]
    return [_sample(row, machine) for row in rows]


def _sample(row: Mapping[str, str], machine: Machine) -> Sample:
    names = ("batch_size", "num_embeddings", "num_tables", "bag_size", "embedding_dim")
    bags, entries, count, lookups_per_bag, width = (int(row[name]) for name in names)
    tables = [Lookup(entries, width, bags, bags * lookups_per_bag, index_size=4)] * count
    backward = "backward" in row["kernel_name"]
    formula = update_traffic_time if backward else forward_time
    read = (1 + backward) * sum(misses(tables, machine)) * tables[0].row_bytes
    predicted_bytes = read + count * bags * (tables[0].row_bytes + 4.0 * lookups_per_bag)
    return Sample(
        "update" if backward else "lookup",
        f"B{bags} E{entries} T{count} L{lookups_per_bag} D{width}",
        float(row["kernel_runtime_us"]),
        formula(tables, machine),
        paper_time(tables, machine, backward),
        paper_hit_rate_time(tables, machine, backward),
        float(row["dram_bytes"]),
        predicted_bytes,
    )


def _families(rows: Mapping[str, Sequence[Residual]]) -> Table:
    title = "traced kernels of DLRM_default and DLRM_MLPerf at batch 2048, V100-SXM2-16GB"
    heads = [h for name in rows for h in (name, "abs")]
    table = Table(
        "ops", "count", "measured", *heads, "in interval", title=title, title_justify="left"
    )
    for row in rows["formulas"]:
        same_group = [
            next(r for r in mode_rows if r.group == row.group) for mode_rows in rows.values()
        ]
        figures = [
            f for o in same_group for f in (f"{o.error:+.1%}", f"{o.absolute / o.measured:.1%}")
        ]
        if row.group == "total":
            table.add_section()
        inside = f"{row.inside} of {row.ops}"
        table.add_row(row.group, f"{row.ops}", f"{row.measured:.0f} us", *figures, inside)
    return table


def _samples(samples: Sequence[Sample]) -> Table:
    heads = ("measured", "formula", "paper", "paper, hit rate", "DRAM", "predicted")
    title = "embedding kernels measured alone on V100 (older, slower builds of the update)"
    table = Table("kernel", "sizes", *heads, title=title, title_justify="left")
    for s in samples:
        times = (s.formula, s.paper, s.paper_hit_rate)
        table.add_row(
            s.kernel,
            s.sizes,
            f"{s.measured:.1f} us",
            *(f"{error(time, s.measured):+.1%}" for time in times),
            f"{s.dram / 1e6:.1f} MB",
            f"{error(s.dram_predicted, s.dram):+.1%}",
        )
    return table


def _recorded(rows: Sequence[Residual]) -> Table:
    title = (
        "other recorded training steps, by family (pools, NLL and short means took constants here)"
    )
    table = Table(
        "step",
        "family",
        "ops",
        "measured",
        "formulas",
        "abs",
        "in interval",
        title=title,
        title_justify="left",
    )
    for row in rows:
        figures = (
            f"{row.measured:.0f} us",
            f"{row.error:+.1%}",
            f"{row.absolute / row.measured:.1%}",
        )
        inside = f"{row.inside} of {row.ops}"
        table.add_row(row.trace, row.group, f"{row.ops}", *figures, inside)
        if row.group == "total":
            table.add_section()
    return table
