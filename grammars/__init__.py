"""The grammars of ``model.ir`` and of the transformation language, and their loader."""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lark import Lark

FOLDER = Path(__file__).parent


@cache
def load(name: str, start: str = "start") -> Lark:
    """Return the LALR parser of a rule of ``model`` or ``transform``, built once a process.

    Trees carry positions. The built tables are kept in a folder that only the user can write, so
    that later processes start faster; where there is none they are built anew.
    """
    from lark import Lark

    folder = _private_folder()
    try:
        return _open(Lark, name, start, str(folder / f"{name}-{start}.lark") if folder else False)
    except OSError:
        return _open(Lark, name, start, False)


def _private_folder() -> Path | None:
    """Return the user's cache folder if nobody else can put anything there: tables are code."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    folder = Path(home) / "irgraph"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return None
    others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    mine = status.st_uid == os.getuid() if hasattr(os, "getuid") else True
    return folder if mine and not others else None


def _open(lark: type[Lark], name: str, start: str, cached: str | bool) -> Lark:
    from lark.exceptions import GrammarError

    file = FOLDER / f"{name}.lark"
    try:
        return lark.open(
            str(file),
            parser="lalr",
            start=start,
            propagate_positions=True,
            maybe_placeholders=True,
            cache=cached,
        )
    except GrammarError as error:
        raise GrammarError(f"{file.parent.name}/{file.name}: {error}") from error
