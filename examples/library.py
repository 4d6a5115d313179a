"""Predicted effect of each pass of the library on the three DLRM examples.

``python examples/library.py`` prints the table of ``docs/library.md``; ``--device`` selects another
device, ``--ranks`` the number of ranks in collectives.
These steps have not been measured before and after: every gain is unvalidated.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import irgraph

PRESETS = {"DLRM_default": "default", "DLRM_MLPerf": "mlperf", "DLRM_DDP": "ddp"}
"""Presets of ``examples/dlrm.py`` by the paper's names of its models."""

CALLS = {
    "resize-batch": ("resize-batch(to = 4096)",),
    "resize-layer": ("resize-layer(width = 1024)",),
    "cast-gemms": ("cast-gemms(narrow = f16)", "cast-gemms(narrow = tf32)"),
}
"""Parameters of passes that need some, or for which a V100 has no fast units by default."""

RANKS = 8
"""Ranks in the collectives that ``overlap-allreduce`` adds: the published measurements of V100."""

ALL = "fuse-embedding, fuse-epilogue, fuse-optimizer, hoist-h2d, clean-copies, remove-dead"


def capture_preset(preset: str, batch: int) -> irgraph.Graph:
    """Return the step of a preset, captured on the meta device for any batch size."""
    source = Path(__file__).with_name("dlrm.py")
    return irgraph.capture_file(f"{source}:{preset}", batch=batch).graph


def step_time(graph: irgraph.Graph, device: str, ranks: int) -> float:
    """Return the predicted step time in milliseconds."""
    return irgraph.predict(graph, device=device, ranks=ranks).step_time / 1e3


def rows(graphs: list[irgraph.Graph], device: str, ranks: int) -> Iterator[list[str]]:
    """Yield a row of cells for each pass, after the row of the captured step."""
    before = [step_time(graph, device, ranks) for graph in graphs]
    yield ["as captured", *(f"{time:.2f} ms" for time in before)]
    calls = (
        call
        for library_pass in irgraph.passes()
        for call in CALLS.get(library_pass.name, (library_pass.name,))
    )
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
    arguments = parser.parse_args()
    graphs = [capture_preset(preset, arguments.batch) for preset in PRESETS.values()]
    print("| step time |", " | ".join(PRESETS), "|")
    print("|---" * (len(PRESETS) + 1) + "|")
    for cells in rows(graphs, arguments.device, arguments.ranks):
        print("|", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
