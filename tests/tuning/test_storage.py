"""Storages of studies: no connection outlives an error, and no heartbeat fails unseen."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from irgraph.diagnostics import IrgraphError
from irgraph.tuning.damage import refuse_damaged_study
from irgraph.tuning.study import Study
from tests.descriptors import open_paths
from tests.tuning.spaces import small


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _scrambled(path: Path) -> None:
    path.write_bytes(b"\xff" * 8000)


def _of_another_version(path: Path) -> None:
    _execute(path, "UPDATE alembic_version SET version_num = 'x'")


def _without_points(path: Path) -> None:
    _execute(path, "UPDATE trial_user_attributes SET value_json = '{'")


def _of_another_space(path: Path) -> None:
    _execute(path, "UPDATE study_user_attributes SET value_json = '\"x\"'")


def _execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    "damage", [_cut, _scrambled, _of_another_version, _without_points, _of_another_space]
)
def test_a_damaged_study_is_not_left_open(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path, space = tmp_path / "study.db", small()
    url = f"sqlite:///{path}"
    with closing(Study(space, storage=url, seed=0)) as study:
        study.run(2)
    assert open_paths(path) == []
    damage(path)
    with pytest.raises(IrgraphError) as error, refuse_damaged_study(url):
        Study(space, storage=url, seed=0).run(4)
    assert error.value.exit_code in (2, 4)
    assert open_paths(path) == []


def test_a_failed_heartbeat_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All other tables are sound, so that only the thread of heartbeats notices."""
    path, uncaught = tmp_path / "study.db", []
    monkeypatch.setattr(threading, "excepthook", uncaught.append)
    url = f"sqlite:///{path}"
    with closing(Study(small(), storage=url, seed=0)) as study:
        study.run(1)
    _execute(path, "DROP TABLE trial_heartbeats")
    _execute(path, "CREATE TABLE trial_heartbeats (x INTEGER)")
    message = "the study in .* is damaged: StorageInternalError"
    with pytest.raises(IrgraphError, match=message), refuse_damaged_study(url):
        Study(small(), storage=url, seed=0).run(3)
    assert uncaught == []
