"""``irgraph db``: a team's database of measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from irgraph.cli.common import (
    JsonOption,
    OutputOption,
    print_error,
    print_listing,
    write_json,
    write_result,
)
from irgraph.cli.traces import record_cells

if TYPE_CHECKING:
    from irgraph.database.access import Database
    from irgraph.database.store import AddResult

PANEL = "cost models"

APP = typer.Typer(add_completion=False, rich_markup_mode=None)

DbOption = Annotated[
    str,
    typer.Option(
        "--db",
        metavar="PATH|URL",
        help="A SQLite file or postgresql://USER@HOST/NAME (default: IRGRAPH_DB, or irgraph.db).",
    ),
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help="Such as card=V100* or 'mean_us > 5'; all that are given must hold (repeatable).",
    ),
]
MostOption = Annotated[int, typer.Option("-n", "--most", min=1, help="Rows to list.")]


@APP.callback()
def db() -> None:
    """Manage a team's database of measurements and predictions, with their provenance."""


@APP.command()
def init(db: DbOption = "") -> None:
    """Create the database, or migrate an older one."""
    from irgraph.database.access import Database
    from irgraph.database.schema import upgrade

    database = Database(db)
    before, after = upgrade(database)
    status = f"migrated from schema {before} to {after}" if before else f"made with schema {after}"
    print_error(f"{database}: {status if before != after else f'already of schema {after}'}")
    if before == "1":
        print_error("note: provenance had no hash before schema 2; its present values are hashed")


@APP.command()
def add(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…", help="What measure, overheads, record, evaluate and predict wrote."
        ),
    ],
    name: Annotated[
        str, typer.Option(help="Name of the record, for db:NAME (default: kind and hash).")
    ] = "",
    by: Annotated[str, typer.Option(help="Who measured it.")] = "",
    card: Annotated[str, typer.Option(help="Card, where the file does not say.")] = "",
    driver: Annotated[str, typer.Option(help="Version of its driver.")] = "",
    software: Annotated[str, typer.Option(help="Versions, such as 'torch 2.8, CUDA 12.8'.")] = "",
    clock: Annotated[float, typer.Option(min=0, max=1e6, help="MHz at which the card ran.")] = 0.0,
    source: Annotated[str, typer.Option(help="Anything else about where it comes from.")] = "",
    private: Annotated[
        bool, typer.Option("--private", help="Keep the names of programs and files.")
    ] = False,
    db: DbOption = "",
) -> None:
    """Add files, each whole or not at all; nothing is added twice."""
    from irgraph.database.entry import Provenance
    from irgraph.database.store import add as store
    from irgraph.diagnostics import fail
    from irgraph.intake.read import entries

    if name and len(files) > 1:
        raise fail("--name: give one file", exit_code=2)
    database = _open(db)
    provenance = Provenance(by, card, driver, software, clock, source)
    for file in files:
        records = entries(file, provenance, private)
        for reason in (reason for entry in records for reason in entry.omissions):
            print_error(f"{file}: left out: {reason}")
        for result in store(database, records, name):
            print_error(f"{file}: {_describe(result)}")


@APP.command("list")
def list_records(json: JsonOption = False, db: DbOption = "") -> None:
    """List all records with their provenance."""
    from irgraph.database.query import records

    rows = records(_open(db))
    if json:
        write_json(rows)
    else:
        _print("records", rows)


@APP.command()
def hosts(
    where: WhereOption = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="List every figure, not only T1 of each table.")
    ] = False,
    most: MostOption = 50,
    json: JsonOption = False,
    db: DbOption = "",
) -> None:
    """List tables of host overheads, or their figures."""
    chosen = list(where or ())
    _list("hosts", chosen if figures or chosen else ["type=T1"], most, json, db)


@APP.command()
def kernels(
    where: WhereOption = None, most: MostOption = 50, json: JsonOption = False, db: DbOption = ""
) -> None:
    """List measured kernels and calls."""
    _list("kernels", where or [], most, json, db)


@APP.command()
def steps(
    where: WhereOption = None, most: MostOption = 50, json: JsonOption = False, db: DbOption = ""
) -> None:
    """List measured and predicted steps, beside each other."""
    _list("steps", where or [], most, json, db)


@APP.command()
def export(output: OutputOption = None, db: DbOption = "") -> None:
    """Write all records as JSON lines, which `irgraph db import` reads."""
    from irgraph.database.exchange import export_lines

    write_result("".join(export_lines(_open(db))), output)


@APP.command("import")
def import_records(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `irgraph db export` wrote.")],
    db: DbOption = "",
) -> None:
    """Add what another database exported, all of it or nothing."""
    from irgraph.database.exchange import import_file

    imported = import_file(_open(db), file)
    if not imported.has_checksums:
        print_error(f"note: {file} is of format 1: names and provenance have no hash in it")
    results = imported.results
    new, rows = sum(result.is_new for result in results), sum(result.new_rows for result in results)
    print_error(f"{file}: {new} new of {len(results)} records, {rows} new rows")


def _open(name: str) -> Database:
    """Return a database after checking that its schema is the newest."""
    from irgraph.database.access import Database

    database = Database(name)
    from irgraph.database.schema import check

    check(database)
    return database


def _describe(result: AddResult) -> str:
    """Return the outcome of adding a record, as text."""
    rows = [_rows(result.new_rows) + " added"] if result.new_rows else []
    rows += [_rows(result.existing_rows) + " there already"] if result.existing_rows else []
    return ", ".join([f"{result.kind} {result.name}: {'new' if result.is_new else 'known'}", *rows])


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"


def _list(kind: str, conditions: list[str], max_rows: int, json: bool, db: str) -> None:
    from irgraph.database.query import query_rows

    rows, total = query_rows(_open(db), kind, conditions, None if json else max_rows)
    if json:
        write_json(rows)
        return
    _print(kind, rows)
    if total > len(rows):
        print_error(f"{total - len(rows)} more rows: narrow them with --where, or raise --most")


def _print(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows without empty columns."""
    from irgraph.database.query import SHORT

    short_rows = [{**row, "hash": row["hash"][:SHORT]} for row in rows]
    used = [
        name
        for name in (short_rows[0] if short_rows else {})
        if any(row[name] for row in short_rows)
    ]
    print_listing(title, [record_cells({name: row[name] for name in used}) for row in short_rows])
