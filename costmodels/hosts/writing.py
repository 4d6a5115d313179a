"""Writes host tables to the folder of the shipped ones."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from irgraph.overheads.format import HostFile


def encode(file: HostFile) -> bytes:
    """Return a table as indented JSON; numbers are not rounded."""
    return msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n"


def write(files: Iterable[HostFile]) -> None:
    """Write tables to the folder of the shipped ones."""
    for file in files:
        (Path(__file__).parent / f"{file.name}.json").write_bytes(encode(file))
