"""Models of one device, trained on its own measurements: corrections of the families' formulas.

A family's formula prices an op; the model then predicts the factor by which such ops differ from
the formula on this device, with an uncertainty. Its inputs include the formula's time and the
sizes: beyond the measured range its predictions grow with the formula. Inference uses numpy alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.devices.sheet import DeviceSheet
from costmodels.formulas.machine import Corrector, Machine, traffic
from costmodels.learned.files import Layers, load_network, save_network
from costmodels.lookups.popularity import Zipf
from irgraph.diagnostics import SourceSpan, fail
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.book import names_with
from irgraph.ops.operator import Trait

Array = NDArray[np.float32]

KIND, FORMAT = "irgraph-own", 1
RANGES = ("mean", "scale", "low", "high")
TENSORS = 3
"""Number of operands whose sizes are inputs; a list counts by its first tensor."""
SLACK = 0.25
"""Octaves beyond the measured range that do not count as outside."""
MAX_LOG_FACTOR = 20
"""Maximum logarithm of a factor; a larger one shows that the file is damaged."""
SIZES = 6 + 2 * (TENSORS + 1)
"""Number of inputs other than the indicators of ops."""


class OwnModel(Struct, frozen=True):
    """A trained correction of one family on one device.

    Attributes:
        family: name of the family in ``irgraph measure``.
        device: name of the sheet whose formulas it corrects.
        ops: keys (``op_key``) of the ops it was trained on, in the order of their indicators.
        layers: weights (members, out, in) and biases (members, out) of each layer.
        mean, scale: mean and scale of every input in training.
        low, high: range of every input in training.
        width: half a 90 % interval of log errors on held-out rows.
        made: record of its training and its held-out errors, as plain values.
    """

    family: str
    device: str
    ops: tuple[str, ...]
    layers: Layers
    mean: Array
    scale: Array
    low: Array
    high: Array
    width: float
    made: Mapping[str, Any] = field(default_factory=dict)

    def correct(self, op: Op, kernels: tuple[Kernel, ...], machine: Machine) -> tuple[Kernel, ...]:
        """Return an op's kernels, calibrated to this device."""
        inputs = features(op, kernels, machine, self.ops)
        clipped = np.clip(inputs, self.low, self.high)
        beyond = float(np.abs(inputs - clipped)[:SIZES].max())
        ratios = log_ratios(self.layers, ((clipped - self.mean) / self.scale)[:, None])[:, 0]
        if not abs(float(ratios.mean())) <= MAX_LOG_FACTOR:
            raise fail(f"a trained model corrects the time of {op.name} beyond e^{MAX_LOG_FACTOR}")
        factor = math.exp(float(ratios.mean()))
        width = math.hypot(self.width, float(ratios.std())) * (1.0 + beyond)
        source = (
            f"corrected by an MLP over {self.made.get('rows', 0)} measurements of {self.device}"
        )
        return tuple(
            replace(
                kernel,
                time=kernel.time * factor,
                spread=kernel.time * factor * math.sinh(min(width, 5.0)),
                by="learned",
                outside=beyond > SLACK,
                formula=f"{kernel.formula}; {source}",
            )
            for kernel in kernels
        )


BAG = "aten.embedding_bag"
"""Name of all lookups of bags: with and without gradients, they run one kernel."""


def op_key(op: Op) -> str:
    """Return the key of an op's kernel: its name, and flags that choose a kernel."""
    flags = ((name, op.attributes.get(name)) for name in ("mode", "sparse", "is_causal"))
    name = BAG if op.name in names_with(Trait.BAGS) else op.name
    return " ".join([name, *(f"{flag}={value}" for flag, value in flags if value)])


def features(op: Op, kernels: Sequence[Kernel], machine: Machine, ops: Sequence[str] = ()) -> Array:
    """Return the inputs of a priced op: sizes as logarithms, then indicators of ``ops``."""
    leading = [v[0] if isinstance(v, tuple) and v else v for v in op.operands]
    tensors = [t for t in leading if isinstance(t, Tensor)][:TENSORS]
    results = op.outputs[:1]
    sizes = [s for t in (*tensors, *results) for s in _sides(t)]
    sizes += [0.0] * (2 * (TENSORS + 1) - len(sizes))
    kind = op_key(op)
    scalars = [
        _log(sum(kernel.time for kernel in kernels)),
        _log(traffic(*op.inputs)),
        _log(traffic(*op.outputs)),
        _log(len(op.inputs)),
        float(tensors[0].itemsize if tensors else 0),
        _exponent(op, tensors, machine),
    ]
    return np.asarray([*scalars, *sizes, *(float(kind == key) for key in ops)], np.float32)


def _sides(tensor: Tensor) -> tuple[float, float]:
    last = int(tensor.shape[-1]) if tensor.rank else 1
    return _log(tensor.numel / max(last, 1)), _log(last)


def _log(value: float) -> float:
    return math.log2(1.0 + value)


def _exponent(op: Op, tensors: Sequence[Tensor], machine: Machine) -> float:
    """Return the Zipf exponent of a table's lookups, 0 if they are uniform."""
    indices = next((t for t in tensors if t.dtype in ("i64", "i32")), None)
    if indices is None or not tensors[0].rank:
        return 0.0
    rows = op.attributes.get("num_weights", int(tensors[0].shape[0]))
    law = machine.indices.distribution_of(indices, rows if isinstance(rows, int) else 0)
    return law.exponent if isinstance(law, Zipf) else 0.0


def log_ratios(layers: Layers, inputs: Array) -> Array:
    """Return log(time / formula) by member and row, of scaled inputs (inputs, rows)."""
    ratios = []
    for member in range(len(layers[0][0])):
        values = inputs
        for weights, bias in layers[:-1]:
            values = np.maximum(weights[member] @ values + bias[member][:, None], 0)
        weights, bias = layers[-1]
        ratios.append((weights[member] @ values + bias[member][:, None])[0])
    return np.asarray(ratios, np.float32)


def corrector(paths: Iterable[str], sheet: DeviceSheet) -> Corrector | None:
    """Return the correction of prices by the models in files, ``None`` without files.

    Raises ``IrgraphError`` if a file has no such model, or one of another device.
    """
    by_op: dict[str, OwnModel] = {}
    for path in paths:
        model = load_own(path)
        if model.device != sheet.name:
            message = f"trained for {model.device}, not for {sheet.name}"
            raise fail(message, SourceSpan(str(path)), exit_code=2)
        by_op |= dict.fromkeys(model.ops, model)
    if not by_op:
        return None

    def correct(op: Op, kernels: tuple[Kernel, ...], machine: Machine) -> tuple[Kernel, ...]:
        model = by_op.get(op_key(op))
        return kernels if model is None or not kernels else model.correct(op, kernels, machine)

    return correct


def save_own(model: OwnModel, path: str | Path) -> None:
    """Write a model to a file; files of equal models are identical."""
    head = {
        "format": FORMAT,
        "family": model.family,
        "device": model.device,
        "ops": model.ops,
        "width": model.width,
        "made": dict(model.made),
    }
    tensors = {name: getattr(model, name) for name in RANGES}
    save_network(path, KIND, head, model.layers, **tensors)


def load_own(path: str | Path) -> OwnModel:
    """Read a model's file. Raises ``IrgraphError`` if it is not one."""
    head, layers, tensors = load_network(path, KIND)
    if head.get("format") != FORMAT:
        hint = "irgraph train FAMILY --data FILE.jsonl makes one"
        message = "not a model of a device's own measurements"
        raise fail(message, SourceSpan(str(path)), hint=hint, exit_code=2)
    try:
        family, device, ops = str(head["family"]), str(head["device"]), tuple(map(str, head["ops"]))
        mean, scale, low, high = (tensors[name] for name in RANGES)
        width, provenance = float(head["width"]), dict(head["made"])
    except (KeyError, TypeError, ValueError) as error:
        message = f"a model of measurements whose head is damaged: {error}"
        raise fail(message, SourceSpan(str(path)), exit_code=2) from None
    _check_sizes(path, layers, (mean, scale, low, high), SIZES + len(ops))
    return OwnModel(family, device, ops, layers, mean, scale, low, high, width, provenance)


def _check_sizes(path: str | Path, layers: Layers, ranges: Sequence[Array], inputs: int) -> None:
    """Raise ``IrgraphError`` if the shapes of a model's tensors are inconsistent."""
    sizes = [inputs, *(weights.shape[-2] for weights, _ in layers if weights.ndim == 3)]
    fit = all(
        weights.shape == (bias.shape[0], sizes[number + 1], sizes[number])
        and bias.shape == weights.shape[:2]
        for number, (weights, bias) in enumerate(layers)
        if len(sizes) == len(layers) + 1 and bias.ndim == 2
    )
    is_complete = len(sizes) == len(layers) + 1 > 1 and all(bias.ndim == 2 for _, bias in layers)
    if not (fit and is_complete and all(values.shape == (inputs,) for values in ranges)):
        message = "a model of measurements whose tensors do not fit together"
        raise fail(message, SourceSpan(str(path)), exit_code=2)
