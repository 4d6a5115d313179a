"""Files in the folder that the studio was started in, the only folder that it writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from irgraph import IrgraphError
from irgraph.diagnostics import fail
from irgraph.files import write_atomic

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. +=,@-]{0,119}")
"""Names that files may have: without a folder, and not hidden."""

SUFFIXES = {"script": ".irg", "model": ".ir"}


class FileConflictError(IrgraphError):
    """Raised if a file exists already and may not be replaced."""


def path_of(folder: Path, name: str, kind: str) -> Path:
    """Return the path of a file of the folder.

    Args:
        folder: the folder of the file.
        name: the file's name.
        kind: a key of ``SUFFIXES``.

    Raises:
        IrgraphError: the name is not valid for a file of this folder and kind, or it is the name of
            a link or of something that is no file.
    """
    suffix = SUFFIXES[kind]
    if not NAME.fullmatch(name) or not name.endswith(suffix) or name == suffix:
        hint = f"a name such as edited{suffix}: letters, digits, . _ + - and no folder"
        raise fail(f"{name!r} is not the name of a {kind} in this folder", hint=hint, exit_code=2)
    path = folder / name
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise fail(f"{name!r} is a link or a folder: it is not replaced", exit_code=2)
    return path


def write(folder: Path, files: Mapping[str, tuple[str, str]], *, replace: bool) -> list[Path]:
    """Write files, each whole or not at all, after all of their names have been checked.

    Args:
        folder: the folder of the files.
        files: name and text of each kind.
        replace: whether existing files may be replaced.

    Returns:
        The paths, in the same order.

    Raises:
        FileConflictError: a file exists already.
        IrgraphError: a name is refused, or a file cannot be written.
    """
    paths = [path_of(folder, name, kind) for kind, (name, _) in files.items()]
    existing_names = [path.name for path in paths if path.exists()]
    if existing_names and not replace:
        raise FileConflictError(fail(f"{', '.join(existing_names)}: there already").diagnostics, 2)
    for path, (_, text) in zip(paths, files.values(), strict=True):
        write_atomic(path, text)
    return paths
