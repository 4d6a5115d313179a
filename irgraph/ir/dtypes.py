"""Element types: their names in irgraph, in torch, in traces and in ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ElementType(NamedTuple):
    """One element type.

    Attributes:
        name: name in ``model.ir``.
        itemsize: bytes of one element.
        torch: torch's name.
        digits: binary digits of the significand, the hidden one included; 0 if not floating.
        scalar: number in ``torch::ScalarType`` (c10/core/ScalarType.h), -1 if none.
        onnx: number in ``TensorProto.DataType`` (onnx.proto), -1 if none.
        cpp: C++ names that traces use.
    """

    name: str
    itemsize: int
    torch: str
    digits: int
    scalar: int
    onnx: int
    cpp: tuple[str, ...]


ELEMENT_TYPES = (
    ElementType("f64", 8, "float64", 53, 7, 11, ("double",)),
    ElementType("f32", 4, "float32", 24, 6, 1, ("float",)),
    ElementType("tf32", 4, "float32", 11, -1, -1, ()),
    ElementType("f16", 2, "float16", 11, 5, 10, ("c10::Half",)),
    ElementType("bf16", 2, "bfloat16", 8, 15, 16, ("c10::BFloat16",)),
    ElementType("f8e4m3", 1, "float8_e4m3fn", 4, 24, 17, ("c10::Float8_e4m3fn",)),
    ElementType("f8e5m2", 1, "float8_e5m2", 3, 23, 19, ("c10::Float8_e5m2",)),
    ElementType("i64", 8, "int64", 0, 4, 7, ("long int", "long", "long long")),
    ElementType("i32", 4, "int32", 0, 3, 6, ("int",)),
    ElementType("i16", 2, "int16", 0, 2, 5, ("short", "short int")),
    ElementType("i8", 1, "int8", 0, 1, 3, ("signed char",)),
    ElementType("u8", 1, "uint8", 0, 0, 2, ("unsigned char",)),
    ElementType("bool", 1, "bool", 0, 11, 9, ("bool",)),
    ElementType("c64", 8, "complex64", 0, 9, 14, ("c10::complex<float>",)),
    ElementType("c128", 16, "complex128", 0, 10, 15, ("c10::complex<double>",)),
)
"""All element types, floating ones first and from fine to coarse; the CPU computes tf32 as f32."""

ITEMSIZE: Mapping[str, int] = {kind.name: kind.itemsize for kind in ELEMENT_TYPES}
"""Bytes of one element."""

TORCH: Mapping[str, str] = {kind.name: kind.torch for kind in ELEMENT_TYPES}
"""Torch's names."""

FROM_TORCH: Mapping[str, str] = {torch: name for name, torch in TORCH.items() if name != "tf32"}
"""Element types by torch's names."""

OTHER_NAMES: Mapping[str, str] = {
    **FROM_TORCH, "double": "f64", "float": "f32", "fp64": "f64", "fp32": "f32", "half": "f16",
    "fp16": "f16", "float8": "f8e4m3", "fp8": "f8e4m3", "long": "i64", "int": "i32", "short": "i16",
    "byte": "u8",
}  # fmt: skip
"""Element types by torch's and other common names."""

DIGITS: Mapping[str, int] = {kind.name: kind.digits for kind in ELEMENT_TYPES if kind.digits}
"""Binary digits of the floating types, from fine to coarse."""

FROM_SCALAR: Mapping[int, str] = {k.scalar: k.name for k in ELEMENT_TYPES if k.scalar >= 0}
"""Element types by torch's ``ScalarType`` numbers."""

FROM_ONNX: Mapping[int, str] = {kind.onnx: kind.name for kind in ELEMENT_TYPES if kind.onnx >= 0}
"""Element types by ONNX's numbers."""

FROM_CPP: Mapping[str, str] = {name: kind.name for kind in ELEMENT_TYPES for name in kind.cpp}
"""Element types by the C++ names that traces use."""
