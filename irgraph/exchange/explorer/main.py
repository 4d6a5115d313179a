"""The adapter extension of Model Explorer: it opens ``.ir`` files.

``model-explorer --extensions=irgraph.exchange.explorer model.ir`` loads this module.
"""

from __future__ import annotations

from typing import Any

from model_explorer import Adapter, AdapterMetadata, graph_builder

from irgraph.diagnostics import fail
from irgraph.exchange.explorer.graph import explorer_graph
from irgraph.files import read_text
from irgraph.ops.verify import verify
from irgraph.text import parse


class IrgraphAdapter(Adapter):  # type: ignore[misc]  # a class of a package without types
    """Shows a ``model.ir`` by phase, module and call."""

    metadata = AdapterMetadata(
        id="irgraph",
        name="irgraph model",
        description="A captured or transformed training step (model.ir).",
        source_repo="",
        fileExts=["ir"],
    )

    def convert(self, model_path: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the graph of a model's file; raise an error if the model is invalid."""
        graph = parse(read_text(model_path), model_path)
        findings = verify(graph)
        if findings:
            raise fail(f"{model_path} is not a valid model: {findings[0].message}")
        fields = explorer_graph(graph)
        return {"graphs": [graph_builder.Graph(**fields)]}
