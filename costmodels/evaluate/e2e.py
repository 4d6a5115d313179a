"""Whole steps: the paper's Table V and Figure 9 as far as measurements are published, and replays.

The eight DLRM points of a V100 with overheads shared by all workloads and with overheads of each
workload alone, with kernels only, active and idle; its six points of ResNet-50 and Inception-v3
likewise; then steps replayed from traces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from costmodels.evaluate import cnn_v100
from costmodels.evaluate.comparison import STEP, Comparison, Row, Series, series, workload
from costmodels.evaluate.dlrm_v100 import (
    DEVICE,
    HOST,
    NOTES,
    SOFTWARE,
    VARIANTS_SCORED,
    active,
    active_times,
    dlrm,
    measured_points,
    step_times,
    with_own_overheads,
)
from costmodels.evaluate.measurements import measurements
from costmodels.evaluate.own_overheads import own_overheads_2022
from costmodels.evaluate.replays import NOTES as REPLAYS
from costmodels.evaluate.replays import coverage_lines, replays, replays_with_other_traces
from irgraph.predict.figures import by_family
from irgraph.predict.prediction import Prediction, predict
from irgraph.schedule.simulate import simulate
from irgraph.schedule.timeline import Timeline


def evaluate_e2e() -> Comparison:
    """Return predicted and measured step, active and idle times, and replays of traces.

    Measurements that do not ship are read from the folder ``IRGRAPH_DATA``. Raises
    ``IrgraphError`` if it is unset.
    """
    folder = measurements()
    rows = measured_points()
    predictions = [_predict_dlrm(row) for row in rows]
    own_timelines = [
        with_own_overheads(p, row, folder) for p, row in zip(predictions, rows, strict=True)
    ]
    images = cnn_v100.measured_points()
    classifier_predictions = [_predict_classifier(row) for row in images]
    quantities = (
        step_times(rows, [p.timeline for p in predictions], "step time, overheads shared"),
        step_times(rows, own_timelines, "step time, overheads of the workload alone"),
        series("step time, kernels only", rows, (p.timeline.active_time for p in predictions)),
        active_times(rows, [p.timeline for p in predictions]),
        series(
            "GPU idle time (step less the derived active time)",
            rows,
            (p.timeline.idle_time for p in predictions),
            lambda row: float(row[STEP]) - active(row),
        ),
        *_classifier_series(images, classifier_predictions, folder),
        *replays(folder),
    )
    notes = (
        *NOTES,
        *_error_notes(rows, predictions, own_timelines),
        f"Variants ever scored on the eight points: {len(VARIANTS_SCORED)}, these included.",
        *cnn_v100.NOTES,
        *_classifier_notes(images, classifier_predictions),
        *REPLAYS,
        *coverage_lines(replays_with_other_traces(folder)),
    )
    return Comparison("e2e", quantities, {"device": DEVICE, "software": SOFTWARE}, notes)


def _predict_dlrm(row: Row) -> Prediction:
    return predict(dlrm(row["model"], int(row["batch"])), DEVICE, host=HOST, software=SOFTWARE)


def _predict_classifier(row: Row) -> Prediction:
    return predict(
        cnn_v100.cnn(row["model"], int(row["batch"])), DEVICE, host=HOST, software=SOFTWARE
    )


def _classifier_series(
    rows: list[Row], predictions: Sequence[Prediction], folder: Path
) -> Iterator[Series]:
    timelines = [p.timeline for p in predictions]
    own_timelines = [
        simulate(p.priced, own_overheads_2022(folder, row["model"], row["batch"]))
        for p, row in zip(predictions, rows, strict=True)
    ]
    title = "image classifiers, step time"
    yield cnn_v100.step_times(rows, timelines, f"{title}, shared overheads")
    yield cnn_v100.step_times(rows, own_timelines, f"{title}, own overheads")
    busy = (timeline.active_time for timeline in timelines)
    yield series(f"{title}, kernels only", rows, busy)
    traced = predict(
        cnn_v100.cnn("resnet50", 32), cnn_v100.TRACED_DEVICE, host=HOST, software=SOFTWARE
    )
    yield cnn_v100.traced_operators(traced.priced, folder)


def _classifier_notes(rows: Sequence[Row], predictions: Sequence[Prediction]) -> Iterator[str]:
    """Yield notes on the device time by family, and on utilisation."""
    for row, prediction in zip(rows, predictions, strict=True):
        families = by_family(prediction.kernels()).items()
        parts = [f"{family} {entry['time_us'] / 1000.0:.1f}" for family, entry in families]
        yield (
            f"{workload(row)}: utilization {prediction.utilization:.0%} (Figure 1, of "
            f"another run: {float(row['utilization_pct']):.0f}%); device time in ms: "
            f"{', '.join(parts[:4])}; {_interval_note(prediction, float(row['step_ms']))}"
        )


def _error_notes(
    rows: Sequence[Row], predictions: Sequence[Prediction], own_timelines: Sequence[Timeline]
) -> Iterator[str]:
    """Yield a note that splits each step's error: others' overheads, kernels, the rest."""
    yield (
        "Error of the step with shared overheads, in ms: what taking other workloads' overheads "
        "adds, what device time adds (against the derived reference), and the rest: host and "
        "waiting with the workload's own overheads, and the reference itself."
    )
    for row, prediction, own_timeline in zip(rows, predictions, own_timelines, strict=True):
        measured, active = float(row["step_ms"]), float(row["active_ms"])
        step = prediction.step_time / 1000.0 - measured
        others = (prediction.step_time - own_timeline.step_time) / 1000.0
        device = own_timeline.active_time / 1000.0 - active
        yield (
            f"{workload(row)}: {step:+.2f} = overheads of others {others:+.2f}, device "
            f"{device:+.2f}, rest {step - others - device:+.2f}; "
            f"{_interval_note(prediction, measured)}"
        )


def _interval_note(prediction: Prediction, measured: float) -> str:
    low, high = (end / 1000.0 for end in prediction.interval)
    inside = "inside" if low <= measured <= high else "outside"
    return f"measured {inside} the 90 % interval {low:.2f} to {high:.2f}"
