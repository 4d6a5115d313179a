"""Selection of the model that corrects a call's price.

In order of precedence: the user's model of the call's form (``--weights``); the shipped model of
the card and the form; on unmeasured cards with the same chip the same model, over formulas alone
and with a wider interval; else the family's formula or network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from msgspec.structs import replace

from costmodels.devices.sheet import DeviceSheet
from costmodels.formulas.machine import Corrector, Machine
from costmodels.learnable.family import WEIGHTS
from costmodels.learned.correction import (
    NETWORK,
    OwnModel,
    correct_kernels,
    form_of_priced,
    load_own,
)
from costmodels.learned.predictors import SOFTWARE
from costmodels.learned.query_batch import QueryBatch
from irgraph.diagnostics import SourceSpan, fail
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op

SHIPPED = WEIGHTS / "corrections"
"""Folder of the corrections that ship: a folder for each measured card, a file for each family."""

BORROWED = 0.15
"""Added half interval of log errors on a card with the measured card's chip and another memory or
clock (an assumption: no second card of a chip was measured)."""


def corrector(
    paths: Iterable[str], sheet: DeviceSheet, software: str, batch: QueryBatch | None = None
) -> Corrector | None:
    """Return the correction of prices on a device, ``None`` if no model applies to it.

    Args:
        paths: the user's own models.
        sheet: the device.
        software: name of the software profile; models that ship cover the newest only.
        batch: batch of queries to answer together.

    Raises:
        IrgraphError: a file has no such model, or one of another device.
    """
    user_models = _by_key(_load_for(path, sheet) for path in paths)
    card = measured_card(sheet) if software == SOFTWARE else ""
    if not user_models and not card:
        return None
    queries = batch or QueryBatch()
    is_measured = card == sheet.name.lower()

    def correct(op: Op, kernels: tuple[Kernel, ...], machine: Machine) -> tuple[Kernel, ...]:
        form = form_of_priced(op, kernels, machine)
        if form is None:
            return kernels
        model = user_models.get(form.key)
        if model is not None:
            return correct_kernels(kernels, form, model, machine, queries)
        model = shipped_corrections(card).get(form.key) if card else None
        if model is None or (NETWORK in form.words and not is_measured):
            return kernels
        corrected = correct_kernels(kernels, form, model, machine, queries)
        return corrected if is_measured else tuple(map(_borrowed, corrected))

    return correct


def _borrowed(kernel: Kernel) -> Kernel:
    """Return a kernel of another card with the same chip: outside, and less certain."""
    spread = kernel.spread + BORROWED * kernel.time
    return replace(kernel, spread=spread, outside=True)


def _by_key(models: Iterable[OwnModel]) -> Mapping[str, OwnModel]:
    return {key: model for model in models for key in model.keys}


def _load_for(path: str, sheet: DeviceSheet) -> OwnModel:
    model = load_own(path)
    if model.device != sheet.name:
        message = f"trained for {model.device}, not for {sheet.name}"
        raise fail(message, SourceSpan(str(path)), exit_code=2)
    return model


@cache
def shipped_corrections(card: str) -> Mapping[str, OwnModel]:
    """Return the models that ship for a card, by the form that they correct."""
    return _by_key(load_own(path) for path in sorted((SHIPPED / card).glob("*.safetensors")))


def measured_card(sheet: DeviceSheet) -> str:
    """Return the swept card whose corrections apply to a device, ``""`` if there is none.

    It is the card itself, or one with the same chip.
    """
    return _card_of_chip(sheet.name.lower(), sheet.target)


@cache
def _card_of_chip(name: str, target: str) -> str:
    from costmodels.devices.library import load_device

    cards = sorted(folder.name for folder in SHIPPED.glob("*") if folder.is_dir())
    if name in cards:
        return name
    twins = [card for card in cards if target and load_device(card).target == target]
    return twins[0] if twins else ""
