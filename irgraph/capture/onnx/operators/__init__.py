"""ONNX operators as the equivalent calls of torch."""

from __future__ import annotations

from collections.abc import Mapping

from irgraph.capture.onnx.bind import Convert
from irgraph.capture.onnx.operators.elementwise import ELEMENTWISE
from irgraph.capture.onnx.operators.layers import LAYERS
from irgraph.capture.onnx.operators.movement import MOVEMENT
from irgraph.capture.onnx.operators.pooling import POOLING
from irgraph.capture.onnx.operators.products import PRODUCTS, linear
from irgraph.capture.onnx.operators.quantized import QUANTIZED
from irgraph.capture.onnx.operators.recurrent import RECURRENT
from irgraph.capture.onnx.operators.reductions import REDUCTIONS
from irgraph.capture.onnx.operators.values import VALUES

__all__ = ["OPERATORS", "linear"]

OPERATORS: Mapping[str, Convert] = {
    **ELEMENTWISE, **LAYERS, **MOVEMENT, **POOLING, **PRODUCTS, **QUANTIZED,
    **RECURRENT, **REDUCTIONS, **VALUES,
}  # fmt: skip
"""Converter of each operator of ONNX's default domain."""
