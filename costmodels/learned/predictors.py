"""Trained models as the predictors that pricing uses (``costmodels.formulas.machine.Predictor``).

A model answers for the software, the types and the cards that it was trained on, and where its
campaign says so for other cards of their kind. For anything else, and where the family's ``query``
returns ``None``, the family's formula holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from costmodels.devices.sheet import HALVED, HALVED_SHARE, SHARPNESS, DeviceSheet
from costmodels.families import learned_families
from costmodels.formulas.intervals import BORROWED
from costmodels.formulas.machine import ModelEstimate, Predictor
from costmodels.learnable.campaign import Campaign
from costmodels.learnable.family import LearnedFamily, Query
from costmodels.learnable.hardware import Hardware
from costmodels.learned.estimate_cache import EstimateCache
from costmodels.learned.infer import estimate
from costmodels.learned.query_batch import BatchedModels, QueryBatch
from costmodels.learned.weights import Weights, load_shipped, shipped
from irgraph.ir.points.point_values import PointMask, PointValues, as_array, maximum, point_count

SOFTWARE = "torch-2"
"""Profile of the releases that were measured: PyTorch 2.1 with CUDA 12.1, but for layer norm."""

MEASURED = (SOFTWARE, "torch-2.7")
"""Profiles under which trained models answer."""


def predictors(sheet: DeviceSheet, software: str) -> Mapping[str, Predictor]:
    """Return the models for a device under a software profile, by family; often none."""
    if software not in MEASURED:
        return {}
    families, together = (learned_families()[name] for name in shipped()), QueryBatch()
    found = {
        f.name: _predictor(f, sheet, together) for f in families if _answers(f.campaign, sheet)
    }
    return BatchedModels(found, together)


def _answers(campaign: Campaign, sheet: DeviceSheet) -> bool:
    """Return whether a campaign's models answer for a card, and its f32 products are in f32."""
    return campaign.covers(sheet) and not (sheet.tf32 and "f32" in campaign.dtypes)


def _measured(family: LearnedFamily, device: str) -> bool:
    """Return whether a family was measured on a device: convolutions were on three only."""
    campaign = family.campaign
    devices = load_shipped(family.name).made.get("devices", campaign.cards)
    return device in devices or bool(campaign.targets)


def _predictor(family: LearnedFamily, sheet: DeviceSheet, together: QueryBatch) -> Predictor:
    """Return the predictor of a family; its weights are read on first use."""
    card = family.campaign.card(sheet)
    bounded = family.flops is not None and card not in family.campaign.cards
    device = family.campaign.hardware([sheet.whole_rate() if bounded else sheet])
    known = EstimateCache()

    def ask(sizes: Mapping[str, float | str]) -> ModelEstimate | None:
        fits = sizes.get("dtype") in family.campaign.dtypes
        found = family.query({**sizes, "card": card, "target": sheet.target}) if fits else None
        if found is None or not _measured(family, card):
            return None
        if sheet.name != sheet.card:  # at a clock that none of its kernels was measured at
            found = replace(found, doubt=found.doubt + BORROWED, outside=True)
        answer = _answer(load_shipped(family.name), device, found, known, together)
        if not bounded or family.flops is None:
            return answer
        return _held(answer, family.flops(sizes), str(sizes["dtype"]), sheet)

    return ask


def _held(answer: ModelEstimate, flops: float, dtype: str, sheet: DeviceSheet) -> ModelEstimate:
    """Return an answer for a card never seen that is no faster than its large products were.

    Where units accumulate at half of their rate, the answer is for the whole one
    (``costmodels.devices.sheet.SHARPNESS``).
    """
    reached = sheet.reached(dtype)
    halved = sheet.halved and dtype in HALVED
    if reached is None and not halved:
        return answer
    least = flops / (sheet.peak(dtype)[0] * (reached or HALVED_SHARE) * 1e3)
    if halved:
        time = (answer.time**SHARPNESS + least**SHARPNESS) ** (1 / SHARPNESS)
    else:
        time = maximum(answer.time, least)
    return replace(answer, time=time, spread=answer.spread * (time / answer.time))


def _answer(
    weights: Weights, device: Hardware, query: Query, known: EstimateCache, together: QueryBatch
) -> ModelEstimate:
    points = point_count(*query.sizes.values())
    if points:
        return _answers_for(weights, device, query, points, known)
    time, width, outside = together.ask(weights, device, query)
    spread = time * float(np.sinh(width + query.doubt))
    return ModelEstimate(time, spread, outside or query.outside, _name(weights))


def _answers_for(
    weights: Weights, device: Hardware, query: Query, rows: int, known: EstimateCache
) -> ModelEstimate:
    """Return the answer to a query whose sizes have values at many points."""
    columns = {name: as_array(v, rows).astype(np.float32) for name, v in query.sizes.items()}
    columns["op"] = np.full(rows, weights.family.ops.index(query.op), np.float32)
    found = known.estimates(columns, lambda some: estimate(weights, some, device))
    time = found.time.astype(np.float64)
    spread = time * np.sinh(found.width.astype(np.float64) + query.doubt)
    outside: Any = PointMask(found.outside | query.outside)
    return ModelEstimate(PointValues(time), PointValues(spread), outside, _name(weights))  # type: ignore[arg-type]


def _name(weights: Weights) -> str:
    """Return the ``formula`` of a kernel priced by the model."""
    made = weights.made
    rows, devices = made.get("rows", 0), ", ".join(made.get("devices", ()))
    return f"MLP over the roofline bound, trained on {rows} kernels of {devices}"
