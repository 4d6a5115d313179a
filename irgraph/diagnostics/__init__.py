"""Errors that show their place: file, line, column, a caret, and what to do next."""

from irgraph.diagnostics.errors import Diagnostic, IrgraphError, Place, fail, near, place_at
from irgraph.diagnostics.visible import json_text, visible

__all__ = [
    "Diagnostic", "IrgraphError", "Place", "fail", "json_text", "near", "place_at", "visible",
]  # fmt: skip
