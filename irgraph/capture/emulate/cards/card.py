"""The card whose properties an emulation reports to a program."""

from __future__ import annotations

from msgspec import Struct

from irgraph.backend import backend
from irgraph.diagnostics import fail

TARGET = "sm_"
"""Prefix of the compilation targets of cards that run CUDA."""

NO_CUDA = "a capture emulates cuda, and {} runs {}"


class EmulatedCard(Struct, frozen=True):
    """Properties of a card.

    Attributes:
        sheet: name of its device sheet.
        target: compilation target of its kernels, such as ``sm_80``.
        sms: number of its multiprocessors.
        memory: its memory, in bytes.
    """

    sheet: str = "A100-SXM4-80GB"
    target: str = "sm_80"
    sms: int = 108
    memory: int = 80 * 2**30

    @property
    def name(self) -> str:
        """The name that its driver reports."""
        return f"NVIDIA {self.sheet}"

    @property
    def capability(self) -> tuple[int, int]:
        """Its compute capability, such as ``(8, 0)``."""
        return divmod(int(self.target.removeprefix(TARGET)), 10)


def card_by_name(name: str | None) -> EmulatedCard | None:
    """Return the card of a device sheet, ``None`` without a name.

    Raises ``IrgraphError`` (exit code 2) for an unknown sheet, or a card that does not run CUDA.
    """
    if not name:
        return None
    facts = backend().device(name)
    if not facts.target.startswith(TARGET):
        message = NO_CUDA.format(facts.name, facts.target or "no kernels of CUDA")
        raise fail(message, hint="name one of NVIDIA's cards, such as h100", exit_code=2)
    return EmulatedCard(facts.name, facts.target, facts.sms, facts.memory_bytes)
