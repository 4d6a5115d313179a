"""What each pass of the library is predicted to change in the three DLRM examples.

``python examples/library.py`` prints the table of ``docs/library.md``; ``--device`` takes another,
``--ranks`` says how many take part in collectives.
Nobody has measured these steps before and after: every gain is unvalidated.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import irgraph

PRESETS = {"DLRM_default": "default", "DLRM_MLPerf": "mlperf", "DLRM_DDP": "ddp"}
"""Presets of ``examples/dlrm.py`` by the paper's names of its models."""

GIVEN = {
    "resize-batch": ("resize-batch(to = 4096)",),
    "resize-layer": ("resize-layer(width = 1024)",),
    "cast-gemms": ("cast-gemms(narrow = f16)", "cast-gemms(narrow = tf32)"),
}
"""Parameters of passes that need some, or for which a V100 has no fast units by default."""

RANKS = 8
"""Ranks that take part in what ``overlap-allreduce`` adds: what was published of V100."""

ALL = "fuse-embedding, fuse-epilogue, fuse-optimizer, hoist-h2d, clean-copies, remove-dead"


def captured(preset: str, batch: int) -> irgraph.Graph:
    """Return the step of a preset, captured on the meta device for any batch size."""
    source = Path(__file__).with_name("dlrm.py")
    return irgraph.capture_file(f"{source}:{preset}", batch=batch).graph


def step_time(graph: irgraph.Graph, device: str, ranks: int) -> float:
    """Return the predicted step time in milliseconds."""
    return irgraph.predict(graph, device=device, ranks=ranks).step_time / 1e3


def rows(graphs: list[irgraph.Graph], device: str, ranks: int) -> Iterator[list[str]]:
    """Yield a line of cells for each pass, the step as it was captured first."""
    before = [step_time(graph, device, ranks) for graph in graphs]
    yield ["as captured", *(f"{time:.2f} ms" for time in before)]
    calls = (call for known in irgraph.passes() for call in GIVEN.get(known.name, (known.name,)))
    for call in (*calls, ALL):
        after = [irgraph.rewrite(graph, call).graph for graph in graphs]
        cells = [
            "no match" if new == old else f"{step_time(new, device, ranks) - time:+.2f} ms"
            for old, new, time in zip(graphs, after, before, strict=True)
        ]
        yield [call if call == ALL else f"`{call}`", *cells]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Predicted effect of each pass on DLRM.")
    parser.add_argument("--device", default="v100", help="a device sheet (v100)")
    parser.add_argument("--batch", type=int, default=2048, help="samples a step (2048)")
    parser.add_argument("--ranks", type=int, default=RANKS, help=f"in collectives ({RANKS})")
    given = parser.parse_args()
    graphs = [captured(preset, given.batch) for preset in PRESETS.values()]
    print("| step time |", " | ".join(PRESETS), "|")
    print("|---" * (len(PRESETS) + 1) + "|")
    for cells in rows(graphs, given.device, given.ranks):
        print("|", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
