"""Measurement campaigns: the measured cards and the reader of their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct, field

from costmodels.devices.sheet import DeviceSheet
from costmodels.learnable.hardware import SIBLINGS, THROTTLED, TRAINING_CARDS, Hardware, hardware
from costmodels.learnable.measurements import Measurements, read_measurements

Reader: TypeAlias = Callable[[Path, str, "tuple[str, ...]", "tuple[str, ...]"], Measurements]
"""From a folder, a family's name, its ops and its sizes to measurements."""


class Campaign(Struct, frozen=True):
    """Measurements of several cards by one method.

    Attributes:
        cards: the measured cards, in the order of their indicators.
        siblings: variants by name, each with the measured card that represents it.
        throttled: measured cards from which nothing is concluded for other cards.
        held_out_groups: groups of cards to hold out of training together, to estimate the error
            on an unseen card.
        read: reader of a family's table.
        tables: whether rows come from several tables of other campaigns, not from ``kernels/``;
            they are evaluated by card and by how shapes are held out
            (``irgraph evaluate modern``).
        pairs: sizes whose values group the rows to hold out together; empty for all sizes.
        repeat: weight in training of the rows of an op with few rows.
        dtypes: tensor types of the measured kernels.
        priced_ops: ops that pricing queries; empty for all. They determine the intervals on
            unseen cards.
        op_cards: cards on which an op was measured, of ops that were not measured on all.
        op_profiles: software profiles whose kernels were measured, of ops whose kernels later
            releases replaced.
        targets: compilation targets (``DeviceSheet.target``) of unseen cards that a model covers;
            empty if it covers measured cards alone.
    """

    cards: tuple[str, ...] = TRAINING_CARDS
    siblings: Mapping[str, str] = field(default_factory=lambda: SIBLINGS)
    throttled: tuple[str, ...] = THROTTLED
    held_out_groups: tuple[tuple[str, ...], ...] = tuple(
        (n,) for n in TRAINING_CARDS if n not in THROTTLED
    )
    read: Reader = read_measurements
    tables: bool = False
    pairs: tuple[str, ...] = ()
    repeat: Mapping[str, int] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("f32",)
    priced_ops: tuple[str, ...] = ()
    op_cards: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    op_profiles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    targets: tuple[str, ...] = ()

    def card(self, sheet: DeviceSheet) -> str:
        """Return the training card that represents a sheet, or else the sheet's own card."""
        return self.siblings.get(sheet.card, sheet.card)

    def covers(self, sheet: DeviceSheet) -> bool:
        """Return whether models of the campaign cover a card."""
        return self.card(sheet) in self.cards or sheet.target in self.targets

    def measures(self, op: str, card: str) -> bool:
        """Return whether an op was measured on a training card."""
        return card in self.op_cards.get(op, self.cards)

    def runs(self, op: str, software: str) -> bool:
        """Return whether a software profile launches the measured kernels of an op."""
        return software in self.op_profiles.get(op, (software,))

    def hardware(self, sheets: Sequence[DeviceSheet], *, unseen: bool = False) -> Hardware:
        """Return the properties of devices, one row for each sheet."""
        return hardware(*sheets, unseen=unseen, cards=self.cards, siblings=self.siblings)


SINGLE = Campaign()
"""Kernels in float32, published by NeuSight."""
