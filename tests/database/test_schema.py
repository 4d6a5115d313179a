"""The schema: made, checked, brought up to date, and what its migrations lead to."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from irgraph.database.access import Database
from irgraph.database.schema import check, upgrade, versions
from irgraph.diagnostics import IrgraphError


def test_the_migrations_lead_to_the_tables_that_are_used(database: Database) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    from irgraph.database.tables import METADATA

    with database.read_connection() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_a_database_is_made_once(url: str) -> None:
    database = Database(url)
    assert upgrade(database) == ("", versions()[-1])
    assert upgrade(database) == (versions()[-1], versions()[-1])
    check(database)


def test_what_is_no_database_of_this_irgraph_is_refused(url: str) -> None:
    database = Database(url)
    with pytest.raises(IrgraphError, match=r"there is no database|it holds no tables of irgraph"):
        check(database)
    with database.write_transaction() as connection:
        connection.execute(text("CREATE TABLE customers (id INTEGER)"))
    with pytest.raises(IrgraphError, match="tables of another program: customers"):
        upgrade(database)


def test_a_newer_schema_is_refused(database: Database) -> None:
    with database.write_transaction() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '99'"))
    for act in (check, upgrade):
        with pytest.raises(IrgraphError, match="its schema 99 is from a newer irgraph"):
            act(database)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mysql://x/y", "not 'mysql'"),
        ("sqlite://", "not 'sqlite'"),
        ("://", "what is given is no URL"),
    ],
)
def test_other_urls_are_refused(name: str, message: str) -> None:
    with pytest.raises(IrgraphError, match=message):
        Database(name)


def test_no_message_tells_a_password() -> None:
    database = Database("postgresql://me:secret@localhost:1/team")
    with pytest.raises(IrgraphError) as caught:
        check(database)
    assert "localhost" in str(caught.value) and "secret" not in str(caught.value)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("this is no database, but a text of some length\n" * 40)
    for act in (check, upgrade):
        with pytest.raises(IrgraphError, match="file is not a database"):
            act(Database(str(path)))
