"""Names the file of a statement that fails while being read, checked or run."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from irgraph.diagnostics import IrgraphError


class StatementError(Exception):
    """A statement's file is at fault, not the script: the message names the file."""


@contextmanager
def blame(module: str, failure: str) -> Iterator[None]:
    """Convert failures in this context to a ``StatementError`` that names a statement's module.

    ``failure`` completes the message, as in ``cannot be run``. Errors of the script propagate
    unchanged, and so do ``StatementError`` of statements in its block.
    """
    try:
        yield
    except (IrgraphError, StatementError):
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        description = f"{type(error).__name__}: {error}".removesuffix(": ")
        if last.line:  # the machinery of imports has none
            description += f" ({Path(last.filename).name}, line {last.lineno}: {last.line})"
        raise StatementError(f"{statement_text(module)} {failure}: {description}") from error


def statement_text(module: str) -> str:
    """Return the text of a module's statement in messages: its name and its file."""
    name = module.rpartition(".")[2]
    return f"the statement {name!r} ({module.replace('.', '/')}.py)"
