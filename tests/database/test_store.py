"""Records are added once, whole or not at all, whoever else writes and whatever is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from irgraph.database.access import Database
from irgraph.database.entry import Provenance, RecordEntry
from irgraph.database.exchange import export_lines
from irgraph.database.query import query_rows, records
from irgraph.database.references import find_record
from irgraph.database.schema import upgrade
from irgraph.database.store import add
from irgraph.diagnostics import IrgraphError
from tests.database.server import Server, missing
from tests.descriptors import open_paths

FORK = multiprocessing.get_context("fork")
WRITERS, OWN, SHARED = 8, 3, 20


def kernels(head: str, times: list[float]) -> RecordEntry:
    """Return a campaign with a row for each time."""
    rows = [
        {"family": "calls", "op": f"aten.op{n}", "key": f"aten.op{n}()", "op_us": t, "kernels": []}
        for n, t in enumerate(times)
    ]
    return RecordEntry("kernels", {"name": head}, rows, Provenance(by="me", card=head))


def test_what_is_there_is_not_added_again(database: Database) -> None:
    (first,) = add(database, [kernels("A100", [1.0, 2.0])], "mine")
    (again,) = add(database, [kernels("A100", [1.0, 2.0])], "other name")
    assert (first.name, first.is_new, first.new_rows, first.existing_rows) == ("mine", True, 2, 0)
    assert (again.name, again.is_new, again.new_rows, again.existing_rows) == ("mine", False, 0, 2)


def test_a_file_that_was_continued_adds_its_new_rows_in_their_order(database: Database) -> None:
    add(database, [kernels("A100", [5.0])])
    (grown,) = add(database, [kernels("A100", [5.0, 3.0, 4.0])])
    assert (grown.is_new, grown.new_rows, grown.existing_rows) == (False, 2, 1)
    head, rows, _ = find_record(database, grown.name, "kernels")
    assert head == {"name": "A100"}
    assert [row["op_us"] for row in rows] == [5.0, 3.0, 4.0]


def test_a_name_is_one_records(database: Database) -> None:
    add(database, [kernels("A100", [1.0])], "mine")
    with pytest.raises(IrgraphError, match="the name 'mine' belongs to another record"):
        add(database, [kernels("H100", [1.0])], "mine")
    assert [row["card"] for row in records(database)] == ["A100"]


def test_a_record_is_found_by_name_and_by_hash(database: Database) -> None:
    add(database, [kernels("A100", [1.0])], "mine")
    digits = records(database)[0]["hash"]
    assert find_record(database, "mine", "kernels") == find_record(database, digits[:8], "kernels")
    for name in ("mi", digits[:7], "0" * 8):
        with pytest.raises(IrgraphError, match="no record of kernels named"):
            find_record(database, name, "kernels")
    with pytest.raises(IrgraphError, match="it holds no hosts"):
        find_record(database, "mine", "hosts")


def test_texts_that_databases_refuse_are_made_harmless(database: Database) -> None:
    odd = "a\0b\ud800c'; DROP TABLE records; --"
    add(database, [RecordEntry("kernels", {"name": odd}, [{"op": odd}], Provenance(by=odd))], odd)
    (row,), _ = query_rows(database, "kernels")
    assert row["op"] == row["by"] == row["name"] == "a\ufffdb?c'; DROP TABLE records; --"
    assert find_record(database, row["name"], "kernels")[0] == {"name": odd}


def in_processes(work: Callable[[int], None], many: int) -> list[int | None]:
    """Run work in processes at once; return their exit codes."""
    started = [FORK.Process(target=work, args=(number,)) for number in range(many)]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
    return [process.exitcode for process in started]


def test_eight_writers_at_once_lose_nothing_and_add_nothing_twice(url: str) -> None:
    def write(writer: int) -> None:
        own = Database(url)
        upgrade(own)
        for number in range(OWN):
            add(own, [kernels(f"card {writer}.{number}", [1.0, 2.0])])
            add(own, [kernels("common", [float(time) for time in range(SHARED)])])

    assert in_processes(write, WRITERS) == [0] * WRITERS
    database = Database(url)
    found = {row["card"]: row["rows"] for row in records(database)}
    own = {f"card {writer}.{number}": 2 for writer in range(WRITERS) for number in range(OWN)}
    assert found == {**own, "common": SHARED}
    assert query_rows(database, "kernels", max_rows=1)[1] == WRITERS * OWN * 2 + SHARED


def test_a_writer_killed_in_its_transaction_leaves_nothing_and_blocks_nobody(url: str) -> None:
    from irgraph.database.store import add_record

    upgrade(Database(url))
    ours, theirs = FORK.Pipe()

    def write(pipe: Connection) -> None:
        with Database(url).write_transaction() as connection:
            add_record(connection, kernels("half", [1.0, 2.0]), "half", "now", url)
            pipe.send("written, not committed")
            signal.pause()

    process = FORK.Process(target=write, args=(theirs,))
    process.start()
    assert ours.poll(60)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(60)
    database = Database(url)
    assert records(database) == []
    (added,) = add(database, [kernels("half", [1.0, 2.0])], "half")
    assert (added.is_new, added.new_rows) == (True, 2)


def test_a_server_that_is_killed_loses_nothing() -> None:
    """Its client has an error; what was committed is there when it runs again, nothing else is."""
    from irgraph.database.store import add_record

    if reason := missing():
        pytest.skip(reason)
    with closing(Server()) as server:
        database = Database(server.url.format("postgres"))
        upgrade(database)
        add(database, [kernels("A100", [1.0])], "first")
        with (
            pytest.raises(IrgraphError, match="database postgresql") as error,
            database.write_transaction() as connection,
        ):
            add_record(connection, kernels("H100", [2.0]), "second", "now", database)
            server.kill()
        assert error.value.exit_code == 4
        with pytest.raises(IrgraphError, match="database postgresql"):
            records(database)
        server.start()
        assert [row["name"] for row in records(database)] == ["first"]
        assert add(database, [kernels("H100", [2.0])], "second")[0].is_new
        database.engine.dispose()


PROVENANCE = "the provenance or a row of record 'mine' was changed"


@pytest.mark.parametrize(
    ("change", "message", "refusals"),
    [
        ("UPDATE records SET content = '{}'", "the content of record 'mine' was changed", 4),
        ("UPDATE records SET content = 'x'", "the content of record 'mine' was changed", 4),
        ("UPDATE kernels SET row = '{}'", "a row of record 'mine' was changed", 3),
        ("UPDATE kernels SET op_us = 0.5", "op_us in a row of record 'mine' was changed", 1),
        ("UPDATE records SET card = 'H100'", PROVENANCE, 4),
        ("UPDATE records SET clock_mhz = 9", PROVENANCE, 4),
        ("UPDATE records SET added = ''", PROVENANCE, 4),
        ("UPDATE records SET checksum = ''", PROVENANCE, 4),
        ("DELETE FROM kernels WHERE op_us = 2", PROVENANCE, 4),
        ("DELETE FROM kernels", PROVENANCE, 4),
    ],
)
def test_content_that_is_not_its_hashs_is_refused_on_every_read(
    database: Database, change: str, message: str, refusals: int
) -> None:
    add(database, [kernels("A100", [1.0, 2.0])], "mine")
    with database.write_transaction() as connection:
        connection.exec_driver_sql(change)
    reads: list[Callable[[], object]] = [
        lambda: records(database),
        lambda: find_record(database, "mine", "kernels"),
        lambda: query_rows(database, "kernels"),
        lambda: list(export_lines(database)),
    ]
    messages = []
    for read in reads:
        try:
            read()
        except IrgraphError as error:
            messages.append(str(error))
    assert len(messages) == refusals
    assert all(message in text for text in messages)


def test_names_that_were_exchanged_are_refused(database: Database) -> None:
    """Otherwise ``db:NAME`` would price with the host of another machine."""
    add(database, [kernels("A100", [1.0])], "first")
    add(database, [kernels("H100", [2.0])], "second")
    for old, new in (("first", "x"), ("second", "first"), ("x", "second")):
        with database.write_transaction() as connection:
            connection.exec_driver_sql(f"UPDATE records SET name = '{new}' WHERE name = '{old}'")
    with pytest.raises(IrgraphError, match="provenance or a row of record 'first' was changed"):
        find_record(database, "first", "kernels")


def test_rows_are_not_added_to_a_record_that_was_changed(database: Database) -> None:
    add(database, [kernels("A100", [1.0])], "mine")
    with database.write_transaction() as connection:
        connection.exec_driver_sql("UPDATE records SET driver = '1'")
    with pytest.raises(IrgraphError, match=PROVENANCE):
        add(database, [kernels("A100", [1.0, 2.0])], "mine")


@pytest.mark.parametrize("size", [50, 3000, 9000])
def test_a_damaged_file_is_not_left_open(tmp_path: Path, size: int) -> None:
    """A connection that stays open may lock the file that replaces a damaged one."""
    path = tmp_path / "team.db"
    database = Database(str(path))
    upgrade(database)
    add(database, [kernels("A100", [1.0, 2.0])], "mine")
    sound = path.read_bytes()
    path.write_bytes(sound[:size])
    errors = []
    for act in (records, upgrade, lambda same: add(same, [kernels("H100", [1.0])])):
        with pytest.raises(IrgraphError) as error:
            act(database)
        errors.append(error)
        assert open_paths(path) == []
    path.write_bytes(sound)
    assert len(add(Database(str(path)), [kernels("H100", [1.0])])) == 1
