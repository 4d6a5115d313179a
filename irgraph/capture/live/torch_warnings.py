"""Converts warnings that torch raises during a capture to notes."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator

QUIET = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)
"""Warnings for authors of the program, not for readers of its capture."""

MAX_MESSAGE_LENGTH = 300

AUTOCAST = "Disabling autocast"
NO_AUTOCAST = (
    "autocast was not in effect: torch disables it for CUDA where there is none, and the model "
    "ran in its own types; capture with device meta, where it works"
)


@contextlib.contextmanager
def warnings_as_notes(notes: dict[str, None]) -> Iterator[None]:
    """Add a sentence to ``notes`` for each different warning raised within the context."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            loud = [w for w in raised if not issubclass(w.category, QUIET)]
            notes.update((_sentence(str(w.message)), None) for w in loud)


def _sentence(message: str) -> str:
    if AUTOCAST in message:
        return NO_AUTOCAST
    lines = message.strip().splitlines()
    text = lines[0] if lines else "(no message)"
    return "torch warned: " + (
        text if len(text) <= MAX_MESSAGE_LENGTH else text[:MAX_MESSAGE_LENGTH] + "…"
    )


@contextlib.contextmanager
def without_stderr() -> Iterator[None]:
    """Discard standard error within the context, for log lines of the observer's C++ code."""
    sys.stderr.flush()
    original_stderr = os.dup(2)
    null_device = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null_device, 2)
        yield
    finally:
        os.dup2(original_stderr, 2)
        os.close(original_stderr)
        os.close(null_device)
