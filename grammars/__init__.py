"""The grammars of ``model.ir`` and of the transformation language, and their loader."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lark import Lark

FOLDER = Path(__file__).parent


@cache
def load(name: str, start: str = "start") -> Lark:
    """Return the LALR parser of a rule of ``model`` or ``transform``, built once a process.

    Trees carry positions. Lark keeps the built tables in the user's temporary folder, so that
    later processes start faster; where that cannot be written it builds them anew.
    """
    from lark import Lark

    try:
        return _open(Lark, name, start, cached=True)
    except OSError:
        return _open(Lark, name, start, cached=False)


def _open(lark: type[Lark], name: str, start: str, cached: bool) -> Lark:
    return lark.open(
        str(FOLDER / f"{name}.lark"),
        parser="lalr",
        start=start,
        propagate_positions=True,
        maybe_placeholders=True,
        cache=cached,
    )
