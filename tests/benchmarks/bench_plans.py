"""The plan that the search finds beside every greedy plan, by the simulated step of all ranks.

``python tests/benchmarks/bench_plans.py --tasks 100 --out plans.jsonl`` draws tasks as NeuroShard's
are drawn (arXiv:2305.01868: 10 to 60 tables of 4 to 128 columns, batches of 65,536; rows and
pooling over decades), each a training step of bags on 4 or 8 A100, plans and simulates them, and
adds a line to the file as soon as a task is done; tasks that are in the file are not run again. At
the end it prints how the plan of the search compares with the best other plan of each task.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import nn

from irgraph.capture.common.result import Capture
from irgraph.capture.common.symbolic import other_sizes, with_symbolic_batch
from irgraph.capture.live import capture
from irgraph.ir.graph import Graph
from irgraph.ir.resize import with_dims
from irgraph.planning.plans import SEARCH_PLAN, plans_of
from irgraph.predict.options import PredictOptions

BATCH = 65536
DIMS = (4, 8, 16, 32, 64, 128)
MEMORY = 80 * 2.0**30
DEVICE = "a100-sxm4-80gb"


class Step:
    """A training step of bags of tables, and of a layer that makes a number of each sample."""

    def __init__(self, tables: list[tuple[int, int, int]], batch: int, device: str) -> None:
        self.device = device
        with torch.device(device):
            bags = [nn.EmbeddingBag(rows, columns, mode="sum") for rows, columns, _ in tables]
            self.model = nn.ModuleList(
                [*bags, nn.Linear(sum(columns for _, columns, _ in tables), 1)]
            )
        self.ids = [torch.zeros(batch * pooling, dtype=torch.int64) for *_, pooling in tables]
        self.offsets = [torch.arange(batch) * pooling for *_, pooling in tables]
        self.target = torch.zeros(batch, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, foreach=False)

    def __call__(self) -> None:
        """Train once."""
        *bags, top = self.model
        triples = zip(bags, self.ids, self.offsets, strict=True)
        made = [bag(i.to(self.device), o.to(self.device)) for bag, i, o in triples]
        self.optimizer.zero_grad()
        nn.functional.mse_loss(top(torch.cat(made, 1)), self.target.to(self.device)).backward()
        self.optimizer.step()


def drawn(seed: int) -> tuple[int, list[tuple[int, int, int]]]:
    """Return the number of ranks, and rows, columns and pooling of each table."""
    source = random.Random(seed)
    ranks = source.choice((4, 8))
    tables = []
    for _ in range(source.randint(10, 60)):
        rows, columns = int(10 ** source.uniform(2, 7)), source.choice(DIMS)
        tables.append((rows, columns, round(min(10 ** source.uniform(0, 2), 200))))
    return ranks, tables


def step_of(tables: list[tuple[int, int, int]]) -> Graph:
    """Return the model of a training step with a batch of ``BATCH``."""

    def at(batch: int) -> Capture:
        return capture(Step(tables, batch, "meta"), device="meta", dims={"B": batch})

    small = with_symbolic_batch(at(64), 64, at, other_sizes(64)).graph
    return with_dims(small, {"B": BATCH})


def compared(seed: int, seconds: float) -> dict[str, Any]:
    """Return the simulated steps of all plans of a task, microseconds."""
    begun = process_time()
    ranks, tables = drawn(seed)
    options = PredictOptions(device=DEVICE)
    tried = plans_of(step_of(tables), ranks, MEMORY, options, seconds=seconds, seed=seed)
    steps = {name: one.step_time for one in tried for name in one.name.split(", ")}
    others = [time for name, time in steps.items() if name != SEARCH_PLAN]
    return {
        "seed": seed,
        "ranks": ranks,
        "tables": len(tables),
        "steps_us": steps,
        "over_best": steps[SEARCH_PLAN] / min(others),
        "processor_s": process_time() - begun,
    }


def main() -> None:
    """Run the tasks that are not in the file, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=3.0, help="of search for each task")
    parser.add_argument("--out", type=Path, default=Path("plans.jsonl"))
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    known = {found["seed"]: found for found in map(json.loads, lines)}
    for seed in range(options.tasks):
        if seed not in known:
            known[seed] = compared(seed, options.seconds)
            with options.out.open("a") as file:
                file.write(json.dumps(known[seed]) + "\n")
    ratios = [found["over_best"] for found in known.values()]
    worse = sum(ratio > 1.0 for ratio in ratios)
    line = f"{len(ratios)} tasks, the search's plan over the best other: mean"
    sys.stdout.write(f"{line} {statistics.fmean(ratios):.3f}, worst {max(ratios):.3f}, ")
    sys.stdout.write(f"worse on {worse}\n")


if __name__ == "__main__":
    main()
