"""The words of the command line that runs, for what it writes."""

from __future__ import annotations

from contextvars import ContextVar

COMMAND_LINE: ContextVar[tuple[str, ...]] = ContextVar("GIVEN", default=())
"""Without the name of the program; empty outside a command."""
