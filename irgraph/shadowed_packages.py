"""A check for user files that hide one of irgraph's top-level packages."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from irgraph.backend import DEFAULT, VARIABLE
from irgraph.diagnostics import fail

PACKAGES = ("passes", "grammars", DEFAULT)
"""Top-level packages other than ``irgraph``, which Python looks for next to a script first; the
last one is not used if the environment names other cost models."""


@cache
def check_packages() -> None:
    """Raise ``IrgraphError`` (exit code 2) if a file hides one of irgraph's packages.

    A check that passes is not repeated; one that fails is.
    """
    home = Path(__file__).parent.parent
    uses_default = os.environ.get(VARIABLE, DEFAULT) == DEFAULT
    for name in PACKAGES if uses_default else PACKAGES[:-1]:
        shipped_file = home / name / "__init__.py"
        imported_file = Path(_file_of(name) or shipped_file)
        if shipped_file.exists() and imported_file.resolve() != shipped_file.resolve():
            is_folder = imported_file.name == "__init__.py"
            path = imported_file.parent if is_folder else imported_file
            message = f"{path} hides irgraph's own package {name!r}"
            hint = "rename the folder" if is_folder else "rename the file"
            raise fail(message, hint=hint, exit_code=2)


def _file_of(name: str) -> str:
    """Return the file that Python imports for a module, ``""`` if there is none."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # a module without an origin, as in some tests and tools
        return ""
    return spec.origin or "" if spec else ""
