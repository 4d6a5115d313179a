"""Campaigns of measurements: which cards were measured, and how their tables are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct, field

from costmodels.devices.sheet import DeviceSheet
from costmodels.learnable.hardware import KNOWN, SIBLINGS, THROTTLED, Hardware, hardware
from costmodels.learnable.measurements import Measurements, read_measurements

Reader: TypeAlias = Callable[[Path, str, "tuple[str, ...]", "tuple[str, ...]"], Measurements]
"""From a folder, a family's name, its ops and its sizes to measurements."""


class Campaign(Struct, frozen=True):
    """Measurements that were taken in one way on some cards.

    Attributes:
        known: the cards, in the order of their indicators.
        siblings: cards that count as one of them.
        throttled: those from which nothing is concluded for other cards.
        apart: cards that are left out of training together, to see what another card would get.
        read: how a family's table is read.
        tables: whether that is done from several tables of other campaigns, by card and by how
            shapes are held out (``irgraph evaluate modern``), not from ``kernels/``.
        pairs: sizes that tell which rows are kept aside together; none: all sizes.
        repeat: how often the rows of an op of few rows count in training.
        dtypes: types of tensors whose kernels were measured.
        asked: ops that pricing asks about; none: all. Intervals on cards never seen are theirs.
        targets: what cards are compiled for (``DeviceSheet.target``) that a model answers for
            without having seen them; none: for known cards alone.
    """

    known: tuple[str, ...] = KNOWN
    siblings: Mapping[str, str] = field(default_factory=lambda: SIBLINGS)
    throttled: tuple[str, ...] = THROTTLED
    apart: tuple[tuple[str, ...], ...] = tuple((n,) for n in KNOWN if n not in THROTTLED)
    read: Reader = read_measurements
    tables: bool = False
    pairs: tuple[str, ...] = ()
    repeat: Mapping[str, int] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("f32",)
    asked: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    def card(self, sheet: DeviceSheet) -> str:
        """Return the card of training that a sheet counts as, or its own name."""
        return self.siblings.get(sheet.card, sheet.card)

    def answers(self, sheet: DeviceSheet) -> bool:
        """Return whether models may be asked about a card."""
        return self.card(sheet) in self.known or sheet.target in self.targets

    def hardware(self, sheets: Sequence[DeviceSheet], *, unseen: bool = False) -> Hardware:
        """Return the properties of devices, one row a sheet."""
        return hardware(*sheets, unseen=unseen, known=self.known, siblings=self.siblings)


SINGLE = Campaign()
"""Kernels in float32 that NeuSight published."""
