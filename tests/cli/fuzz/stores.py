"""Sound stores for the fuzzing: databases, parts of sweeps, spaces, studies, measurements."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from irgraph.cli.main import main as irgraph

SPACE = """devices = ["v100", "t4"]
hosts = ["v100"]
objectives = ["step.time"]

[dims]
B = [8, "16:32:16"]

[limits]
"memory.peak" = "16GiB"
"""

MEASUREMENTS = [
    {"format": 2, "device": "cuda", "name": "V100-SXM2-16GB", "seed": 0, "python_us": 0.1},
    {"family": "calls", "key": "aten.mm(f32[8, 4], f32[4, 4])", "op_us": 9.0, "spread_us": 0.4,
     "kernel_us": 3.0, "kernel_spread_us": 0.1, "kernels": ["gemm"]},
    {"family": "calls", "key": "aten.relu_(f32[8, 4]!)", "op_us": 6.0, "spread_us": 0.3},
]  # fmt: skip

FABRIC = {"name": "lab", "architecture": "volta", "link_gbs": 120, "nic_gbs": 6.25}

MODEL = """model "m" { format = 1  dims = {B = 8} }

device @gpu0 "v100"
input %x : f32[B, 4] in $b1

%y = aten.relu(%x) : f32[B, 4] in $b2
"""

SWEEP = ("sweep", "plain.ir", "--dim", "B=1,2", "--device", "v100,t4", "-o", "swept",
         "--workers", "0", "--json")  # fmt: skip
TUNE = ("tune", "plain.ir", "--space", "sound.toml", "--trials", "2", "--seed", "1", "--json")


def _run(*arguments: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = irgraph(arguments)
    assert code == 0, arguments


def measurements(path: Path) -> None:
    """Write a file of measured calls."""
    path.write_text("".join(json.dumps(row) + "\n" for row in MEASUREMENTS))


def space(path: Path) -> None:
    """Write a search space, and its model beside it."""
    path.write_text(SPACE)
    path.with_name("plain.ir").write_text(MODEL)
    path.with_name("sound.toml").write_text(SPACE)


def fabric(path: Path) -> None:
    """Write links of a platform."""
    path.write_text(json.dumps(FABRIC))


def database(path: Path) -> None:
    """Write a database with a host table and measurements."""
    measurements(path.with_name("db.jsonl"))
    host = Path("costmodels/hosts/rtx2080ti-mlp-profiled.json").resolve()
    _run("db", "init", "--db", str(path))
    _run("db", "add", str(host), "--name", "lab", "--db", str(path))
    _run("db", "add", str(path.with_name("db.jsonl")), "--db", str(path))


def exported(path: Path) -> None:
    """Write the export of a database."""
    database(path.with_name("exported.db"))
    _run("db", "export", "-o", str(path), "--db", str(path.with_name("exported.db")))
    path.with_name("exported.db").unlink()
    _run("db", "init", "--db", str(path.with_name("empty.db")))


def sweep_part(path: Path) -> None:
    """Write a part of a sweep, and the folder with its header to which commands go on."""
    model, folder = path.with_name("plain.ir"), path.with_name("swept")
    model.write_text(MODEL)
    shutil.rmtree(folder, ignore_errors=True)
    words = [str(model) if word == "plain.ir" else word for word in SWEEP]
    _run(*(str(folder) if word == "swept" else word for word in words))
    shutil.copy(folder / "part-0000000.parquet", path)


def study(path: Path) -> None:
    """Write a study of two trials."""
    space(path.with_name("sound.toml"))
    words = [str(path.with_name(word)) if "." in word else word for word in TUNE]
    _run(*words, "--storage", f"sqlite:///{path}")


ODD_TEXTS = (
    "0", "-1", "1e308", "nan", "inf", "-0.0", "9" * 400, "1e-300", "0.001", "1000000",
    "true", '"x"',
)  # fmt: skip
ODD_CELLS: tuple[Any, ...] = (
    None, 0, -1, 2**63 - 1, 1e308, -1.0, "", "x", "{", "[]", "null", b"\xff\xfe",
    "\ud7ff", "9" * 5000,
)  # fmt: skip


def odd_number(data: bytes, rng: random.Random) -> bytes:
    """Replace a number in a text by one that is impossible, huge, tiny or in another unit."""
    numbers = list(re.finditer(rb"(?<![\w.$%@])\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", data))
    if not numbers:
        return data
    number = rng.choice(numbers)
    word = rng.choice(ODD_TEXTS).encode()
    return data[: number.start()] + word + data[number.end() :]


def odd_cells(path: Path, rng: random.Random) -> None:
    """Change values in a SQLite file in place, as an editor of databases would."""
    with (
        contextlib.closing(sqlite3.connect(path)) as connection,
        contextlib.suppress(sqlite3.Error),
    ):
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        tables = [name for (name,) in connection.execute(query)]
        for _ in range(rng.choice((1, 1, 3))):
            table = rng.choice(tables)
            columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
            column, cell = rng.choice(columns), rng.choice(ODD_CELLS)
            with contextlib.suppress(sqlite3.Error):
                if rng.random() < 0.15:
                    connection.execute(f'DELETE FROM "{table}"')
                else:
                    connection.execute(f'UPDATE "{table}" SET "{column}" = ?', (cell,))
        connection.commit()


def odd_figures(path: Path, rng: random.Random) -> None:
    """Change the figures of a part in place, and write it with its metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(pa.BufferReader(path.read_bytes()))
    column = rng.choice(["step_us", "active_us", "B"])
    values = [value * rng.choice((0.5, 1.0, 2.0)) for value in table.column(column).to_pylist()]
    position = table.column_names.index(column)
    kind = table.schema.field(column).type
    changed = table.set_column(position, column, pa.array(values).cast(kind, safe=False))
    pq.write_table(changed, path)
