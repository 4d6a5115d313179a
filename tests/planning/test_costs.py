"""Costs of tables in a captured step."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.capture.live import capture_file
from irgraph.planning.costs import problem_of
from irgraph.predict.options import PredictOptions

PROGRAM = """
import torch
from torch import nn

ROWS = (2_000_000, 1_000, 1_000)

def program(batch=1024, device="cuda"):
    with torch.device(device):
        tables = nn.ModuleList(nn.EmbeddingBag(rows, 64, mode="sum") for rows in ROWS)
        top = nn.Linear(64 * len(ROWS), 1)
    parameters = [*tables.parameters(), *top.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, foreach={foreach})
    ids = [torch.zeros(4 * batch, dtype=torch.int64) for _ in ROWS]
    offsets = [torch.arange(batch) * 4 for _ in ROWS]

    def step():
        bags = [t(i.to(device), o.to(device)) for t, i, o in zip(tables, ids, offsets)]
        optimizer.zero_grad()
        top(torch.cat(bags, 1)).mean().backward()
        optimizer.step()

    step.model = nn.ModuleList([tables, top])
    return step
"""
GIB = 2.0**30


def table_times(folder: Path, foreach: bool) -> list[float]:
    source = folder / f"foreach_{foreach}.py"
    source.write_text(PROGRAM.format(foreach=foreach))
    graph = capture_file(f"{source}:program", batch=1024, device="meta").graph
    problem = problem_of(graph, 2, 40 * GIB, PredictOptions(device="a100-sxm4-80gb"))
    return [table.choices[0].time for table in problem.tables]


def test_a_foreach_update_costs_each_table_its_share(tmp_path: Path) -> None:
    shares = table_times(tmp_path, foreach=True)
    assert shares == pytest.approx(table_times(tmp_path, foreach=False), rel=0.1)
