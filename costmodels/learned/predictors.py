"""Shipped models as the predictors that pricing asks (``costmodels.machine.Predictor``).

A model answers for the software and the kind of device it was trained on, float32 only; for
anything else, and for products with vectors, it says nothing and the family's formula holds.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from costmodels.learned.hardware import KNOWN, SIBLINGS, Hardware, hardware
from costmodels.learned.infer import estimate
from costmodels.learned.weights import Weights, load_shipped, shipped
from costmodels.machine import Learned, Predictor
from costmodels.sheet import DeviceSheet

SOFTWARE = "torch-2"
"""Profile of the releases that were measured: PyTorch 2.1 with CUDA 12.1."""
OTHER_LAYOUT = 0.15
"""Half a 90 % interval of log errors that is added for products whose factors lie otherwise than in
training (weight and input gradients): their kernels differ by so much in the traces of a V100."""
FORWARD = {"_softmax": "softmax", "relu": "relu", "tanh": "tanh"}
"""Measured ops by the names of ops that are sure to run the same kernel."""


def predictors(sheet: DeviceSheet, software: str) -> Mapping[str, Predictor]:
    """Return the models to ask about a device under a software profile, by family; often none."""
    name = SIBLINGS.get(sheet.name, sheet.name)
    if software != SOFTWARE or sheet.tf32 or name not in KNOWN:
        return {}
    device = hardware(sheet)
    return {f: _predictor(f, device) for f in ASKED if f in shipped() and _measured(f, name)}


def _measured(family: str, device: str) -> bool:
    """Tell whether a family was measured on a device: convolutions were on three only."""
    return device in load_shipped(family).made.get("devices", KNOWN)


def _predictor(family: str, device: Hardware) -> Predictor:
    def ask(sizes: Mapping[str, float | str]) -> Learned | None:
        if sizes.get("dtype") != "f32":
            return None
        return ASKED[family](load_shipped(family), device, sizes)

    return ask


def _gemm(weights: Weights, device: Hardware, sizes: Mapping[str, float | str]) -> Learned | None:
    """Answer for a product; ``layout`` is cuBLAS's, see ``costmodels.tiles.Product``."""
    sides = {name: float(sizes[name]) for name in ("batch", "m", "n", "k")}
    if min(sides["m"], sides["n"], sides["k"]) < 2:
        return None
    single = sides["batch"] == 1
    strange = sizes.get("layout") != ("tn" if single else "nn")
    op = "linear" if single else "bmm"
    return _answer(weights, device, op, sides, OTHER_LAYOUT if strange else 0.0)


def _rowwise(
    weights: Weights, device: Hardware, sizes: Mapping[str, float | str]
) -> Learned | None:
    """Answer for softmax forward and layer norm forward over the last axis."""
    op = FORWARD.get(str(sizes.get("op", "")), "")
    if weights.family.name == "softmax" and op != "softmax":
        return None
    sides = {name: float(sizes[name]) for name in ("rows", "cols")}
    return _answer(weights, device, weights.family.ops[0], sides) if min(*sides.values()) else None


def _elementwise(
    weights: Weights, device: Hardware, sizes: Mapping[str, float | str]
) -> Learned | None:
    """Answer for ops of one operand; others may broadcast, which was not measured."""
    op = FORWARD.get(str(sizes["op"]).rstrip("_"), "")
    elements = float(sizes["elements"])
    if op not in weights.family.ops or not elements:
        return None
    return _answer(weights, device, op, {"rows": elements, "cols": 1.0})


def _conv2d(weights: Weights, device: Hardware, sizes: Mapping[str, float | str]) -> Learned:
    """Answer for a dense 3 x 3 convolution that keeps the size of square images."""
    sides = {name: float(sizes[name]) for name in weights.family.sizes}
    return _answer(weights, device, "conv", sides)


ASKED = {
    "conv2d": _conv2d,
    "gemm": _gemm,
    "softmax": _rowwise,
    "layer_norm": _rowwise,
    "elementwise": _elementwise,
}
"""Families whose shipped models pricing asks."""


def _answer(
    weights: Weights, device: Hardware, op: str, sides: Mapping[str, float], more: float = 0.0
) -> Learned:
    columns = {name: np.asarray([value], np.float32) for name, value in sides.items()}
    columns["op"] = np.asarray([weights.family.ops.index(op)], np.float32)
    found = estimate(weights, columns, device)
    time = float(found.time[0])
    width = float(found.width[0]) + more
    spread = time * float(np.sinh(width))
    return Learned(time, spread, bool(found.outside[0]), _name(weights))


def _name(weights: Weights) -> str:
    """Return what a kernel's ``formula`` says of the model."""
    made = weights.made
    rows, devices = made.get("rows", 0), ", ".join(made.get("devices", ()))
    return f"MLP over the roofline bound, trained on {rows} kernels of {devices}"
