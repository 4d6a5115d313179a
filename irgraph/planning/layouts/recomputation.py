"""Recomputation of repeated modules in the backward pass, for layouts that need less memory."""

from __future__ import annotations

from collections.abc import Sequence

from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from irgraph.planning.layouts.layer_pairs import LayerPairs

ANY = "*"
"""Part of a layer's name for the numbers of repeated modules."""


def repeated_modules(pairs: LayerPairs) -> tuple[str, ...]:
    """Return the paths of the repeated modules that contain pairs, as in ``blocks.*``."""
    paths: dict[str, None] = {}
    for pair in pairs.pairs:
        for name in pair.layers:
            parts = name.split(".")
            if ANY in parts:
                paths[".".join(parts[: parts.index(ANY) + 1])] = None
    return tuple(paths)


def statement_of(path: str) -> str:
    """Return the statement that recomputes each module of a path."""
    return f'recompute module "{path}"'


def with_recomputation(graph: Graph, paths: Sequence[str]) -> Graph:
    """Return a step whose backward pass repeats the forward passes of modules.

    Raises ``IrgraphError`` if none can be repeated.
    """
    script = "\n".join(map(statement_of, paths))
    return run(load_script(script), graph).graph
