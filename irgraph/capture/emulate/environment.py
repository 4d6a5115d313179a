"""Environment of a captured program that is one process of many, as ``torchrun`` sets it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from unittest import mock

from msgspec import Struct

from irgraph.diagnostics import fail
from irgraph.ir.ranks import read_layout


class Process(Struct, frozen=True):
    """The captured process of a program that runs in several processes.

    Attributes:
        ranks: number of ranks, as ``8``, or machines times ranks on each: ``2x8``.
        rank: the captured rank, from 0.
    """

    ranks: int | str
    rank: int = 0

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables that ``torchrun`` sets for the process.

        Raises ``IrgraphError`` (exit code 2) if the rank does not exist.
        """
        layout = read_layout(self.ranks)
        if not 0 <= self.rank < layout.ranks:
            message = f"rank: there is no rank {self.rank} among {layout.ranks}"
            raise fail(message, hint=f"ranks go from 0 to {layout.ranks - 1}", exit_code=2)
        machine, local = divmod(self.rank, layout.local)
        variables = {
            "RANK": self.rank,
            "WORLD_SIZE": layout.ranks,
            "LOCAL_RANK": local,
            "LOCAL_WORLD_SIZE": layout.local,
            "GROUP_RANK": machine,
            "GROUP_WORLD_SIZE": layout.ranks // layout.local,
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": 29500,
        }
        return {name: str(value) for name, value in variables.items()}


def process_of(ranks: int | str | None, rank: int) -> Process | None:
    """Return the process that options specify, ``None`` if they specify none.

    Raises ``IrgraphError`` (exit code 2) for a rank without a number of ranks.
    """
    if ranks is None and rank:
        hint = "also give the number of ranks: 16, or 2x8 (machines x ranks)"
        raise fail(f"rank {rank} is given without ranks", hint=hint, exit_code=2)
    return None if ranks is None else Process(ranks, rank)


@contextlib.contextmanager
def as_process(process: Process | None) -> Iterator[None]:
    """Set the environment variables of a process within the context, if one is specified."""
    with mock.patch.dict(os.environ, process.environment() if process else {}):
        yield


def local_rank() -> int:
    """Return this process's rank on its machine, which is also the number of its card."""
    return _variable("LOCAL_RANK", 0)


def card_count() -> int:
    """Return the number of cards of this process's machine."""
    return max(_variable("LOCAL_WORLD_SIZE", 1), local_rank() + 1)


def _variable(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else default
