"""Errors that show their place: file, line, column, a caret, and what to do next."""

from irgraph.diagnostics.arguments import check_sizes, describe, listed
from irgraph.diagnostics.errors import (
    Diagnostic,
    IrgraphError,
    SourceSpan,
    fail,
    place_at,
    suggestion,
)
from irgraph.diagnostics.visible import json_text, visible

__all__ = [
    "Diagnostic",
    "IrgraphError",
    "SourceSpan",
    "check_sizes",
    "describe",
    "fail",
    "json_text",
    "listed",
    "place_at",
    "suggestion",
    "visible",
]
