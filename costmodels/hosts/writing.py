"""Writing host tables to the folder of those that ship."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from irgraph.overheads.format import HostFile


def encode(file: HostFile) -> bytes:
    """Return a table as JSON, indented, figures to the last digit."""
    return msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n"


def write(files: Iterable[HostFile]) -> None:
    """Write tables to the folder of those that ship."""
    for file in files:
        (Path(__file__).parent / f"{file.name}.json").write_bytes(encode(file))
