"""The host table of a GPU of our own measurements."""

from __future__ import annotations

from costmodels.hosts.rented_gpu import TABLES, merged_table, step_tables
from irgraph.overheads.table import load_host


def test_the_shipped_table_is_what_its_traces_give() -> None:
    for name, device in TABLES.items():
        assert merged_table(name, device) == load_host(name).file


def test_leaves_out_a_model_and_all_its_variants() -> None:
    names = {table.name for table in step_tables("h100-80gb-hbm3")}
    others = {table.name for table in step_tables("h100-80gb-hbm3", "gpt")}
    assert names - others == {name for name in names if name.startswith("gpt@")}
    assert len(names - others) == 5
