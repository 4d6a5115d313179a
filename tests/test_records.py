"""Graphs, and all that steps of the pipeline hand on, are immutable."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages

import pytest
from msgspec import Struct

PACKAGES = ("irgraph.ir", "irgraph.schedule", "irgraph.verbs", "costmodels.families")


def records(package: str) -> Iterator[type[Struct]]:
    """Yield the records that the files of a package define."""
    for found in walk_packages(import_module(package).__path__, f"{package}."):
        classes = (v for v in vars(import_module(found.name)).values() if isinstance(v, type))
        ours = (one for one in classes if one.__module__ == found.name)
        yield from (one for one in ours if issubclass(one, Struct))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_record_does_not_change(package: str) -> None:
    changing = [record for record in records(package) if not record.__struct_config__.frozen]
    assert changing == []
