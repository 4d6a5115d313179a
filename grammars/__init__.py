"""The grammars of ``model.ir`` and of the transformation language, and their loader."""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from lark import Lark

FOLDER = Path(__file__).parent

_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError)


@cache
def load(name: str, start: str = "start") -> Lark:
    """Return the LALR parser of a rule of ``model`` or ``transform``, built once a process.

    Trees carry positions. The built tables are kept as JSON in the user's cache, so that later
    processes start faster; where nothing can be kept they are built anew.
    """
    folder = _private_folder()
    file = folder / f"{name}-{start}-{_version()}.json" if folder else None
    found = _read(file) if file else None
    if found is not None:
        return found
    parser = _built(name, start)
    if file:
        _keep(parser, file)
    return parser


@cache
def _version() -> str:
    """Return what the tables depend on: the grammars and Lark's version, as a hash."""
    import hashlib

    import lark

    texts = [path.read_bytes() for path in sorted(FOLDER.glob("*.lark"))]
    return hashlib.sha256(b"\0".join((lark.__version__.encode(), *texts))).hexdigest()[:16]


def _read(file: Path) -> Lark | None:
    """Return a parser from tables that were kept, or nothing where they are missing or damaged."""
    from lark import Lark

    try:
        data, memo = json.loads(file.read_bytes())
        tables = data["parser"]["parser"]
        states = {int(state): _numbered(row) for state, row in tables["states"].items()}
        tables |= {"states": states, "tokens": _numbered(tables["tokens"])}
        load: Callable[..., Lark] = Lark._load_from_dict  # as parsers that Lark generates do
        return load(data, _numbered(memo))
    except (OSError, *_DAMAGED):
        return None


def _numbered(row: dict[str, object]) -> dict[int, object]:
    """Return an object of JSON whose keys are numbers again."""
    return {int(key): value for key, value in row.items()}


def _keep(parser: Lark, file: Path) -> None:
    """Keep a parser's tables in place of those of older grammars."""
    from lark.grammar import Rule
    from lark.lexer import TerminalDef

    text = json.dumps(parser.memo_serialize([TerminalDef, Rule]), separators=(",", ":"))
    with suppress(OSError):
        for old in file.parent.glob(f"{file.name.rpartition('-')[0]}-*.json"):
            old.unlink(missing_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(text, "utf-8")
        temporary.replace(file)


def _private_folder() -> Path | None:
    """Return the user's cache folder if nobody else can put anything there."""
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


def _built(name: str, start: str) -> Lark:
    from lark import Lark
    from lark.exceptions import GrammarError

    file = FOLDER / f"{name}.lark"
    try:
        return Lark.open(
            str(file),
            parser="lalr",
            start=start,
            propagate_positions=True,
            maybe_placeholders=True,
        )
    except GrammarError as error:
        raise GrammarError(f"{file.parent.name}/{file.name}: {error}") from error
