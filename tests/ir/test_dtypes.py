"""Element types: as torch and ONNX define them."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from irgraph.ir.dtypes import ELEMENT_TYPES, FROM_CPP, FROM_ONNX, FROM_SCALAR, ElementType


@pytest.mark.parametrize("kind", ELEMENT_TYPES, ids=lambda kind: kind.name)
def test_sizes_and_digits_are_torchs(kind: ElementType) -> None:
    dtype = getattr(torch, kind.torch)
    assert kind.itemsize == dtype.itemsize
    if not dtype.is_floating_point:
        assert kind.digits == 0
    elif kind.name == "tf32":
        assert kind.digits == 1 + 10  # ten bits of fraction (NVIDIA, A100 whitepaper)
    else:
        assert kind.digits == 1 - math.log2(torch.finfo(dtype).eps)


def test_numbers_are_those_of_torchs_header() -> None:
    """Each line of the list reads ``_(C++ type, Name) /* number */``."""
    header = Path(torch.__file__).parent / "include/torch/headeronly/core/ScalarType.h"
    if not header.exists():
        header = Path(torch.__file__).parent / "include/c10/core/ScalarType.h"
    lines = re.findall(r"_\(([\w:<>]+), (\w+)\) +/\* (\d+) \*/", header.read_text("utf-8"))
    names = {int(number): c10.removeprefix("c10::") for c10, _, number in lines}
    short = {"uint8_t": "u8", "int8_t": "i8", "int16_t": "i16", "int": "i32", "int64_t": "i64"}
    by_cpp = {name.removeprefix("c10::"): kind for name, kind in FROM_CPP.items()} | short
    theirs = {number: by_cpp[name] for number, name in names.items() if name in by_cpp}
    assert theirs == FROM_SCALAR
    assert {kind.name for kind in ELEMENT_TYPES} == {*FROM_SCALAR.values(), "tf32"}


def test_numbers_are_those_of_onnx() -> None:
    import onnx

    for number, kind in FROM_ONNX.items():
        name = next(k.torch for k in ELEMENT_TYPES if k.name == kind)
        known = {
            "FLOAT": "float32",
            "DOUBLE": "float64",
            "FLOAT8E4M3FN": "float8_e4m3fn",
            "FLOAT8E5M2": "float8_e5m2",
        }
        theirs = onnx.TensorProto.DataType.Name(number)
        assert known.get(theirs, theirs.lower()) == name
    assert {kind.name for kind in ELEMENT_TYPES} == {*FROM_ONNX.values(), "tf32"}
