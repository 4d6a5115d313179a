"""Files of a user's own that hide one of the packages irgraph is installed with."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from irgraph.backend import DEFAULT, VARIABLE
from irgraph.diagnostics import fail

PACKAGES = ("passes", "grammars", DEFAULT)
"""Top-level packages beside ``irgraph``, which Python looks for next to a script first; the last is
not used where the environment names other cost models."""


@cache
def check_packages() -> None:
    """Raise ``IrgraphError`` (exit code 2) where a file hides one of irgraph's packages.

    It looks once; a process that was refused is refused again.
    """
    home = Path(__file__).parent.parent
    uses_default = os.environ.get(VARIABLE, DEFAULT) == DEFAULT
    for name in PACKAGES if uses_default else PACKAGES[:-1]:
        shipped_file = home / name / "__init__.py"
        imported_file = Path(_file_of(name) or shipped_file)
        if shipped_file.exists() and imported_file.resolve() != shipped_file.resolve():
            is_folder = imported_file.name == "__init__.py"
            message = f"{imported_file.parent if is_folder else imported_file} hides irgraph's own package {name!r}"
            hint = "rename the folder" if is_folder else "rename the file"
            raise fail(message, hint=hint, exit_code=2)


def _file_of(name: str) -> str:
    """Return the file that Python takes for a module, ``""`` where it has none."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # made without a place, as some tests and tools do
        return ""
    return spec.origin or "" if spec else ""
