"""Linear layers that become products of integers, their rows rounded as they come."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.graph import Declared, Graph
from irgraph.ir.narrow.ops import DEQUANTIZE, LEAST_ROWS, PRODUCT, QUANTIZE, eights
from irgraph.ir.narrow.prepared import SCALES, WEIGHT
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.verbs.quantizing.bags import arguments
from irgraph.verbs.quantizing.work import Work
from irgraph.verbs.refusal import RefusedError, refused

LAYERS = ("aten.linear", "aten.addmm", "aten.mm")
"""What a linear layer may be called as."""

Known = Mapping[str, Value]


class Rounded(Struct, frozen=True):
    """Rows that were rounded: of which tensor, to which integers, and the scale of each row."""

    data: Tensor
    rows: Tensor
    scales: Tensor


def is_layer(op: Op) -> bool:
    """Return whether an op is a linear layer, or a product that could be one."""
    return op.name in LAYERS


def check_layer(graph: Graph, op: Op, to: str) -> Tensor:
    """Return the weight of a layer that can be one of integers, as it is used; refuse others."""
    if to != "i8":
        hint = "cast it" if to in ("f16", "bf16", "tf32") else "there is no such layer"
        raise RefusedError(f"a linear layer can be quantised to i8, not to {to!r}: {hint}")
    given = arguments(graph, op)
    data, weight, bias = _parts(op, given)
    if data.dtype != "f32" or weight.dtype != "f32" or data.rank < 2 or weight.rank != 2:
        raise refused(op, "is no product of rows in f32 with a matrix in f32")
    if any(given.get(name, 1) != 1 for name in ("alpha", "beta")):
        raise refused(op, "scales its product (alpha, beta)")
    if bias is not None and bias.rank != 1:
        raise refused(op, f"adds %{bias.name}, which is no bias of its columns")
    if not data.contiguous:
        raise refused(op, f"takes rows with gaps (%{data.name})")
    rows = data.numel // max(int(data.shape[-1]), 1)
    if rows < LEAST_ROWS:
        raise refused(op, f"has {rows} rows, and aten::_int_mm takes more than 16 on devices")
    if op.name != "aten.linear" and not _crossed(weight):
        raise refused(op, f"multiplies with %{weight.name} row by row, as no linear layer does")
    return weight


def _parts(op: Op, given: Known) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return what a product multiplies, and its bias."""
    names = {"aten.linear": ("input", "weight", "bias"), "aten.addmm": ("mat1", "mat2", "self"),
             "aten.mm": ("self", "mat2", "")}[op.name]  # fmt: skip
    data, weight, bias = (given.get(name) for name in names)
    if not isinstance(data, Tensor) or not isinstance(weight, Tensor):
        raise refused(op, "multiplies no two tensors")
    return data, weight, bias if isinstance(bias, Tensor) else None


def _crossed(weight: Tensor) -> bool:
    """Return whether a second factor is a weight [outputs, inputs], transposed."""
    return weight.strides is not None and weight.strides == (1, int(weight.shape[0]))


def quantize_layer(work: Work, op: Op, weight: Declared, ready: dict[str, Rounded]) -> None:
    """Put rounding, product and scaling in the place of a layer.

    ``ready`` are tensors whose rows were rounded before and were not written since.
    """
    data, _, bias = _parts(op, arguments(work.graph, op))
    out, name = op.outputs[0], weight.tensor.name
    outputs, inputs = weight.tensor.shape
    deep, wide = eights(inputs), eights(outputs)
    factor = replace(work.tensor(f"{name}_i8", "i8", (deep, wide), data), strides=(1, deep))
    scales = work.tensor(f"{name}_i8_scales", "f32", (outputs,), data)
    factor = work.parameter(factor, "i8", WEIGHT, weight)
    scales = work.parameter(scales, "i8", SCALES, weight)
    if data.name not in ready:
        ready[data.name] = _rounded(work, op, data, deep)
    rounded = ready[data.name]
    sums = work.tensor(f"{out.name}_i32", "i32", (rounded.rows.shape[0], wide), data)
    work.put(op, PRODUCT, (rounded.rows, factor), sums)
    rows = work.result(out, rounded.rows.shape[0])
    more = {} if bias is None else {"bias": bias}
    work.put(op, DEQUANTIZE, (sums, rounded.scales, scales), rows, **more)
    work.shaped(op, rows, out)


def _rounded(work: Work, op: Op, data: Tensor, deep: int) -> Rounded:
    """Put the rounding of rows before an op."""
    flat = work.flat(op, data, int(data.shape[-1]))
    rows = work.tensor(f"{data.name}_i8", "i8", (flat.shape[0], deep), data)
    scales = work.tensor(f"{data.name}_i8_scale", "f32", (flat.shape[0],), data)
    work.put(op, QUANTIZE, (flat,), rows, scales, columns=deep)
    return Rounded(data, rows, scales)
