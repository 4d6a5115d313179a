"""Sentences on the legality of a statement's changes, compared by value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from irgraph.verbs.meanings import MeaningComparison


class Sentences(TypedDict):
    """Fields of an entry."""

    legal: tuple[str, ...]
    unproven: tuple[str, ...]
    uncompared: tuple[str, ...]


@dataclass
class Legality:
    """Collects a sentence for each change.

    Attributes:
        legal: reasons of changes whose results are equal.
        unproven: reasons of other changes.
        uncompared: reasons why a required comparison failed.
    """

    legal: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    uncompared: list[str] = field(default_factory=list)

    def add(self, comparison: MeaningComparison, reason: str, *, is_required: bool = True) -> None:
        """Add a change, given the comparison and why dependences allow it.

        ``is_required`` if the change must preserve results.
        """
        if comparison.unknown:
            self.uncompared += [comparison.unknown] if is_required else []
            outcome = f"meaning not compared ({comparison.unknown})"
        elif comparison.difference:
            outcome = f"results change (%{comparison.result} {comparison.difference})"
        else:
            rounding = f"; equal within {comparison.rounding}" if comparison.rounding else ""
            self.legal.append(f"{reason}{rounding}")
            return
        self.unproven.append(f"dependences allow it: {reason}; {outcome}")

    def sentences(self) -> Sentences:
        """Return the fields of the statement's entry."""
        return Sentences(
            legal=tuple(self.legal),
            unproven=tuple(self.unproven),
            uncompared=tuple(self.uncompared),
        )
