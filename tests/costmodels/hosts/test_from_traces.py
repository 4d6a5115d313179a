"""The host tables that ship are what the published traces give."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodels.hosts.from_traces import TABLES, tables
from irgraph.overheads.format import HostFile
from irgraph.overheads.table import load_host


@pytest.mark.data
@pytest.mark.slow
def test_shipped_tables_can_be_made_again(data_dir: Path) -> None:
    made: dict[str, HostFile] = {file.name: file for file in tables(data_dir)}
    assert list(made) == [name for name, *_ in TABLES]
    for name, file in made.items():
        assert file == load_host(name).file
