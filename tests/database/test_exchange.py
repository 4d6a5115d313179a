"""What one database exports, another holds after the import; a changed file is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from irgraph.cli.main import main
from irgraph.database.access import Database
from irgraph.database.exchange import export_lines, import_file
from irgraph.database.query import records
from irgraph.database.schema import upgrade
from irgraph.database.store import add
from irgraph.diagnostics import IrgraphError
from irgraph.files import write_atomic
from tests.database.test_store import kernels


@pytest.fixture(scope="module")
def filled(shared: Database) -> Database:
    add(shared, [kernels("A100", [1.0, 2.0])], "first", "2026-01-01T00:00:00+00:00")
    add(shared, [kernels("H100", [3.0])], "second")
    return shared


@pytest.fixture
def path(filled: Database, tmp_path: Path) -> Path:
    write_atomic(tmp_path / "team.jsonl.gz", "".join(export_lines(filled)))
    return tmp_path / "team.jsonl.gz"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Database:
    found = Database(str(tmp_path_factory.mktemp("other") / "other.db"))
    upgrade(found)
    return found


def test_another_database_holds_the_same(filled: Database, path: Path, tmp_path: Path) -> None:
    other = Database(str(tmp_path / "other.db"))
    upgrade(other)
    assert [(one.is_new, one.new_rows) for one in import_file(other, str(path)).results] in (
        [(True, 2), (True, 1)],
        [(True, 1), (True, 2)],
    )
    assert list(export_lines(other)) == list(export_lines(filled))
    again = import_file(other, str(path)).results
    assert not any(one.is_new or one.new_rows for one in again) and len(records(other)) == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"op_us":3.0', '"op_us":2.0', r"record 'second' was changed"),
        ('"content":{"name":"H100"}', '"content":{"name":"V100"}', r"was changed"),
        ('"kind":"kernels"', '"kind":"colours"', r"no record is of kind 'colours'"),
        ('"rows":[', '"rows":[[],', r"not a record of a database"),
        ('"irgraph_database": 2', '"irgraph_database": 3', r"not a database export of forma"),
        ('"irgraph_database": 2', '"irgraph_database": 1', r"was changed: its hash does not match"),
        ('"card":"', '"card":"x', r"was changed: its hash does not match"),
        ('"name":"second"', '"name":"third"', r"record 'third' was changed"),
    ],
)
def test_a_changed_file_is_refused_whole(
    path: Path, other: Database, old: str, new: str, message: str
) -> None:
    text = gzip.decompress(path.read_bytes()).decode()
    assert old in text
    path.write_bytes(gzip.compress(text.replace(old, new).encode()))
    with pytest.raises(IrgraphError, match=message) as caught:
        import_file(other, str(path))
    assert f"{path}:" in str(caught.value)
    assert records(other) == []


def test_an_export_of_format_1_is_read_and_named(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, *lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    plain = [{k: v for k, v in json.loads(line).items() if k != "checksum"} for line in lines]
    old = tmp_path / "old.jsonl"
    texts = [header.replace("2", "1"), *map(json.dumps, plain)]
    old.write_text("".join(f"{text}\n" for text in texts))
    database = tmp_path / "new.db"
    assert main(["db", "init", "--db", str(database)]) == 0
    assert main(["db", "import", str(old), "--db", str(database)]) == 0
    assert "names and provenance have no hash in it" in capsys.readouterr().err
    assert len(records(Database(str(database)))) == 2


def test_every_line_is_json(path: Path) -> None:
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert [json.loads(line).get("kind") for line in lines] == [None, "kernels", "kernels"]
