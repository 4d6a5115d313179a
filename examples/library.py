"""Predicted effect of each pass of the library on the examples.

``python examples/library.py`` prints the table of ``docs/library.md`` on the three DLRM examples,
and ``--models`` that on models of several kinds; ``--device`` selects another device, ``--ranks``
the number of ranks in collectives.
These steps have not been measured before and after: every gain is unvalidated.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

import irgraph

PRESETS = {"DLRM_default": "default", "DLRM_MLPerf": "mlperf", "DLRM_DDP": "ddp"}
"""Presets of ``examples/dlrm.py`` by the paper's names of its models."""

MODELS = {
    "Llama": ("llama.py:train", 4),
    "GPT-2": ("transformer.py:train(layers=12, width=768, heads=12, length=1024, words=50257)", 8),
    "ViT-B/16": ("vit.py:train", 32),
    "ResNet-50": ("resnet50.py:train", 32),
    "DLRM_default": ("dlrm.py:default", 2048),
}
"""Programs of several kinds, and the samples of a step."""

CALLS = {
    "resize-batch": ("resize-batch(to = 4096)",),
    "resize-layer": ("resize-layer(width = 1024)",),
    "cast-gemms": ("cast-gemms(narrow = f16)", "cast-gemms(narrow = tf32)"),
}
"""Parameters of passes that need some, or for which a V100 has no fast units by default."""

MODEL_CALLS: dict[str, tuple[str, ...]] = {
    "resize-batch": (),
    "resize-layer": (),
    "cast-gemms": ("cast-gemms", "cast-gemms(narrow = tf32)"),
}
"""Parameters of passes on models of several kinds, whose sizes differ."""

RANKS = 8
"""Ranks in the collectives that ``overlap-allreduce`` adds: the published measurements of V100."""

ALL = "fuse-embedding, fuse-epilogue, fuse-optimizer, hoist-h2d, clean-copies, remove-dead"


def capture_models() -> list[irgraph.Graph]:
    """Return the steps of models of several kinds, captured as an H100 runs them."""
    folder = Path(__file__).parent
    return [
        irgraph.capture_file(f"{folder / program}", batch=batch, card="h100").graph
        for program, batch in MODELS.values()
    ]


def capture_preset(preset: str, batch: int) -> irgraph.Graph:
    """Return the step of a preset, captured on the meta device for any batch size."""
    source = Path(__file__).with_name("dlrm.py")
    return irgraph.capture_file(f"{source}:{preset}", batch=batch).graph


def step_time(graph: irgraph.Graph, device: str, ranks: int) -> float:
    """Return the predicted step time in milliseconds."""
    return irgraph.predict(graph, device=device, ranks=ranks).step_time / 1e3


def rows(
    graphs: list[irgraph.Graph],
    device: str,
    ranks: int,
    calls_by_pass: Mapping[str, tuple[str, ...]] = CALLS,
) -> Iterator[list[str]]:
    """Yield a row of cells for each pass, after the row of the captured step."""
    before = [step_time(graph, device, ranks) for graph in graphs]
    yield ["as captured", *(f"{time:.2f} ms" for time in before)]
    calls = (
        call
        for library_pass in irgraph.passes()
        for call in calls_by_pass.get(library_pass.name, (library_pass.name,))
    )
    for call in (*calls, ALL):
        after = [irgraph.rewrite(graph, call).graph for graph in graphs]
        cells = [
            "no match" if new == old else f"{step_time(new, device, ranks) - time:+.2f} ms"
            for old, new, time in zip(graphs, after, before, strict=True)
        ]
        yield [call if call == ALL else f"`{call}`", *cells]


def model_rows(device: str, ranks: int) -> Iterator[list[str]]:
    """Yield a row of cells for each pass that changes a model of several kinds."""
    for cells in rows(capture_models(), device, ranks, MODEL_CALLS):
        if any(cell != "no match" for cell in cells[1:]):
            yield cells


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Predicted effect of each pass on DLRM.")
    parser.add_argument("--models", action="store_true", help="models of several kinds")
    parser.add_argument("--device", default="", help="a device sheet (v100; of models: h100)")
    parser.add_argument("--batch", type=int, default=2048, help="samples a step (2048)")
    parser.add_argument("--ranks", type=int, default=RANKS, help=f"in collectives ({RANKS})")
    arguments = parser.parse_args()
    if arguments.models:
        names, table = list(MODELS), model_rows(arguments.device or "h100", arguments.ranks)
    else:
        graphs = [capture_preset(preset, arguments.batch) for preset in PRESETS.values()]
        names, table = list(PRESETS), rows(graphs, arguments.device or "v100", arguments.ranks)
    print("| step time |", " | ".join(names), "|")
    print("|---" * (len(names) + 1) + "|")
    for cells in table:
        print("|", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
