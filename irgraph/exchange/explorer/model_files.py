"""Models with their overlays, as files for Model Explorer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from irgraph.exchange.explorer.graph import explorer_graph
from irgraph.exchange.explorer.overlays import Overlay
from irgraph.files import write_atomic
from irgraph.ir.graph import Graph


class ExplorerModel(Struct, frozen=True):
    """One displayed model.

    Attributes:
        label: its name, unique among models displayed together.
        graph: the model.
        overlays: values that colour its nodes.
    """

    label: str
    graph: Graph
    overlays: Sequence[Overlay] = ()

    def collection(self) -> dict[str, Any]:
        """Return the model as a collection of one graph, whose id is the label."""
        return {"label": self.label, "graphs": [explorer_graph(self.graph, self.label)]}


def write_json(models: Sequence[ExplorerModel], path: str | Path) -> list[Path]:
    """Write graphs and node data as files for Model Explorer; return the files.

    The graphs are written to ``path``, and each overlay to the same folder, such as
    ``STEM.device-time.json``, with the values of all graphs that have it. Raises ``IrgraphError``
    if a file cannot be written.
    """
    graphs = [graph for model in models for graph in model.collection()["graphs"]]
    label = " and ".join(model.label for model in models)
    paths = [Path(path)]
    write_atomic(path, msgspec.json.encode({"label": label, "graphs": graphs}))
    for name, data in node_data(models):
        paths.append(paths[0].with_name(f"{paths[0].stem}.{slug(name)}.json"))
        write_atomic(paths[-1], msgspec.json.encode(data))
    return paths


def node_data(models: Sequence[ExplorerModel]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each overlay's name with its node data, by the label of the model."""
    for name in dict.fromkeys(overlay.name for model in models for overlay in model.overlays):
        yield (
            name,
            {
                model.label: overlay.data()
                for model in models
                for overlay in model.overlays
                if overlay.name == name
            },
        )


def slug(name: str) -> str:
    """Return a name as part of a file name: lower-case words with hyphens, without the unit."""
    return re.sub(r"\W+", "-", name.partition("(")[0].strip().lower(), flags=re.ASCII)
