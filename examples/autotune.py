"""Search the batch size, the fusion of lookups and the precision of products for throughput.

``python examples/autotune.py model.ir`` finds the variant with the most samples per second within
the memory of a device; without a model it searches DLRM_default. The model is read once, and all
batch sizes of a variant are priced together.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import irgraph

PASSES = ("fuse-embedding", "cast-gemms")
BATCHES = tuple(range(128, 16_385, 128))
GIB = 2**30


@dataclass(frozen=True)
class Variant:
    """One variant: its pipeline, its batch size, and samples per second."""

    pipeline: tuple[irgraph.Instance, ...]
    batch: int
    throughput: float

    def __str__(self) -> str:
        """Return the variant's script."""
        return "".join(f"apply {call}\n" for call in self.pipeline) + f"resize B = {self.batch}"


def pipelines(graph: irgraph.Graph) -> Iterator[tuple[irgraph.Instance, ...]]:
    """Yield every combination of passes: omitted, or with legal arguments."""
    choices = [[None, *irgraph.space(name, graph).instances] for name in PASSES]
    for calls in product(*choices):
        yield tuple(call for call in calls if call is not None)


def batches_within(graph: irgraph.Graph, limit: float, architecture: str) -> list[dict[str, int]]:
    """Return the batch sizes that need no more bytes than a limit: memory grows with the batch.

    Counted as by ``irgraph predict --limit memory.peak``: tensors, workspace and context.
    """
    first, last = 0, len(BATCHES)
    while first < last:
        middle = (first + last) // 2
        peak = irgraph.peak_memory(irgraph.with_dims(graph, {"B": BATCHES[middle]}))
        fits = peak.needs(architecture) <= limit
        first, last = (middle + 1, last) if fits else (first, middle)
    return [{"B": batch} for batch in BATCHES[:first]]


def price_variants(graph: irgraph.Graph, device: str, limit: float) -> Iterator[Variant]:
    """Yield every variant that fits, with its predicted throughput."""
    architecture = irgraph.device(device).architecture
    for pipeline in pipelines(graph):
        rewritten = irgraph.rewrite(graph, pipeline).graph if pipeline else graph
        sizes = batches_within(rewritten, limit, architecture)
        times = irgraph.predict_variants(rewritten, [device], sizes).step_time[0] if sizes else ()
        for size, time in zip(sizes, times, strict=True):
            yield Variant(pipeline, size["B"], size["B"] / time * 1e6)


def model(path: str | None) -> irgraph.Graph:
    """Return the model of a file, or else the step of DLRM_default, captured."""
    if path is not None:
        return irgraph.load(path)
    source = Path(__file__).with_name("dlrm.py")
    return irgraph.capture_file(f"{source}:default", batch=2048).graph


def main() -> None:
    """Print the best variant of each pipeline, and the script of the best of all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", help="a model.ir file (DLRM_default)")
    parser.add_argument("--device", default="v100")
    parser.add_argument("--memory", type=float, default=16.0, help="limit, in GiB")
    arguments = parser.parse_args()
    variants = list(
        price_variants(model(arguments.model), arguments.device, arguments.memory * GIB)
    )
    if not variants:
        raise SystemExit(f"nothing fits into {arguments.memory:g} GiB")
    best: dict[tuple[str, ...], Variant] = {}
    for variant in sorted(variants, key=lambda variant: variant.throughput):
        best[tuple(map(str, variant.pipeline))] = variant
    for calls, variant in best.items():
        text = ", ".join(calls) or "as it is"
        print(f"{variant.throughput:>9.0f} samples/s  B = {variant.batch:<6} {text}")
    winner = max(variants, key=lambda variant: variant.throughput)
    print(f"\nbest of {len(variants)} variants (predicted, unvalidated):\n\n{winner}")


if __name__ == "__main__":
    main()
