"""Files that this process has open."""

from __future__ import annotations

import contextlib
from pathlib import Path


def open_paths(path: Path) -> list[str]:
    """Return the open files whose paths begin with a path, such as a database's and its log's."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        return []
    targets = []
    for descriptor in folder.iterdir():
        with contextlib.suppress(OSError):
            targets.append(str(descriptor.readlink()))
    return sorted(target for target in targets if target.startswith(str(path)))
