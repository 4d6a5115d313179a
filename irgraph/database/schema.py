"""Versions of a database's schema, created and migrated by Alembic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from irgraph.database.access import Database
from irgraph.diagnostics import fail

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection

LOCK = 4_721_966_143
"""Key of PostgreSQL's advisory lock under which the schema changes; any fixed number does."""


def upgrade(database: Database, target: str = "head") -> tuple[str, str]:
    """Create or migrate the tables; return the versions before and after.

    The change is atomic, even if several processes upgrade at once. The version of an empty
    database is ``""``.

    Raises ``IrgraphError`` if the database is from a newer irgraph, or has other tables.
    """
    from alembic import command
    from sqlalchemy import text

    with database.write_transaction() as connection:
        if not database.is_sqlite:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
        before = _version(connection)
        _refuse_unknown(database, connection, before)
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, target)
        return before, _version(connection)


def check(database: Database) -> None:
    """Raise ``IrgraphError`` if the database is missing or its schema is not the newest."""
    hint = "`irgraph db init` creates one; IRGRAPH_DB or --db names another"
    if not database.exists:
        raise fail(f"there is no database {database}", hint=hint, exit_code=2)
    with database.read_connection() as connection:
        version = _version(connection)
        _refuse_unknown(database, connection, version)
    if not version:
        raise fail(f"database {database}: it holds no tables of irgraph", hint=hint, exit_code=2)
    newest = versions()[-1]
    if version != newest:
        message = f"database {database}: its schema is {version}, this irgraph works with {newest}"
        hint = "`irgraph db init` migrates it and keeps its records"
        raise fail(message, hint=hint, exit_code=2)


def versions() -> tuple[str, ...]:
    """Return all versions of the schema, oldest first."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(_config()).walk_revisions()
    return tuple(script.revision for script in reversed(list(scripts)))


def _refuse_unknown(database: Database, connection: Connection, version: str) -> None:
    """Raise ``IrgraphError`` for a database of another program or of a newer irgraph."""
    from sqlalchemy import inspect

    if version and version not in versions():
        message = f"database {database}: its schema {version} is from a newer irgraph"
        raise fail(message, hint="use the newest irgraph", exit_code=2)
    foreign_tables = set() if version else set(inspect(connection).get_table_names())
    if foreign_tables:
        message = f"database {database}: it holds tables of another program: {min(foreign_tables)}"
        raise fail(message, hint="give irgraph a database of its own", exit_code=2)


def _version(connection: Connection) -> str:
    from alembic.runtime.migration import MigrationContext

    revision: Any = MigrationContext.configure(connection).get_current_revision()
    return revision or ""


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    return config
