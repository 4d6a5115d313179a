"""Search the batch size, the fusion of lookups and the precision of products for throughput.

``python examples/autotune.py model.ir`` finds what processes the most samples a second within the
memory of a device. The model is read once; passes and scripts are objects, sizes are columns.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from itertools import product

import irgraph
from costmodels.sheet import load_device
from irgraph.ir.graph import Graph
from irgraph.ir.resize import with_dims
from irgraph.language import Script, load_pass, run
from irgraph.language.tree import Apply
from irgraph.schedule.memory import peak_memory
from irgraph.variants import predict_variants

DLRM = resources.files("irgraph.evaluate") / "data" / "dlrm_default.ir"
PASSES = ("fuse-embedding", "cast-gemms")
BATCHES = tuple(range(128, 16_385, 128))
GIB = 2**30


@dataclass(frozen=True)
class Tuned:
    """One variant: the script that makes it, its batch size, and samples a second."""

    script: Script
    batch: int
    throughput: float


def scripts(graph: Graph) -> Iterator[Script]:
    """Yield the script of every combination of passes: left out, or with legal arguments."""
    choices = [[None, *(i.call for i in load_pass(name).space(graph).instances)] for name in PASSES]
    for calls in product(*choices):
        yield Script((), tuple(Apply(call) for call in calls if call is not None))


def fitting(graph: Graph, limit: float, architecture: str) -> list[dict[str, int]]:
    """Return the batch sizes that need no more bytes than a limit: memory grows with the batch.

    What ``irgraph predict --limit memory.peak`` counts: tensors, workspace and context.
    """
    first, last = 0, len(BATCHES)
    while first < last:
        middle = (first + last) // 2
        peak = peak_memory(with_dims(graph, {"B": BATCHES[middle]}))
        fits = peak.needs(architecture) <= limit
        first, last = (middle + 1, last) if fits else (first, middle)
    return [{"B": batch} for batch in BATCHES[:first]]


def tuned(graph: Graph, device: str, limit: float) -> Iterator[Tuned]:
    """Yield every variant that fits, with its predicted throughput."""
    architecture = load_device(device).architecture
    for script in scripts(graph):
        made = run(script, graph).graph
        sizes = fitting(made, limit, architecture)
        times = predict_variants(made, [device], sizes).step_time[0] if sizes else ()
        for size, time in zip(sizes, times, strict=True):
            yield Tuned(script, size["B"], size["B"] / time * 1e6)


def main() -> None:
    """Print the best variant of each script, and the script that makes the best of all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default=str(DLRM))
    parser.add_argument("--device", default="v100")
    parser.add_argument("--memory", type=float, default=16.0, help="limit, in GiB")
    given = parser.parse_args()
    found = list(tuned(irgraph.load(given.model), given.device, given.memory * GIB))
    if not found:
        raise SystemExit(f"nothing fits into {given.memory:g} GiB")
    best: dict[str, Tuned] = {}
    for one in sorted(found, key=lambda one: one.throughput):
        best[str(one.script)] = one
    for one in best.values():
        calls = ", ".join(str(statement).removeprefix("apply ") for statement in one.script.body)
        print(f"{one.throughput:>9.0f} samples/s  B = {one.batch:<6} {calls or 'as it is'}")
    winner = max(found, key=lambda one: one.throughput)
    print(f"\nbest of {len(found)} variants (predicted, unvalidated):\n")
    print(f"{winner.script}resize B = {winner.batch}")


if __name__ == "__main__":
    main()
