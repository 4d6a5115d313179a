"""Errors that show their place: file, line, column, a caret, and what to do next."""

from irgraph.diagnostics.arguments import check_sizes, listed, shown
from irgraph.diagnostics.errors import Diagnostic, IrgraphError, Place, fail, near, place_at
from irgraph.diagnostics.visible import json_text, visible

__all__ = [
    "Diagnostic", "IrgraphError", "Place", "check_sizes", "fail", "json_text", "listed", "near",
    "place_at", "shown", "visible",
]  # fmt: skip
