"""Plug-ins of installed packages: entry points of the groups ``irgraph.*``, and their errors.

Names are unique: a plug-in must not use a name that ships or that another package has.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from msgspec import Struct

from irgraph.diagnostics import IrgraphError, fail


class Plugin(Struct, frozen=True):
    """An entry point of an installed package.

    Attributes:
        group: group of the entry point, such as ``irgraph.families``.
        name: name of the entry point.
        module: the module that it names.
        package: the distribution that declares it, with its version.
    """

    group: str
    name: str
    module: str
    package: str

    def load(self) -> ModuleType:
        """Import the module. Raises ``IrgraphError`` that names the package if that fails."""
        try:
            return import_module(self.module)
        except Exception as error:  # any error of the module's code
            raise self.error(f"{self.module} cannot be imported: {_reason(error)}") from error

    def folders(self) -> list[Path]:
        """Return the module's folders. Raises ``IrgraphError`` as ``load`` does."""
        return [Path(folder) for folder in getattr(self.load(), "__path__", ())]

    def files(self, suffix: str) -> list[Path]:
        """Return the files in the module's folders. Raises ``IrgraphError`` as ``load`` does."""
        return sorted(path for folder in self.folders() for path in folder.glob(f"*{suffix}"))

    def error(self, message: str) -> IrgraphError:
        """Return an error whose message names the package at fault."""
        hint = f"mend or uninstall the package; its entry point is in the group {self.group}"
        text = f"plug-in {self.name!r} of {self.package}: {message}"
        return fail(text, hint=hint, exit_code=2)

    def refuse_duplicates(self, names: Iterable[str], existing: Iterable[str], noun: str) -> None:
        """Raise ``IrgraphError`` if one of its names is in use; ``noun`` is its kind."""
        duplicates = sorted(set(names) & set(existing))
        if duplicates:
            raise self.error(f"there is another {noun} {', '.join(map(repr, duplicates))} already")


@cache
def plugins(group: str) -> tuple[Plugin, ...]:
    """Return the plug-ins of a group of entry points, in order of their names."""
    if f"[{group}]" not in _declarations():
        return ()
    from importlib.metadata import entry_points

    unsorted = [
        Plugin(group, point.name, point.module, f"{point.dist.name} {point.dist.version}")
        for point in entry_points(group=group)
        if point.dist is not None
    ]
    return tuple(sorted(unsorted, key=lambda plugin: (plugin.name, plugin.package)))


@cache
def _declarations() -> str:
    """Return the text of all installed packages' files of entry points.

    Importing ``importlib.metadata`` takes half as long as importing numpy, for lists that are
    nearly always empty: the files that it would parse are searched for a group's name first.
    """
    folders = (Path(folder or ".") for folder in sys.path)
    files = (file for folder in folders for file in folder.glob("*.*-info/entry_points.txt"))
    return "\n".join(file.read_text("utf-8", "replace") for file in files)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
