"""Databases to test with: a SQLite file, and one of a PostgreSQL server where that is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from irgraph.database.access import Database
from irgraph.database.schema import upgrade
from tests.database.server import Server, missing

_NUMBERS = count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Yield the URL of a PostgreSQL server, with braces for a database's name."""
    if reason := missing():
        pytest.skip(reason)
    with closing(Server()) as server:
        yield server.url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the name of an empty database."""
    return empty(request, tmp_path)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Database:
    """Return a database with tables that the tests of a file only read, or the first one fills."""
    found = Database(empty(request, tmp_path_factory.mktemp("shared")))
    upgrade(found)
    return found


def empty(request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the name of an empty database of the kind that a fixture's parameter names."""
    if request.param == "sqlite":
        return str(folder / "team.db")
    import psycopg

    server_url = request.getfixturevalue("postgres")
    name = f"test{next(_NUMBERS)}"
    with psycopg.connect(server_url.format("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return str(server_url.format(name))


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """Yield a database with tables."""
    found = Database(url)
    upgrade(found)
    yield found
    found.engine.dispose()
