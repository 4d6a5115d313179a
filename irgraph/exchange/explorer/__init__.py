"""Graphs and overlays for Google's Model Explorer.

The module ``main`` is an adapter extension: ``model-explorer
--extensions=irgraph.exchange.explorer model.ir``.
"""

from irgraph.exchange.explorer.graph import explorer_graph
from irgraph.exchange.explorer.overlays import Overlay, overlays

__all__ = ["Overlay", "explorer_graph", "overlays"]
