"""Damaged stores, full disks, read-only homes and clocks that jump: an answer, and nothing lost."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.capture.kineto.builder import events, text
from tests.cli.conftest import Ran
from tests.cli.fuzz import stores

Run = Callable[..., Ran]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, in which the home and the cache are."""
    monkeypatch.chdir(ROOT)
    (tmp_path / "plain.ir").write_text(stores.MODEL)
    return tmp_path


ODD_FILES = {
    "empty": b"",
    "bytes": bytes(range(256)),
    "deep": b"[" * 100_000,
    "surrogate": b'{"T1": {"mean": 1}, "format": 1, "name": "\\ud800"}',
    "host": b'{"T1": 3, "format": 1}',
    "format": b'{"T1": {"mean": 1}, "format": "one"}',
    "evaluation": b'{"evaluation": 1}',
    "evaluation rows": b'{"evaluation": "dlrm-v100", "points": [1, 2]}',
    "prediction": b'{"step_time_us": "x", "step_time_interval_us": [1]}',
    "infinite": b'{"step_time_us": 1e999, "step_time_interval_us": [1, 2]}',
    "measurements": b'{"seed": 0, "device": 1}\n{}\n',
    "number": b'{"seed": 0, "device": "cpu", "format": 2, "name": "x", "threads": 1e400}\n',
    "digits": b'{"seed": ' + b"9" * 5000 + b', "device": "cpu"}',
    "list": b"[1, 2, 3]",
}


@pytest.mark.parametrize("name", ODD_FILES)
def test_odd_files_are_not_added(folder: Path, run: Run, name: str) -> None:
    database, path = folder / "team.db", folder / "odd"
    run("db", "init", "--db", database)
    path.write_bytes(ODD_FILES[name])
    result = run("db", "add", path, "--db", database)
    assert result.code in (2, 4), result.err
    assert json.loads(run("db", "list", "--json", "--db", database).out) == []


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:3000])


def _overwritten(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[5000:] = b"\xff" * (len(data) - 5000)
    path.write_bytes(data)


def _edited(path: Path) -> None:
    connection = sqlite3.connect(path)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
    for table, column in (
        ("records", "content"),
        ("kernels", "row"),
        ("overheads", "row"),
        ("trial_user_attributes", "value_json"),
        ("study_user_attributes", "value_json"),
    ):
        if table in tables:
            connection.execute(f"UPDATE {table} SET {column} = 'x{{'")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("damage", [_truncated, _overwritten, _edited])
def test_a_damaged_database_is_named(
    folder: Path, run: Run, damage: Callable[[Path], None]
) -> None:
    path = folder / "team.db"
    stores.database(path)
    damage(path)
    codes = []
    for words in (("list",), ("kernels",), ("hosts", "--figures"), ("export",)):
        result = run("db", *words, "--db", path)
        codes.append(result.code)
        assert result.code in (0, 2, 4), result.err
    assert 4 in codes or 2 in codes


@pytest.mark.parametrize("damage", [_truncated, _overwritten, _edited])
def test_a_damaged_study_is_named(folder: Path, run: Run, damage: Callable[[Path], None]) -> None:
    path = folder / "study.db"
    stores.study(path)
    damage(path)
    words = [str(folder / word) if "." in word else word for word in stores.TUNE]
    result = run(*words, "--storage", f"sqlite:///{path}")
    assert result.code in (2, 4)
    assert "study.db" in result.err or "study" in result.err


def test_a_record_of_an_unknown_kind_is_named(folder: Path, run: Run) -> None:
    path = folder / "team.db"
    stores.database(path)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE records SET kind = 'x'")
    connection.commit()
    connection.close()
    result = run("db", "export", "--db", path)
    assert result.code == 4
    assert "was changed: its hash does not match" in result.err


def test_empty_tensors_are_executed(folder: Path, run: Run) -> None:
    """An empty input in a concatenation, as a program without extra rows has it."""
    pytest.importorskip("torch")
    path = folder / "empty.ir"
    path.write_text(
        'model "empty" { format = 1  dims = {B = 4} }\n\ndevice @gpu0 "v100"\n'
        "input %x : f32[B, 8] in $x\ninput %e : f32[0, 8] in $e\n\n"
        "%y = aten.cat([%x, %e]) : f32[B, 8] in $y\n%z = aten.relu(%y) : f32[B, 8] in $z\n"
    )
    assert run("check", path, path).code == 0


def test_a_trace_without_a_complete_step_is_no_replay(folder: Path, run: Run) -> None:
    """All launches are in the file, and it is cut off before their kernels."""
    found = sorted(events(), key=lambda event: event["cat"] == "kernel")
    whole = text(found)
    path = folder / "cut.json"
    path.write_text(whole[: whole.index("void aten_linear_kernel") - 40])
    result = run("replay", path, "--json")
    assert result.code in (3, 4)


def test_deep_toml_is_refused(folder: Path, run: Run) -> None:
    path = folder / "deep.toml"
    path.write_text("dims.B = " + "[" * 100_000)
    result = run("tune", folder / "plain.ir", "--space", path)
    assert result.code == 4
    assert "deep.toml: error: not TOML: it is nested too deeply" in result.err


def _limited(*words: object, nbytes: int) -> subprocess.CompletedProcess[str]:
    """Run a command whose files may have at most so many bytes, as on a full disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))

    command = [sys.executable, "-m", "irgraph", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, preexec_fn=limit, check=False, timeout=300
    )


def test_a_full_disk_leaves_what_was_there(folder: Path, run: Run) -> None:
    database, part = folder / "team.db", folder / "sound.parquet"
    stores.database(database)
    stores.sweep_part(part)
    table = folder / "host.json"
    table.write_bytes((ROOT / "costmodels/hosts/h100-torch-2.11.json").read_bytes())
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    swept = [str(folder / w) if w in ("plain.ir", "swept") else w for w in stores.SWEEP]
    kineto = ROOT / "costmodels/evaluate/data/dlrm_default.ir"
    for words, limit in (
        (("db", "add", table, "--db", database), 4096),
        (("fmt", folder / "plain.ir"), 16),
        (("opt", kineto, "--pass", "clean-copies", "-o", folder / "plain.ir"), 512),
        (("sweep", *swept[1:4], "--dim", "B=1,2,3", "-o", folder / "other", "--workers", "0"), 64),
    ):
        result = _limited(*words, nbytes=limit)
        assert result.returncode in (0, 1, 2, 4), result.stderr
        assert "internal error" not in result.stderr
    for path, content in before.items():
        if path != database:
            assert path.read_bytes() == content, path
    assert len(json.loads(run("db", "list", "--json", "--db", database).out)) in (2, 3)


def test_a_full_disk_loses_no_trial(folder: Path) -> None:
    path = folder / "study.db"
    stores.study(path)
    words = [str(folder / word) if "." in word else word for word in stores.TUNE]
    words[words.index("--trials") + 1] = "100"
    room = path.stat().st_size + 60_000
    result = _limited(*words, "--storage", f"sqlite:///{path}", nbytes=room)
    assert result.returncode == 4
    assert "cannot be used: " in result.stderr and "disk" in result.stderr
    assert "Traceback" not in result.stderr
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT COUNT(*) FROM trials WHERE state = 'COMPLETE'"
        assert connection.execute(query).fetchone()[0] > 2


def test_a_home_that_cannot_be_written(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    assert run("predict", folder / "plain.ir").code == 0
    assert run("fmt", folder / "plain.ir").code == 0


@pytest.mark.parametrize("time", [0, 4e9])
def test_clocks_that_jump_change_nothing(folder: Path, run: Run, time: float) -> None:
    """Files from 1970 or from the next century are read like others, and continued."""
    stores.sweep_part(folder / "sound.parquet")
    links = folder / "links.json"
    stores.fabric(links)
    words = [str(folder / w) if w in ("plain.ir", "swept") else w for w in stores.SWEEP]
    predict = ("predict", folder / "plain.ir", "--ranks", "2", "--fabric", links, "--json")
    expected = run(*predict).out
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (time, time))
    assert run(*predict).out == expected
    result = run(*words)
    assert result.code == 0
    assert json.loads(result.out)["chunks_known"] == 1
