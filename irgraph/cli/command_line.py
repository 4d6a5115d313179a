"""Words of the running command line, for reports."""

from __future__ import annotations

from contextvars import ContextVar

COMMAND_LINE: ContextVar[tuple[str, ...]] = ContextVar("COMMAND_LINE", default=())
"""Words after the name of the program; empty outside a command."""
