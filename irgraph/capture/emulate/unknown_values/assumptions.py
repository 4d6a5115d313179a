"""Assumptions about values that a program reads and that are unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from irgraph.diagnostics import fail

ROUNDS = 10
"""Default number of rounds of a loop that ends by an unknown value."""

WORDS = {"false": 0, "true": 1}

USAGE = "write the line of the program that reads the value: --assume train.py:12=false"


class Assumptions(Struct, frozen=True):
    """Values that are assumed for unknown ones.

    Attributes:
        rounds: number of rounds of a loop that ends by an unknown value.
        by_line: value that is read at a line, by the name of the file and the line.
    """

    rounds: int = ROUNDS
    by_line: Mapping[tuple[str, int], float] = {}

    def at_line(self, path: str, line: int) -> float | None:
        """Return the value specified for a line of a file, ``None`` if there is none."""
        if not self.by_line:
            return None
        return self.by_line.get((Path(path).name, line))


def read_assumptions(texts: Sequence[str], rounds: int = ROUNDS) -> Assumptions:
    """Return assumptions written as ``train.py:12=false`` or ``train.py:12=3.5``.

    Raises ``IrgraphError`` (exit code 2) for text that cannot be read, or no rounds.
    """
    if rounds < 1:
        raise fail(f"rounds: {rounds} is less than 1", exit_code=2)
    return Assumptions(rounds, dict(map(_read, texts)))


def _read(text: str) -> tuple[tuple[str, int], float]:
    location, _, value = text.rpartition("=")
    path, _, line = location.rpartition(":")
    try:
        number = WORDS.get(value.strip().lower())
        key = (Path(path).name, int(line))
        if not key[0]:
            raise ValueError
        return key, float(value) if number is None else number
    except ValueError:
        raise fail(f"cannot read the assumption {text!r}", hint=USAGE, exit_code=2) from None
