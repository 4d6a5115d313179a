"""Trained models as the predictors that pricing uses (``costmodels.formulas.machine.Predictor``).

A model covers the software, the types and the cards that it was trained on, and other cards of
their kind if its campaign allows that. For anything else, and if the family's ``query`` returns
``None``, the family's formula applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from costmodels.devices.power import sustained_rate
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
from costmodels.learned.weights import Weights, load_shipped, shipped_models
from irgraph.ir.points.point_values import PointMask, PointValues, as_array, maximum, point_count

SOFTWARE = "torch-2"
"""Profile of the measured releases: PyTorch 2.1 with CUDA 12.1, except for layer norm."""

BOOST = 500.0
"""Microseconds that an isolated kernel runs at the boost clock. The governor lowers the clock after
some 5 ms of sustained work (B200: flashinfer-ai/flashinfer, pull request 2899), and the sweeps
repeat a kernel nine times (three to warm up)."""

MEASURED_PROFILES = (SOFTWARE, "torch-2.7", "torch-2.1")
"""Software profiles that trained models cover."""


def predictors(sheet: DeviceSheet, software: str) -> Mapping[str, Predictor]:
    """Return the models for a device under a software profile, by family, possibly none."""
    if software not in MEASURED_PROFILES:
        return {}
    families, batch = (learned_families()[name] for name in shipped_models()), QueryBatch()
    models = {
        family.name: _predictor(family, sheet, software, batch)
        for family in families
        if _covers(family.campaign, sheet)
    }
    return BatchedModels(models, batch)


def _covers(campaign: Campaign, sheet: DeviceSheet) -> bool:
    """Return whether a campaign's models cover a card, and its f32 products are in f32."""
    return campaign.covers(sheet) and not (sheet.tf32 and "f32" in campaign.dtypes)


def _is_measured(family: LearnedFamily, device: str) -> bool:
    """Return whether a family was measured on a device; convolutions were on three devices only."""
    campaign = family.campaign
    devices = load_shipped(family.name).made.get("devices", campaign.cards)
    return device in devices or bool(campaign.targets)


def _predictor(
    family: LearnedFamily, sheet: DeviceSheet, software: str, batch: QueryBatch
) -> Predictor:
    """Return the predictor of a family; its weights are read on first use."""
    card = family.campaign.card(sheet)
    is_bounded = family.flops is not None and card not in family.campaign.cards
    device = family.campaign.hardware([sheet.at_whole_rate() if is_bounded else sheet])
    estimate_cache = EstimateCache()

    def predict(sizes: Mapping[str, float | str]) -> ModelEstimate | None:
        has_type = sizes.get("dtype") in family.campaign.dtypes
        query = family.query({**sizes, "card": card, "target": sheet.target}) if has_type else None
        if query is None or not _is_measured(family, card):
            return None
        if not family.campaign.runs(query.op, software):
            return None
        weights = load_shipped(family.name)
        if card in family.campaign.cards and not family.campaign.measures(query.op, card):
            query = replace(query, doubt=query.doubt + weights.unseen, outside=True)
        if sheet.name != sheet.card:  # its kernels were not measured at this clock
            query = replace(query, doubt=query.doubt + BORROWED, outside=True)
        answer = _estimate(weights, device, query, estimate_cache, batch)
        if not is_bounded or family.flops is None:
            return answer
        return _within_peak(answer, family.flops(sizes), str(sizes["dtype"]), sheet)

    return predict


def _within_peak(
    prediction: ModelEstimate, flops: float, dtype: str, sheet: DeviceSheet
) -> ModelEstimate:
    """Return the prediction for an unseen card, limited by the rate of its large products.

    If units accumulate at half of their rate, ``prediction`` is for the whole rate
    (``costmodels.devices.sheet.SHARPNESS``).
    """
    share = sheet.measured_share(dtype)
    is_halved = sheet.halved and dtype in HALVED
    if share is None and not is_halved:
        return prediction
    peak_rate = sheet.peak(dtype)[0] * (share or HALVED_SHARE)
    min_time = flops / (peak_rate * 1e3)
    if is_halved:
        time = (prediction.time**SHARPNESS + min_time**SHARPNESS) ** (1 / SHARPNESS)
    else:
        sustained = sustained_rate(sheet, dtype) or peak_rate
        slower = maximum(min_time - BOOST, 0.0) * (peak_rate / sustained - 1)
        time = maximum(prediction.time, min_time + slower)
    return replace(prediction, time=time, spread=prediction.spread * (time / prediction.time))


def _estimate(
    weights: Weights,
    device: Hardware,
    query: Query,
    estimate_cache: EstimateCache,
    batch: QueryBatch,
) -> ModelEstimate:
    points = point_count(*query.sizes.values())
    if points:
        return _estimate_points(weights, device, query, points, estimate_cache)
    time, width, outside = batch.estimate(weights, device, query)
    spread = time * float(np.sinh(width + query.doubt))
    return ModelEstimate(time, spread, outside or query.outside, _name(weights))


def _estimate_points(
    weights: Weights, device: Hardware, query: Query, rows: int, estimate_cache: EstimateCache
) -> ModelEstimate:
    """Return the estimate for a query whose sizes have values at many points."""
    columns = {name: as_array(v, rows).astype(np.float32) for name, v in query.sizes.items()}
    columns["op"] = np.full(rows, weights.family.ops.index(query.op), np.float32)
    estimates = estimate_cache.estimates(
        columns, lambda new_columns: estimate(weights, new_columns, device)
    )
    time = estimates.time.astype(np.float64)
    spread = time * np.sinh(estimates.width.astype(np.float64) + query.doubt)
    outside: Any = PointMask(estimates.outside | query.outside)
    return ModelEstimate(PointValues(time), PointValues(spread), outside, _name(weights))  # type: ignore[arg-type]


def _name(weights: Weights) -> str:
    """Return the ``formula`` of a kernel priced by the model."""
    provenance = weights.made
    rows, devices = provenance.get("rows", 0), ", ".join(provenance.get("devices", ()))
    return f"MLP over the roofline bound, trained on {rows} kernels of {devices}"
