"""Programs of torch.export whose files say more than a program should."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

Edit = Callable[[str, bytes], tuple[str, bytes]]


def rewritten(
    path: Path,
    edit: Edit,
    more: dict[str, bytes] | None = None,
    compression: int = zipfile.ZIP_STORED,
) -> Path:
    """Rewrite the members of an archive: ``edit`` takes and returns the name below its folder.

    ``more`` are members to add. Returns the file, for chains.
    """
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    root = next(iter(members)).partition("/")[0]
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            new, data = edit(name.partition("/")[2], content)
            archive.writestr(f"{root}/{new}", data)
        for name, data in (more or {}).items():
            archive.writestr(f"{root}/{name}", data)
    return path


def saying(path: Path, before: str, after: str) -> Path:
    """Replace words in the program of an archive."""

    def edit(name: str, content: bytes) -> tuple[str, bytes]:
        if name != "models/model.json":
            return name, content
        assert before.encode() in content, f"{before} is not in the program"
        return name, content.replace(before.encode(), after.encode())

    return rewritten(path, edit)
