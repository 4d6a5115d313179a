"""Predictions of measured steps: ``irgraph evaluate --json``, ``irgraph predict --json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from irgraph.database.entry import Provenance, RecordEntry
from irgraph.diagnostics import SourceSpan, fail
from irgraph.diagnostics.json_keys import refuse_duplicate_keys
from irgraph.intake.privacy import TextFilter

UNITS = {"measured_ms": ("ms", 1000.0), "measured_x": ("x", 1.0)}
"""Unit of a measured figure, and its factor to microseconds (1 for ratios), by name."""


class _Series(Struct):
    points: list[dict[str, Any]]


class _Evaluation(Struct):
    evaluation: str
    quantities: dict[str, _Series] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)


class _Prediction(Struct, rename={"name": "model"}):
    name: str
    step_time_us: float
    step_time_interval_us: tuple[float, float]
    device: dict[str, Any]
    host: str
    software: str
    dims: dict[str, int] = field(default_factory=dict)
    measured_us: float | None = None


def evaluation(
    path: str, data: bytes, text_filter: TextFilter, provenance: Provenance
) -> list[RecordEntry]:
    """Return an evaluation as a record: its settings, and a row for each point.

    Raises ``IrgraphError`` if the file is not an evaluation, or compares no measured times or
    gains.
    """
    document = _decode(path, data, _Evaluation)
    if not text_filter.are_shipped(document.evaluation):
        message = f"evaluation {document.evaluation!r} is not one that ships"
        raise fail(message, SourceSpan(path), hint="--private takes it as it is", exit_code=2)
    rows = list(_points(path, document))
    if not rows:
        message = f"evaluation {document.evaluation!r} puts no predictions beside measured steps"
        hint = "cpu, dlrm-v100, e2e, gains, models and steps do, where their data are there"
        raise fail(message, SourceSpan(path), hint=hint)
    content = {"evaluation": document.evaluation, "settings": document.settings, "points": rows}
    return [RecordEntry("steps", content, rows, provenance)]


def _points(path: str, document: _Evaluation) -> Iterator[dict[str, Any]]:
    for quantity, series in document.quantities.items():
        for point in series.points:
            name = next((name for name in UNITS if name in point), "")
            try:
                unit, scale = UNITS[name]
                figures = [float(point[name]), float(point[f"predicted_{unit}"])]
                workload = str(point["workload"])
            except (LookupError, TypeError, ValueError):
                raise fail(f"a point of {quantity!r} lacks a figure", SourceSpan(path)) from None
            measured, predicted = (scale * value for value in figures)
            yield {
                "workload": workload,
                "quantity": quantity,
                "unit": "us" if unit == "ms" else unit,
                "measured": measured,
                "predicted": predicted,
                "batch": _batch(workload),
                "error_pct": 100 * (predicted / measured - 1) if measured else None,
            }


def _batch(workload: str) -> int | None:
    """Return the batch size that a workload's name ends with, as in ``DLRM, B = 512``."""
    text = workload.rpartition("B = ")[2].partition(",")[0]
    return int(text) if text.isdecimal() and len(text) < 19 and "B = " in workload else None


def prediction(
    path: str, data: bytes, text_filter: TextFilter, provenance: Provenance
) -> list[RecordEntry]:
    """Return a prediction as a record of one row, with the measured time if the file has one.

    Raises ``IrgraphError`` if the file contains no prediction.
    """
    document = _decode(path, data, _Prediction)
    low, high = document.step_time_interval_us
    measured = document.measured_us
    row = {
        "workload": text_filter.free_text(document.name),
        "quantity": "step time",
        "unit": "us",
        "batch": document.dims.get("B"),
        "device": text_filter.card(str(document.device.get("name", ""))),
        "host": text_filter.shipped_host(document.host),
        "predicted": document.step_time_us,
        "low": low,
        "high": high,
        "measured": measured,
        "error_pct": 100 * (document.step_time_us / measured - 1) if measured else None,
    }
    omissions = [] if text_filter.everything else ["the model's name"]
    return [RecordEntry("steps", {"prediction": row}, [row], provenance, tuple(omissions))]


def _decode(path: str, data: bytes, kind: type[Any]) -> Any:  # noqa: ANN401  (of that type)
    try:
        refuse_duplicate_keys(data)
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise fail(f"not what irgraph writes: {error}", SourceSpan(path)) from None


def is_prediction(document: Mapping[str, Any]) -> bool:
    """Return whether decoded JSON is the output of ``irgraph predict --json``."""
    return "step_time_us" in document and "step_time_interval_us" in document
