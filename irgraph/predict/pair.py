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
from irgraph.ir.measured import measured_card
from irgraph.ir.op import Op
from irgraph.ir.tf32 import plain_name
from irgraph.predict.options import PredictFields, PredictOptions, predict_options
from irgraph.predict.prediction import Prediction, device_of, predict, rescheduled

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
    known = before if isinstance(before, Prediction) else None
    before = before.priced.graph if isinstance(before, Prediction) else before
    check_graph(before, after)
    chosen = predict_options(known.options if known and options is None else options, **changes)
    chosen = replace(chosen, device=chosen.device or device_of(before, after))
    first = known if known and known.options == chosen else predict(before, chosen)
    second = predict(after, chosen)
    used = [_uses(p) for p in (first, second)]
    if used[0] and (used[1] or _same_card(first, after)):
        second = _scaled(first, predict(before, chosen, measured=False), second)
    elif used[0] or used[1]:
        plain = (predict(graph, chosen, measured=False) for graph in (before, after))
        first, second = (replace(p, measured=ONE_SIDED) for p in plain)
    return first, second


def _uses(prediction: Prediction) -> bool:
    return any(kernel.by == "measured" for kernel in prediction.kernels())


def _same_card(first: Prediction, after: Graph) -> bool:
    """Return whether a model without measured times was derived from the one with them."""
    card = measured_card(after)
    same = card == measured_card(first.priced.graph)
    return same and backend().is_card(first.options.device or "", card)


@dataclass
class _Ratios:
    """Ratios of measured to modelled time: of ops, and of families of kernels."""

    ops: dict[Key, float] = field(default_factory=dict)
    families: dict[str, float] = field(default_factory=dict)

    def of(self, key: Key, kernel: Kernel) -> float | None:
        return self.ops.get(key, self.families.get(kernel.family))


def _scaled(first: Prediction, models: Prediction, second: Prediction) -> Prediction:
    """Scale modelled times of changed ops by their measured times before the change."""
    kept = {_key(op) for op, kernels in _priced_ops(second.priced) if _measured(kernels)}
    modelled = {_key(op) for op, kernels in _priced_ops(first.priced) if not _measured(kernels)}
    ratios = _ratios(first.priced, models.priced, kept)
    kernels = dict(second.priced.kernels)
    families: set[str] = set()
    for op, found in _priced_ops(second.priced):
        if not _measured(found) and _key(op) not in modelled:
            kernels[id(op)] = tuple(_times(k, ratios.of(_key(op), k)) for k in found)
            families.update(k.family for k in kernels[id(op)] if k.by == "scaled")
    priced = replace(second.priced, kernels=kernels)
    return rescheduled(second, priced, _remark(ratios, families))


def _ratios(measured: Priced, models: Priced, kept: set[Key]) -> _Ratios:
    """Return measured / model of the ops that changed; ``kept`` did not."""
    found = _Ratios()
    real: dict[str, float] = defaultdict(float)
    guessed: dict[str, float] = defaultdict(float)
    for op, known, guess in _pairs(measured.graph.ops, measured, models):
        total = _total(guess)
        parts = {_key(inner) for inner in op.walk() if measured.kernels.get(id(inner))}
        if parts <= kept or not _measured(known) or not total:
            continue
        ratio = found.ops[_key(op)] = _total(known) / total
        for kernel in guess:
            real[kernel.family] += ratio * kernel.time
            guessed[kernel.family] += kernel.time
    found.families = {family: real[family] / time for family, time in guessed.items() if time}
    return found


def _pairs(
    ops: Iterable[Op], measured: Priced, models: Priced
) -> Iterator[tuple[Op, tuple[Kernel, ...], tuple[Kernel, ...]]]:
    """Yield ops at the outermost level that either priced, with the kernels of both."""
    for op in ops:
        if id(op) in measured.kernels or id(op) in models.kernels:
            yield op, measured.of(op), models.of(op)
        else:
            yield from _pairs(op.body, measured, models)


def _priced_ops(priced: Priced) -> Iterator[tuple[Op, tuple[Kernel, ...]]]:
    for op in priced.graph.walk():
        if priced.kernels.get(id(op)):
            yield op, priced.kernels[id(op)]


def _times(kernel: Kernel, ratio: float | None) -> Kernel:
    if ratio is None:
        return kernel
    formula = f"{kernel.formula}; times {ratio:.3g}, measured / model before the change"
    time, spread = kernel.time * ratio, kernel.spread * ratio
    return replace(kernel, time=time, spread=spread, by="scaled", formula=formula)


def _remark(ratios: _Ratios, families: Collection[str]) -> str:
    """Return how measured times were used, and the factors of modelled ones."""
    text = "used: unchanged ops keep theirs"
    shown = [f"{name} {ratios.families.get(name, 1.0):.2f}" for name in sorted(families)]
    if not shown:
        return text
    scaled = "changed ops: modelled time x measured / model before"
    return f"{text}; {scaled}: {', '.join(shown)}"


def _key(op: Op) -> Key:
    return plain_name(op.name), op.origin or " ".join(tensor.name for tensor in op.outputs)


def _measured(kernels: Iterable[Kernel]) -> bool:
    return all(kernel.by == "measured" for kernel in kernels)


def _total(kernels: Iterable[Kernel]) -> float:
    return sum(kernel.time for kernel in kernels)
