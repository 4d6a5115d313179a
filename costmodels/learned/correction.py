"""Corrections of the families' formulas, trained on measurements of one device.

A family's formula prices a call; the networks then predict the factor by which calls of its form
differ from the formula on this device, with an uncertainty. Only forms that were measured are
corrected (``costmodels.learned.call_forms``), and beyond the measured sizes the correction
fades to none: there the formula answers. Inference uses numpy alone, and gives the same result for
one call and for many, to the last digit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.formulas.machine import Machine
from costmodels.learnable.call_inputs import Doubles, InputLayout
from costmodels.learnable.hardware import Floats
from costmodels.learned.batch_invariant import exact_joint_forward, exact_layers
from costmodels.learned.call_forms import CallForm, call_form
from costmodels.learned.files import Layers, load_network, save_network
from costmodels.learned.query_batch import QueryBatch
from irgraph.diagnostics import SourceSpan, fail
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import PointMask, PointValues, as_array, point_count

KIND, FORMAT = "irgraph-own", 2
COLUMNS = ("mean", "scale")
RANGES = ("low", "high")
BY_FORM = ("widths", "trust")
SLACK = 0.25
"""Octaves beyond the measured range that do not count as outside."""
FADING = 3.0
"""Octaves beyond the measured range at which the formula answers alone."""
MAX_LOG_FACTOR = 20
"""Maximum logarithm of a factor; a larger one shows that the file is damaged."""
MAX_WIDTH = 5.0
"""Maximum of half an interval of logarithms."""
NETWORK = "network"
"""Word of the form of a call whose last kernel a trained network priced, not a formula."""


class Factors(Struct, frozen=True):
    """Corrections of calls of one form, one value a row.

    Attributes:
        factor: ratio of the corrected time to the formula's.
        spread: half a 90 % interval as a share of the corrected time.
        weight: share of the correction that applies: 1 inside the measured range, 0 far outside.
        outside: whether a size is outside the measured range.
    """

    factor: Doubles
    spread: Doubles
    weight: Doubles
    outside: NDArray[np.bool_]


class OwnModel(Struct, frozen=True):
    """A trained correction of one family on one device.

    Attributes:
        family: name of the family in ``irgraph measure``.
        device: name of the sheet whose formulas it corrects.
        keys: forms that it was trained on.
        layout: layout of the inputs.
        layers: weights (members, out, in) and biases (members, out) of each layer.
        mean, scale: mean and scale of every input in training.
        low, high: training range of the formula's time and of the sizes, (keys, inputs).
        widths: half a 90 % interval of log errors of each form, on rows that a member has not seen.
        trust: share of each form's correction that applies: with 0 the formula was better.
        made: record of its training and its held-out errors, as plain values.
    """

    family: str
    device: str
    keys: tuple[str, ...]
    layout: InputLayout
    layers: Layers
    mean: Floats
    scale: Floats
    low: Floats
    high: Floats
    widths: Floats
    trust: Floats
    made: Mapping[str, Any] = field(default_factory=dict)

    def factors(self, form: CallForm, numbers: Doubles, sms: int) -> Factors:
        """Return the corrections of calls of one form (``InputLayout.matrix`` has the numbers)."""
        index = self.keys.index(form.key)
        ratios, beyond = self._ratios(form, index, numbers, sms)
        mean, deviation = _mean_and_deviation(ratios)
        if not (np.abs(mean) <= MAX_LOG_FACTOR).all():
            message = f"a trained model corrects the time of {form.key} beyond e^{MAX_LOG_FACTOR}"
            raise fail(message)
        weight = np.clip(1.0 - beyond / FADING, 0.0, 1.0)
        width = np.hypot(deviation, self.widths[index]) * (1.0 + beyond)
        factor = np.exp((mean * weight * self.trust[index]).astype(np.float32)).astype(np.float64)
        spread = np.sinh(np.minimum(width, MAX_WIDTH).astype(np.float32)).astype(np.float64)
        return Factors(factor, spread, weight, beyond > SLACK)

    def _ratios(
        self, form: CallForm, index: int, numbers: Doubles, sms: int
    ) -> tuple[Floats, Doubles]:
        """Return each member's log ratios, and the octaves beyond the measured range.

        Most inputs are equal in all rows; they are evaluated once.
        """
        inputs = self.layout.matrix(form.words, numbers, len(form.sizes), sms)
        ranged = self.layout.ranged
        clipped = np.clip(inputs[:ranged], self.low[index][:, None], self.high[index][:, None])
        beyond = np.abs(inputs[:ranged] - clipped).max(0).astype(np.float64)
        inputs[:ranged] = clipped
        first = (inputs[:, 0] - self.mean) / self.scale
        positions = np.flatnonzero((inputs[:, 1:] != inputs[:, :-1]).any(1))
        varying = inputs[positions]
        varying -= self.mean[positions, None]
        varying /= self.scale[positions, None]
        ratios = exact_joint_forward(exact_layers(self.layers), first, positions, varying)
        return ratios[:, 0], beyond

    def source(self, form: CallForm) -> str:
        """Return the text for ``Kernel.formula``: the model and the form."""
        rows = self.made.get("rows", 0)
        return f"corrected by an MLP over {rows} measurements of {self.device} ({form.key})"


def _mean_and_deviation(ratios: Floats) -> tuple[Doubles, Doubles]:
    """Return mean and standard deviation over the members, added in sequence."""
    total = np.zeros(ratios.shape[1])
    for ratio in ratios:
        total = total + ratio
    mean = total / len(ratios)
    squares = np.zeros_like(mean)
    for ratio in ratios:
        squares = squares + (ratio - mean) ** 2
    return mean, np.sqrt(squares / len(ratios))


def form_of_priced(op: Op, kernels: Sequence[Kernel], machine: Machine) -> CallForm | None:
    """Return the form of a priced call: a network's price is another base than a formula's."""
    form = call_form(op, machine)
    if form is None or not kernels or kernels[-1].by != "learned":
        return form
    return replace(form, words=(*form.words, NETWORK))


def correct_kernels(
    kernels: tuple[Kernel, ...],
    form: CallForm,
    model: OwnModel,
    machine: Machine,
    batch: QueryBatch,
) -> tuple[Kernel, ...]:
    """Return a call's kernels, calibrated to the device of the model."""
    time = sum(kernel.time for kernel in kernels)
    numbers = (time, *form.sizes, *(form.product or ()))
    points = point_count(*numbers)
    sms = machine.sheet.sms
    if points:
        columns = np.stack([as_array(number, points) for number in numbers])
        factors = model.factors(form, columns, sms)
        factor, spread, weight = map(PointValues, (factors.factor, factors.spread, factors.weight))
        outside: Any = PointMask(factors.outside)
    else:

        def evaluate(queries: list[tuple[float, ...]]) -> list[tuple[float, float, float, bool]]:
            rows = model.factors(form, np.array(queries, np.float64).T, sms)
            columns = (rows.factor, rows.spread, rows.weight, rows.outside)
            return list(zip(*(column.tolist() for column in columns), strict=True))

        kind = (id(model), form.words, len(form.sizes))
        factor, spread, weight, outside = batch.answer(kind, evaluate, tuple(map(float, numbers)))
    return _scaled(kernels, factor, spread, weight, outside, model.source(form))


def _scaled(
    kernels: tuple[Kernel, ...],
    factor: Any,  # noqa: ANN401  (a number, at one point or many)
    spread: Any,  # noqa: ANN401
    weight: Any,  # noqa: ANN401
    outside: bool,
    source: str,
) -> tuple[Kernel, ...]:
    """Return kernels times a factor; their spreads add up in quadrature to the call's spread."""
    joint: Any = 1.0
    if len(kernels) > 1:
        squares = sum(kernel.time * kernel.time for kernel in kernels)
        joint = sum(kernel.time for kernel in kernels) / _root(squares)
    return tuple(
        replace(
            kernel,
            time=kernel.time * factor,
            spread=kernel.time * factor * spread * joint * weight + kernel.spread * (1.0 - weight),
            by="learned",
            outside=outside,
            formula=f"{kernel.formula}; {source}",
        )
        for kernel in kernels
    )


def _root(value: Any) -> Any:  # noqa: ANN401  (a number, at one point or many)
    """Return the square root, at every point; of 0 it is 1."""
    if isinstance(value, PointValues):
        return PointValues(np.sqrt(np.where(value.values > 0, value.values, 1.0)))
    return math.sqrt(value) if value > 0 else 1.0


def save_own(model: OwnModel, path: str | Path) -> None:
    """Write a model to a file; files of equal models are identical."""
    head = {
        "format": FORMAT,
        "family": model.family,
        "device": model.device,
        "keys": model.keys,
        "words": model.layout.words,
        "sizes": model.layout.sizes,
        "made": dict(model.made),
    }
    tensors = {name: getattr(model, name) for name in (*COLUMNS, *RANGES, *BY_FORM)}
    save_network(path, KIND, head, model.layers, **tensors)


def load_own(path: str | Path) -> OwnModel:
    """Read a model's file. Raises ``IrgraphError`` if it is not one."""
    head, layers, tensors = load_network(path, KIND)
    if head.get("format") != FORMAT:
        hint = "irgraph train FAMILY --data FILE.jsonl makes one"
        message = "not a model of a device's own measurements"
        if head.get("format") == 1:
            message = "a model of an older format, whose inputs were others"
        raise fail(message, SourceSpan(str(path)), hint=hint, exit_code=2)
    try:
        family, device = str(head["family"]), str(head["device"])
        keys, words = (tuple(map(str, head[name])) for name in ("keys", "words"))
        layout, provenance = InputLayout(int(head["sizes"]), words), dict(head["made"])
        mean, scale, low, high, widths, trust = (
            tensors[name] for name in (*COLUMNS, *RANGES, *BY_FORM)
        )
    except (KeyError, TypeError, ValueError) as error:
        message = f"a model of measurements whose head is damaged: {error}"
        raise fail(message, SourceSpan(str(path)), exit_code=2) from None
    model = OwnModel(
        family, device, keys, layout, layers, mean, scale, low, high, widths, trust, provenance
    )
    _check_sizes(path, model)
    return model


def _check_sizes(path: str | Path, model: OwnModel) -> None:
    """Raise ``IrgraphError`` if the shapes of a model's tensors are inconsistent."""
    layers, layout, keys = model.layers, model.layout, len(model.keys)
    ranks = all(weights.ndim == 3 and bias.ndim == 2 for weights, bias in layers)
    sizes = [layout.count, *(weights.shape[-2] for weights, _ in layers if ranks)]
    fit = ranks and all(
        weights.shape == (bias.shape[0], sizes[number + 1], sizes[number])
        and bias.shape == weights.shape[:2]
        for number, (weights, bias) in enumerate(layers)
    )
    columns = all(values.shape == (layout.count,) for values in (model.mean, model.scale))
    ranges = all(values.shape == (keys, layout.ranged) for values in (model.low, model.high))
    by_form = all(values.shape == (keys,) for values in (model.widths, model.trust))
    if not (fit and layers and columns and ranges and by_form):
        message = "a model of measurements whose tensors do not fit together"
        raise fail(message, SourceSpan(str(path)), exit_code=2)
