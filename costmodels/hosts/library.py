"""Finds host tables: the shipped ones and those of installed packages."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from irgraph.plugins import plugins

GROUP = "irgraph.hosts"
"""Entry points of this group name packages whose folders hold more tables."""


@cache
def host_files() -> dict[str, Path]:
    """Return the files of host tables by name, which is the stem of the file's name.

    Raises ``IrgraphError`` if an installed table has the name of another table.
    """
    files = {path.stem: path for path in Path(__file__).parent.glob("*.json")}
    for plugin in plugins(GROUP):
        added = {path.stem: path for path in plugin.files(".json")}
        plugin.refuse_duplicates(added, files, "host table")
        files |= added
    return files
