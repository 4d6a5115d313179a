"""Access to a database: its URL, its engine, its transactions, and errors that name it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from irgraph.diagnostics import IrgraphError, fail

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

VARIABLE = "IRGRAPH_DB"
"""Environment variable that names the database."""

DEFAULT = "irgraph.db"
"""Default database: a SQLite file in the current folder."""

TIMEOUT_S = 60
"""Time limit in seconds for a connection, or for the lock of a SQLite file."""


class Database:
    """A database by its URL, which connects on demand.

    Attributes:
        url: SQLAlchemy's URL.
        engine: SQLAlchemy's engine.
    """

    def __init__(self, name: str = "") -> None:
        """Open a URL or the path of a SQLite file; by default the value of ``IRGRAPH_DB``.

        Raises ``IrgraphError`` (exit code 2) if the extra ``db`` is not installed, or the URL is
        invalid or of another kind than SQLite and PostgreSQL.
        """
        _require("sqlalchemy", "SQLAlchemy")
        self.url = _url(name or os.environ.get(VARIABLE) or DEFAULT)
        if not self.is_sqlite:
            _require("psycopg", "psycopg")
        self.engine = _engine(self.url)

    def __str__(self) -> str:
        """Return the file's path, or the URL without its password."""
        if self.is_sqlite:
            return str(self.url.database)
        return self.url.render_as_string(hide_password=True)

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a SQLite file."""
        return self.url.get_backend_name() == "sqlite"

    @property
    def exists(self) -> bool:
        """Whether the SQLite file exists; true for any server."""
        return not self.is_sqlite or Path(self.url.database or "").is_file()

    @contextmanager
    def read_connection(self) -> Iterator[Connection]:
        """Yield a connection; raises ``IrgraphError`` if the database cannot be read."""
        with self._translate_errors(), self.engine.connect() as connection:
            try:
                yield connection
            except (ValueError, TypeError, OverflowError) as error:
                # decoders of a damaged file raise these themselves
                raise self.error(error) from None

    @contextmanager
    def write_transaction(self) -> Iterator[Connection]:
        """Yield a connection in a transaction, which is rolled back on an error.

        Raises ``IrgraphError`` if the database cannot be written.
        """
        with self._translate_errors(), self.engine.connect() as connection:
            writer = connection.execution_options(writes=True)
            with writer.begin():
                yield writer

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate SQLAlchemy's errors into ``IrgraphError``."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (SQLAlchemyError, UnicodeDecodeError) as error:  # of a damaged catalogue
            raise self.error(error) from None

    def error(self, error: Exception) -> IrgraphError:
        """Return the library's error as an ``IrgraphError`` that names the database."""
        reason = str(getattr(error, "orig", None) or error).strip() or type(error).__name__
        hint = "is the server running, and may you connect to it?"
        return fail(
            f"database {self}: {reason.splitlines()[0]}", hint="" if self.is_sqlite else hint
        )


def _require(module: str, name: str) -> None:
    if find_spec(module) is None:
        message = f"a database needs {name}, which is not installed"
        raise fail(message, hint="pip install 'irgraph[db]'", exit_code=2)


def _url(name: str) -> URL:
    """Return the URL of a name: a URL, or the path of a SQLite file."""
    from sqlalchemy import URL, make_url
    from sqlalchemy.exc import ArgumentError

    if "://" not in name:
        return URL.create("sqlite", database=name)
    try:
        url = make_url(name)
    except (ArgumentError, ValueError):
        raise fail(_URL_MESSAGE.format("what is given is no URL"), exit_code=2) from None
    kind = url.get_backend_name()
    if kind in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if kind != "sqlite" or not url.database:
        raise fail(_URL_MESSAGE.format(f"not {kind!r}"), exit_code=2)
    return url


_URL_MESSAGE = "a database is a path, sqlite:///PATH or postgresql://USER@HOST/NAME; {}"


def _engine(url: URL) -> Engine:
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import NullPool

    if url.get_backend_name() != "sqlite":
        return create_engine(url, connect_args={"connect_timeout": TIMEOUT_S})
    # an idle connection would keep the file open, and may lock the one that replaces it
    engine = create_engine(url, connect_args={"timeout": TIMEOUT_S}, poolclass=NullPool)
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin_transaction)
    return engine


def _configure(connection: Any, _: object) -> None:  # noqa: ANN401  (of sqlite3)
    """Disable implicit transactions: sqlite3 begins one only before a write, which is too late."""
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")


def _begin_transaction(connection: Connection) -> None:
    """Begin a transaction; a writer locks the file at once, so that it cannot fail later."""
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
