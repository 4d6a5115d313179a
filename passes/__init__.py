"""The standard library of transformations, one pass per file ``name.irg``, and its look-up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from irgraph.plugins import plugins

SUFFIX = ".irg"
GROUP = "irgraph.passes"
"""Entry points of this group name packages whose folders hold more passes."""


@dataclass(frozen=True)
class PassFile:
    """A file with one pass, whose name it has."""

    name: str
    source: str
    text: str


def folders(paths: Sequence[str | Path] = ()) -> Iterator[Path]:
    """Yield the folders of passes: the given ones, the shipped one, and other packages' folders.

    Raises ``IrgraphError`` if a package cannot be imported.
    """
    yield from map(Path, paths)
    yield Path(__file__).parent
    for plugin in plugins(GROUP):
        yield from plugin.folders()


def files(paths: Sequence[str | Path] = ()) -> dict[str, Path]:
    """Return the file of every pass by its name; earlier folders have precedence."""
    path_by_name: dict[str, Path] = {}
    for folder in folders(paths):
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            path_by_name.setdefault(path.stem, path)
    return path_by_name


def names(paths: Sequence[str | Path] = ()) -> tuple[str, ...]:
    """Return the names of all passes, sorted."""
    return tuple(sorted(files(paths)))


def find(name: str, paths: Sequence[str | Path] = ()) -> PassFile | None:
    """Return the file of a pass, ``None`` if no folder has one of that name.

    Raises ``OSError`` or ``UnicodeDecodeError`` if the file cannot be read.
    """
    if Path(name).name != name:
        return None
    for folder in folders(paths):
        path = folder / f"{name}{SUFFIX}"
        if path.is_file():
            return PassFile(name, str(path), path.read_text(encoding="utf-8"))
    return None
