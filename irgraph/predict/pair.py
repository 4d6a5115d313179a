"""Comparable predictions of two models: never one measured and the other modelled.

Otherwise a cost model's error would look like the effect of a change: an op measured at 100 us and
modelled at 60 us would seem to gain 40 us by any change at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Unpack

from msgspec.structs import replace

from irgraph.backend import backend
from irgraph.ir.cost import Kernel, Priced
from irgraph.ir.graph import Graph, check_graph
from irgraph.ir.measured_times import measured_card
from irgraph.ir.op import Op
from irgraph.ir.tf32 import plain_name
from irgraph.predict.options import PredictFields, PredictOptions, predict_options
from irgraph.predict.prediction import Prediction, device_of, predict, reschedule

ONE_SIDED = (
    "not used: only one of the models has times of this device; both are priced by cost "
    "models, so that model errors do not look like a change"
)

Key = tuple[str, str]
"""An op's name and origin: the same before and after a change."""


def predict_pair(
    before: Graph | Prediction,
    after: Graph,
    options: PredictOptions | str | None = None,
    **changes: Unpack[PredictFields],
) -> tuple[Prediction, Prediction]:
    """Predict two models so that their difference is that of the change; options as of ``predict``.

    With measured times before the change, unchanged ops keep theirs on both sides. Modelled times
    of changed ops are scaled by measured / model of the same op before, or else of its kernels'
    family among the ops that changed; such times are ``scaled``. If only one of the models has
    measured times, cost models price both.

    ``before`` may be a prediction, whose options are then the default: what is compared with many
    others need be predicted once.
    """
    prediction = before if isinstance(before, Prediction) else None
    before = before.priced.graph if isinstance(before, Prediction) else before
    check_graph(before, after)
    chosen = predict_options(
        prediction.options if prediction and options is None else options, **changes
    )
    chosen = replace(chosen, device=chosen.device or device_of(before, after))
    first = prediction if prediction and prediction.options == chosen else predict(before, chosen)
    second = predict(after, chosen)
    if second.host.name != first.host.name:
        # default tables of two releases of torch: their difference is no effect of the change
        second = predict(after, chosen, host=first.host.name)
    uses_measured = [_uses_measured(p) for p in (first, second)]
    if uses_measured[0] and (uses_measured[1] or _same_card(first, after)):
        second = _scale_modelled(first, predict(before, chosen, measured=False), second)
    elif uses_measured[0] or uses_measured[1]:
        unmeasured = (predict(graph, chosen, measured=False) for graph in (before, after))
        first, second = (replace(p, measured=ONE_SIDED) for p in unmeasured)
    return first, second


def _uses_measured(prediction: Prediction) -> bool:
    return any(kernel.by == "measured" for kernel in prediction.kernels())


def _same_card(first: Prediction, after: Graph) -> bool:
    """Return whether a model without measured times is of the same card as the one with them."""
    card = measured_card(after)
    is_same = card == measured_card(first.priced.graph)
    return is_same and backend().is_card(first.options.device or "", card)


@dataclass
class _Ratios:
    """Ratios of measured to modelled time: of ops, and of families of kernels."""

    ops: dict[Key, float] = field(default_factory=dict)
    families: dict[str, float] = field(default_factory=dict)

    def ratio_for(self, key: Key, kernel: Kernel) -> float | None:
        return self.ops.get(key, self.families.get(kernel.family))


def _scale_modelled(first: Prediction, models: Prediction, second: Prediction) -> Prediction:
    """Scale modelled times of changed ops by their measured times before the change."""
    unchanged = {_key(op) for op, kernels in _priced_ops(second.priced) if _is_measured(kernels)}
    modelled = {_key(op) for op, kernels in _priced_ops(first.priced) if not _is_measured(kernels)}
    ratios = _ratios(first.priced, models.priced, unchanged)
    kernels = dict(second.priced.kernels)
    families: set[str] = set()
    for op, op_kernels in _priced_ops(second.priced):
        if not _is_measured(op_kernels) and _key(op) not in modelled:
            kernels[op] = tuple(_scale_kernel(k, ratios.ratio_for(_key(op), k)) for k in op_kernels)
            families.update(k.family for k in kernels[op] if k.by == "scaled")
    priced = replace(second.priced, kernels=kernels)
    return reschedule(second, priced, _remark(ratios, families))


def _ratios(measured: Priced, models: Priced, unchanged: set[Key]) -> _Ratios:
    """Return measured / model of the changed ops, which are not in ``unchanged``."""
    ratios = _Ratios()
    measured_by_family: dict[str, float] = defaultdict(float)
    modelled_by_family: dict[str, float] = defaultdict(float)
    for op, measured_kernels, modelled_kernels in _pairs(measured.graph.ops, measured, models):
        total = _total_time(modelled_kernels)
        measured_keys = {_key(inner) for inner in op.walk() if measured.kernels.get(inner)}
        if measured_keys <= unchanged or not _is_measured(measured_kernels) or not total:
            continue
        ratio = ratios.ops[_key(op)] = _total_time(measured_kernels) / total
        for kernel in modelled_kernels:
            measured_by_family[kernel.family] += ratio * kernel.time
            modelled_by_family[kernel.family] += kernel.time
    ratios.families = {
        family: measured_by_family[family] / time
        for family, time in modelled_by_family.items()
        if time
    }
    return ratios


def _pairs(
    ops: Iterable[Op], measured: Priced, models: Priced
) -> Iterator[tuple[Op, tuple[Kernel, ...], tuple[Kernel, ...]]]:
    """Yield ops at the outermost level that either priced, with the kernels of both."""
    for op in ops:
        if op in measured.kernels or op in models.kernels:
            yield op, measured.of(op), models.of(op)
        else:
            yield from _pairs(op.body, measured, models)


def _priced_ops(priced: Priced) -> Iterator[tuple[Op, tuple[Kernel, ...]]]:
    for op in priced.graph.walk():
        if priced.kernels.get(op):
            yield op, priced.kernels[op]


def _scale_kernel(kernel: Kernel, ratio: float | None) -> Kernel:
    if ratio is None:
        return kernel
    formula = f"{kernel.formula}; times {ratio:.3g}, measured / model before the change"
    time, spread = kernel.time * ratio, kernel.spread * ratio
    return replace(kernel, time=time, spread=spread, by="scaled", formula=formula)


def _remark(ratios: _Ratios, families: Collection[str]) -> str:
    """Return a sentence on the use of measured times, with the factors of modelled times."""
    text = "used: unchanged ops keep theirs"
    factors = [f"{name} {ratios.families.get(name, 1.0):.2f}" for name in sorted(families)]
    if not factors:
        return text
    note = "changed ops: modelled time x measured / model before"
    return f"{text}; {note}: {', '.join(factors)}"


def _key(op: Op) -> Key:
    return plain_name(op.name), op.origin or " ".join(tensor.name for tensor in op.outputs)


def _is_measured(kernels: Iterable[Kernel]) -> bool:
    return all(kernel.by == "measured" for kernel in kernels)


def _total_time(kernels: Iterable[Kernel]) -> float:
    return sum(kernel.time for kernel in kernels)
