"""Errors of a damaged study: its storage, its libraries and its readers raise them of any type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb

from irgraph.diagnostics import IrgraphError, fail

STORAGE_MODULES = ("irgraph.tuning.study", "irgraph.tuning.engine", "irgraph.tuning.storage")
"""Modules that read studies: an error below them comes from the content of a storage."""


@contextmanager
def refuse_damaged_study(storage: str | None) -> Iterator[None]:
    """Translate errors from reading a stored study into ``IrgraphError`` (exit code 4).

    Errors of a study in memory, and errors outside of the readers of studies, are unchanged.
    """
    try:
        yield
    except IrgraphError:
        raise
    except Exception as error:
        if storage is None or not _comes_from_storage(error):
            raise
        operational = _operational_error(error)
        if operational is not None:
            message = f"the study in {storage} cannot be used: {_first_line(operational)}"
            hint = (
                "is its disk full, its file locked, or its server gone? finished trials are stored"
            )
            raise fail(message, hint=hint) from None
        reason = _first_line(error)
        message = f"the study in {storage} is damaged: {type(error).__name__}: {reason}"
        raise fail(message, hint="restore it, or give a new --storage") from None


def _operational_error(error: BaseException) -> BaseException | None:
    """Return the database's error of its disk, locks or connection that led to another error.

    SQLite reports damaged files by other classes, and missing tables by code 1.
    """
    cause: BaseException | None = error
    while cause is not None and type(cause).__name__ != "OperationalError":
        cause = cause.__cause__ or cause.__context__
    original = getattr(cause, "orig", None) or cause
    return None if getattr(original, "sqlite_errorcode", 0) == 1 else original


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _comes_from_storage(error: Exception) -> bool:
    modules = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    own_modules = [name for name in modules if name.startswith("irgraph.")]
    return bool(own_modules) and own_modules[-1] in STORAGE_MODULES
