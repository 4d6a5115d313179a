"""The schema: made, checked, brought up to date, and what its migrations lead to."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import text

from irgraph.database.access import Database
from irgraph.database.entry import canonical, content_hash
from irgraph.database.query import records
from irgraph.database.schema import check, upgrade, versions
from irgraph.database.store import add
from irgraph.diagnostics import IrgraphError
from tests.database.test_store import kernels


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


def test_provenance_of_schema_1_is_hashed_by_the_migration(url: str) -> None:
    """Records of the first schema stay readable, and later changes of them are refused."""
    database = Database(url)
    upgrade(database, "1")
    entry = kernels("A100", [1.0, 2.0])
    first = {"hash": entry.hash, "kind": "kernels", "name": "mine", "added": "2026", "by": "me"}
    values = {
        **first,
        "card": "A100",
        "driver": "",
        "software": "",
        "clock_mhz": 1410,
        "source": "",
    }
    rows = [(content_hash(row), canonical(row)) for row in entry.rows]
    with database.write_transaction() as connection:
        columns = sa.table("records", *map(sa.column, (*values, "content")))
        connection.execute(columns.insert().values(**values, content=canonical(entry.content)))
        names = ("record", "hash", "position", "row", "family", "op", "key", "op_us")
        table = sa.table("kernels", *map(sa.column, names))
        for position, ((digits, text), row) in enumerate(zip(rows, entry.rows, strict=True)):
            figures = {name: row[name] for name in names[4:]}
            stored = {"record": 1, "hash": digits, "position": position, "row": text}
            connection.execute(table.insert().values(**stored, **figures))
    assert upgrade(database) == ("1", versions()[-1])
    assert [row["rows"] for row in records(database)] == [2]
    assert add(database, [kernels("A100", [1.0, 2.0, 3.0])])[0].new_rows == 1
    with database.write_transaction() as connection:
        connection.exec_driver_sql("UPDATE records SET card = 'H100'")
    with pytest.raises(IrgraphError, match="the provenance or a row of record 'mine' was changed"):
        records(database)


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
