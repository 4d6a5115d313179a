"""Damaged files that once ended in an internal error, made small."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from msgspec.structs import replace
from safetensors.numpy import save

from irgraph.cli.main import main
from tests.capture.kineto.builder import events
from tests.cli.fuzz.seeds import FORMATS, MODEL

ROOT = Path(__file__).parents[2]
NINES = "9" * 5000


def kineto(change: Callable[[dict[str, Any]], object]) -> bytes:
    """Return a Kineto trace all of whose events are changed."""
    found = events()
    for event in found:
        change(event)
    return json.dumps({"schemaVersion": 1, "traceEvents": found}).encode()


def types(value: object) -> bytes:
    return kineto(lambda event: event["args"].update({"Input type": value, "correlation": "1"}))


def dims(value: object) -> bytes:
    return kineto(lambda event: event["args"].update({"Input Dims": value, "correlation": "1"}))


def archive() -> bytes:
    """Return a zip archive with a name that claims to be UTF-8 and is not."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("é/data/x.json", "{}")
    return made.getvalue().replace("é".encode(), b"\xff\xff")


def unknown_type() -> bytes:
    """Return an ONNX model whose input has a type of no known number."""
    made = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        FORMATS["ONNX"].write(Path(folder) / "m.onnx")
        model = onnx.load(Path(folder) / "m.onnx")
    model.graph.input[0].type.tensor_type.elem_type = 125
    onnx.save(model, made)
    return made.getvalue()


def sheet(**fields: object) -> bytes:
    whole = json.loads((ROOT / "costmodels/devices/v100-sxm2-16gb.json").read_text())
    return json.dumps({**whole, **fields}).encode()


FOUND: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "a.pt2": (archive(), ("lower",)),
    "a.json": (archive(), ("analyze",)),
    "type.onnx": (unknown_type(), ("lower --dim batch=3",)),
    "lists.json": (types([["float"], {}]), ("overheads", "replay", "lower", "analyze", "roofline")),
    "dims.json": (dims([[10**200] * 3]), ("overheads", "replay", "lower", "analyze", "roofline")),
    "half.json": (types(["\ud800"]), ("overheads", "replay", "lower", "analyze", "roofline")),
    "thread.json": (kineto(lambda event: event.update(tid=NINES)), ("analyze", "replay", "lower")),
    "step.json": (
        kineto(lambda event: event.update(name=f"ProfilerStep#{NINES}")),
        ("analyze", "lower"),
    ),
    "table.json": (b"\xbe{}", ("predict MODEL --host",)),
    "numbers.json": (b'{"format": 1, "t1": "\xff"}', ("predict MODEL --host",)),
    "spread.json": (
        b'{"format": 1, "name": "x", "t1": {"mean": 1, "std": 1e300}, "t4": {}}',
        ("predict MODEL --host", "overheads " + str(ROOT / "costmodels/hosts/v100.json")),
    ),
    "sheet.json": (sheet(source="\ud800"), ("predict MODEL --json --device",)),
    "large.json": (sheet(memory_bytes=1e30), ("predict MODEL --json --device",)),
    "head.safetensors": (save({}, {"irgraph-own": "{"}), ("predict MODEL --weights",)),
    "list.safetensors": (save({}, {"irgraph-own": "[]"}), ("predict MODEL --weights",)),
    "bare.safetensors": (
        save({}, {"irgraph-own": '{"format": 1}'}),
        ("predict MODEL --weights",),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_no_internal_error(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    content, commands = FOUND[name]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "model.ir").write_text(MODEL)
    for command in commands:
        words = command.replace("MODEL", str(tmp_path / "model.ir")).split()
        code = main([*words, str(tmp_path / name)])
        said = capsys.readouterr()
        assert code in (0, 2, 3, 4), said.err
        assert code == 0 or said.err


def test_weights_that_do_not_fit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    from costmodels.learned.correction import load_own, save_own

    monkeypatch.chdir(ROOT)
    path = tmp_path / "w.safetensors"
    FORMATS["weights"].write(path)
    (tmp_path / "model.ir").write_text(MODEL)
    arguments = ["predict", str(tmp_path / "model.ir"), "--weights", str(path)]
    assert main(arguments) == 0
    one = load_own(path)
    ((weights, bias),) = one.layers
    wrong = {
        "do not fit": ((weights[:, :, 1:], bias),),
        "not finite": ((weights * np.float32("nan"), bias),),
        "beyond e^20": ((weights, bias * np.float32(100)),),
    }
    for said, layers in wrong.items():
        save_own(replace(one, layers=layers), path)
        assert main(arguments) in (2, 4)
        assert said in capsys.readouterr().err


NUMBER = """model "m" { format = 2 }

device @gpu0 "v100"
input %x : f32[4] in $x
%y = aten.mul(%x, "word") : f32[4] in $y
"""


@pytest.mark.parametrize("field", ["op", "dtype"])
def test_a_field_that_measurements_lack_is_named(
    tmp_path: Path, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, database = tmp_path / "a.jsonl", str(tmp_path / "d.db")
    FORMATS["measurements"].write(path)
    head, row, *_ = [json.loads(text) for text in path.read_text().splitlines()]
    row |= {"family": "gemm", "op": "mm", "dtype": "f32"}
    del row[field]
    path.write_text(f"{json.dumps(head)}\n{json.dumps(row)}\n")
    assert main(["db", "init", "--db", database]) == 0
    assert main(["db", "add", str(path), "--db", database]) == 4
    assert f"it lacks {field!r}" in capsys.readouterr().err


def test_a_text_is_no_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.ir"
    path.write_text(NUMBER)
    assert main(["predict", str(path)]) == 4
    assert "'word' is no number" in capsys.readouterr().err


def test_bytes_in_a_database_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    monkeypatch.chdir(ROOT)
    path = tmp_path / "team.db"
    FORMATS["database"].write(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE records SET driver = x'00ff'")
    connection.close()
    for command in ("db hosts --figures", "db list"):
        assert main([*command.split(), "--db", str(path), "--json"]) == 4
        assert "was changed: its hash does not match" in capsys.readouterr().err


def test_a_damaged_catalogue_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    path = tmp_path / "team.db"
    FORMATS["database"].write(path)
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE alembic", b"CREATE T\x86BLE alembic"))
    assert main(["db", "init", "--db", str(path)]) == 4
    assert str(path) in capsys.readouterr().err
