"""Discovers the commands, one per file of the command folders, without importing them.

``irgraph --help`` shows some thirty commands and runs none, so a file is read as text; it is
imported when its command runs. A file ``NAME.py`` contains

- ``PANEL = "..."``, its section of the help, one of ``PANELS``;
- ``def NAME(...) -> None``, whose docstring starts with the summary for the help;
- ``COMMAND = ...`` if the command needs its own class;
- ``APP = ...`` if it is a group of commands, whose callback is ``NAME``.

Files whose names begin with an underscore are not commands.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from irgraph.backend import backend_name

if TYPE_CHECKING:
    from types import ModuleType

PACKAGES = ("irgraph.cli.commands", "irgraph.studio.commands", f"{backend_name()}.commands")
"""Packages of commands: of irgraph, of the studio, which is a layer above it, and of the cost
models."""

PANELS = ("models", "transform", "predict", "traces", "cost models", "evaluate")
"""Groups of commands, in the order of the help."""

_PANEL = re.compile(r'^PANEL = "(.+)"$', re.MULTILINE)
_SUMMARY = re.compile(r'def \w+\(.*?\) -> None:\n    """(.+?)(?:"""|\n)', re.DOTALL)


class CommandEntry(NamedTuple):
    """A command in the help.

    Attributes:
        name: name on the command line, with dashes.
        panel: its group in the help.
        summary: the first line of its docstring.
        module: name of the module that implements it.
    """

    name: str
    panel: str
    summary: str
    module: str

    def load(self) -> ModuleType:
        """Return the module of the command."""
        return import_module(self.module)


@cache
def entries() -> dict[str, CommandEntry]:
    """Return all commands by name, in the order of panels and alphabetically in each.

    Raises ``ValueError`` for a file without a valid ``PANEL`` or without a documented function.
    """
    result = [_entry(path, package) for package in PACKAGES for path in _command_files(package)]
    result.sort(key=lambda entry: (PANELS.index(entry.panel), entry.name))
    return {entry.name: entry for entry in result}


def _command_files(package: str) -> list[Path]:
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    paths = (path for folder in folders or () for path in Path(folder).glob("*.py"))
    return [path for path in paths if not path.name.startswith("_")]


def _entry(path: Path, package: str) -> CommandEntry:
    text = path.read_text(encoding="utf-8")
    panel = _PANEL.search(text)
    if panel is None or panel[1] not in PANELS:
        raise ValueError(f'{path}: a command needs PANEL = "...", one of {", ".join(PANELS)}')
    summary = _SUMMARY.match(text, text.find(f"\ndef {path.stem}(") + 1)
    if summary is None:
        raise ValueError(f"{path}: a command needs def {path.stem}(...) -> None with a docstring")
    return CommandEntry(path.stem.replace("_", "-"), panel[1], summary[1], f"{package}.{path.stem}")
