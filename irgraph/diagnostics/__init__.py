"""Errors that show their position (file, line, column and a caret) and a remedy."""

from irgraph.diagnostics.arguments import argument_items, check_sizes, describe
from irgraph.diagnostics.errors import (
    Diagnostic,
    IrgraphError,
    SourceSpan,
    fail,
    place_at,
    suggestion,
)
from irgraph.diagnostics.escaping import json_text, visible_text

__all__ = [
    "Diagnostic",
    "IrgraphError",
    "SourceSpan",
    "argument_items",
    "check_sizes",
    "describe",
    "fail",
    "json_text",
    "place_at",
    "suggestion",
    "visible_text",
]
