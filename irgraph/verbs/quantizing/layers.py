"""Linear layers that become products of narrow types, their rows rounded at run time."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.graph import Declared, Graph
from irgraph.ir.narrow.ops import (
    DEQUANTIZE,
    LAYER_FORMATS,
    MAX_VALUES,
    PRODUCT,
    QUANTIZE,
    SCALED,
    STATIC,
    UNSCALED,
    LayerFormat,
    round_up,
)
from irgraph.ir.narrow.prepared import SCALES, WEIGHT, layer_shapes
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import DType, Tensor, row_major
from irgraph.ops.book import names_with
from irgraph.ops.operator import Trait
from irgraph.verbs.quantizing.bags import arguments
from irgraph.verbs.quantizing.rewriter import QuantizeRewrite
from irgraph.verbs.refusal import RefusedError, op_refusal

Arguments = Mapping[str, Value]


class LayerQuantization(Struct, frozen=True):
    """A format, and the largest element that static quantisation assumes; 0 for dynamic."""

    format: str
    range: float = 0.0

    def __str__(self) -> str:
        """Return the key of the layers that may share rounded rows."""
        layer_format = LAYER_FORMATS[self.format]
        return f"{layer_format.rows} {layer_format.depth_step} {self.range!r}"

    @property
    def scale(self) -> float:
        """The value of one step of a statically quantised row."""
        return self.range / MAX_VALUES[self.format]


class RoundedRows(Struct, frozen=True):
    """Rounded rows: their source, the rounded tensor, and the scale of each row, if they differ."""

    data: Tensor
    rows: Tensor
    scales: Tensor | None


def is_layer(op: Op) -> bool:
    """Return whether an op is a linear layer, or a product that could be one."""
    if op.name == "aten.matmul":
        second = op.operands[1] if len(op.operands) > 1 else None
        return isinstance(second, Tensor) and second.rank == 2
    return op.name in names_with(Trait.LAYER)


def check_layer(graph: Graph, op: Op, target: str) -> Tensor:
    """Return the operand that is the weight of a layer that can be quantised; refuse other ops."""
    if target not in LAYER_FORMATS:
        formats = ", ".join(LAYER_FORMATS)
        raise RefusedError(f"a linear layer can be quantised to {formats}, not to {target!r}")
    by_name = arguments(graph, op)
    data, weight, bias = _parts(op, by_name)
    if data.dtype != "f32" or weight.dtype != "f32" or data.rank < 2 or weight.rank != 2:
        raise op_refusal(op, "is not a product of rows in f32 with a matrix in f32")
    if any(by_name.get(name, 1) != 1 for name in ("alpha", "beta")):
        raise op_refusal(op, "scales its product (alpha, beta)")
    if bias is not None and bias.rank != 1:
        raise op_refusal(op, f"adds %{bias.name}, which is not a bias of its columns")
    rows = data.numel // max(int(data.shape[-1]), 1)
    layer_format = LAYER_FORMATS[target]
    if rows < layer_format.min_rows:
        product, limit = layer_format.product.replace(".", "::"), layer_format.min_rows - 1
        detail = f"{product} takes more than {limit} on devices"
        raise op_refusal(op, f"has {rows} rows, and {detail}")
    if _inputs(weight, 1 - (op.name == "aten.linear")) is None:
        raise op_refusal(op, f"multiplies with %{weight.name} row by row, as no linear layer does")
    return weight


def span_of(op: Op, parameter: Tensor, weight: Tensor) -> tuple[int, int] | None:
    """Return the rows of a weight [outputs, inputs] that a layer uses, ``None`` if it uses none."""
    columns = int(parameter.shape[1])
    if _inputs(weight, 1 - (op.name == "aten.linear")) != columns:
        return None
    first, rest = divmod(weight.offset - parameter.offset, columns * parameter.itemsize)
    last = first + weight.numel // columns
    return None if rest or first < 0 or last > parameter.shape[0] else (first, last)


def _inputs(weight: Tensor, outputs: int) -> int | None:
    """Return the inputs of a weight whose outputs are along an axis, one dense row each.

    ``None`` if rows are not dense, or are along the other axis.
    """
    count, inputs = int(weight.shape[outputs]), int(weight.shape[1 - outputs])
    steps = weight.strides or row_major(weight.shape)
    fits = (steps[1 - outputs] == 1 or inputs == 1) and (steps[outputs] == inputs or count == 1)
    return inputs if fits and inputs and count else None


def _parts(op: Op, by_name: Arguments) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the data, the weight and the bias of a product."""
    names = {
        "aten.linear": ("input", "weight", "bias"),
        "aten.addmm": ("mat1", "mat2", "self"),
        "aten.mm": ("self", "mat2", ""),
        "aten.matmul": ("self", "other", ""),
    }[op.name]
    data, weight, bias = (by_name.get(name) for name in names)
    if not isinstance(data, Tensor) or not isinstance(weight, Tensor):
        raise op_refusal(op, "multiplies no two tensors")
    return data, weight, bias if isinstance(bias, Tensor) else None


def factors(graph: Graph, op: Op) -> tuple[Tensor | None, Tensor | None]:
    """Return the data and the weight of a layer; two times ``None`` for other ops."""
    try:
        return _parts(op, arguments(graph, op))[:2]
    except RefusedError:
        return None, None


def quantize_layer(
    rewrite: QuantizeRewrite,
    op: Op,
    weight: Declared,
    quantization: LayerQuantization,
    rounded_by_key: dict[str, RoundedRows],
) -> None:
    """Replace a layer by rounding, product and scaling.

    ``rounded_by_key`` are rows that were rounded before and were not written since.
    """
    data, operand, bias = _parts(op, arguments(rewrite.graph, op))
    weight_slice = WeightSlice(weight, span_of(op, weight.tensor, operand) or ())
    layer_format = LAYER_FORMATS[quantization.format]
    key = f"{data.name} {quantization}"
    if key not in rounded_by_key:
        rounded_by_key[key] = _round_rows(rewrite, op, data, quantization)
    rounded = rounded_by_key[key]
    if layer_format.rows in UNSCALED:
        _put_short_product(rewrite, op, rounded.rows, weight_slice, layer_format, bias)
        return
    factor, scales = (
        _weight(rewrite, weight_slice, data, layer_format.weight),
        _scales(rewrite, weight_slice, layer_format.weight),
    )
    out, count = op.outputs[0], rounded.rows.shape[0]
    sums = rewrite.tensor(
        f"{out.name}_{layer_format.sums}", layer_format.sums, (count, factor.shape[1]), data
    )
    if layer_format.product == PRODUCT:
        rewrite.insert(op, PRODUCT, (rounded.rows, factor), sums)
    else:
        unit_scale = rewrite.constant("one", "f32", 1.0, data)
        pair = (rounded.rows, factor, unit_scale, unit_scale)
        rewrite.insert(op, layer_format.product, pair, sums, out_dtype=DType(layer_format.sums))
    rows = rewrite.row_result(out, count)
    attributes: dict[str, Value] = {} if bias is None else {"bias": bias}
    if rounded.scales is None:
        rewrite.insert(op, SCALED, (sums, scales), rows, scale=quantization.scale, **attributes)
    else:
        rewrite.insert(op, DEQUANTIZE, (sums, rounded.scales, scales), rows, **attributes)
    rewrite.reshape(op, rows, out)


class WeightSlice(Struct, frozen=True):
    """The rows of a parameter that a layer multiplies with, all of them or some."""

    parameter: Declared
    rows: tuple[int, ...]

    @property
    def span(self) -> tuple[int, ...]:
        """The first of the rows and the one after the last; empty if it is all of them."""
        return () if self.rows == (0, self.parameter.tensor.shape[0]) else self.rows

    def name(self, kind: str) -> str:
        """Return the name of the slice in a format."""
        return "_".join(map(str, (self.parameter.tensor.name, *self.span, kind)))

    def shapes(self, kind: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of the prepared weight, and of its scales."""
        first, last = self.rows
        return layer_shapes(kind, last - first, int(self.parameter.tensor.shape[1]))


def _weight(
    rewrite: QuantizeRewrite, weight_slice: WeightSlice, template: Tensor, kind: str
) -> Tensor:
    """Return a layer's prepared weight."""
    shape, _ = weight_slice.shapes(kind)
    factor = rewrite.tensor(
        weight_slice.name(kind), "u8" if kind == "i4" else kind, shape, template
    )
    if kind != "i4":
        factor = replace(factor, strides=(1, shape[0]))
    return rewrite.parameter(factor, kind, WEIGHT, weight_slice.parameter, weight_slice.span)


def _scales(rewrite: QuantizeRewrite, weight_slice: WeightSlice, kind: str) -> Tensor:
    """Return the scales of a layer's prepared weight."""
    _, shape = weight_slice.shapes(kind)
    name, dtype = f"{weight_slice.name(kind)}_scales", "bf16" if kind == "i4" else "f32"
    scales = rewrite.tensor(name, dtype, shape, weight_slice.parameter.tensor)
    return rewrite.parameter(scales, kind, SCALES, weight_slice.parameter, weight_slice.span)


def _round_rows(
    rewrite: QuantizeRewrite, op: Op, data: Tensor, quantization: LayerQuantization
) -> RoundedRows:
    """Insert the rounding of rows before an op."""
    layer_format = LAYER_FORMATS[quantization.format]
    flat = rewrite.as_matrix(op, _dense(rewrite, op, data), int(data.shape[-1]))
    count, deep = flat.shape[0], round_up(data.shape[-1], layer_format.depth_step)
    if layer_format.rows in UNSCALED:
        return RoundedRows(data, _cast(rewrite, op, flat, (layer_format.rows, deep)), None)
    rows = rewrite.tensor(
        f"{data.name}_{quantization.format}", layer_format.rows, (count, deep), data
    )
    if quantization.range:
        rewrite.insert(op, STATIC, (flat,), rows, columns=deep, scale=quantization.scale)
        return RoundedRows(data, rows, None)
    scales = rewrite.tensor(f"{data.name}_{quantization.format}_scale", "f32", (count,), data)
    attributes: dict[str, Value] = (
        {} if layer_format.rows == "i8" else {"dtype": DType(layer_format.rows)}
    )
    rewrite.insert(op, QUANTIZE, (flat,), rows, scales, columns=deep, **attributes)
    return RoundedRows(data, rows, scales)


def _dense(rewrite: QuantizeRewrite, op: Op, data: Tensor) -> Tensor:
    """Return rows without gaps between them, copied before an op if they have some."""
    if data.contiguous:
        return data
    copy = rewrite.tensor(f"{data.name}_dense", data.dtype, data.shape, data)
    rewrite.insert(op, "aten.clone", (data,), copy, memory_format="contiguous_format")
    return copy


def _cast(rewrite: QuantizeRewrite, op: Op, flat: Tensor, target: tuple[str, int]) -> Tensor:
    """Insert the cast of rows before an op, padded with zeros to ``deep`` columns if needed."""
    (kind, deep), (count, width) = target, flat.shape
    rows = rewrite.tensor(f"{flat.name}_{kind}", kind, (count, width), flat)
    rewrite.insert(op, "aten._to_copy", (flat,), rows, dtype=DType(kind))
    if width == deep:
        return rows
    padded = rewrite.tensor(f"{flat.name}_wide", kind, (count, deep), flat)
    rewrite.insert(op, "aten.constant_pad_nd", (rows, (0, deep - int(width))), padded)
    return padded


def _put_short_product(
    rewrite: QuantizeRewrite,
    op: Op,
    rows: Tensor,
    weight_slice: WeightSlice,
    layer_format: LayerFormat,
    bias: Tensor | None,
) -> None:
    """Replace a layer by a product of rows in f16 or bf16, with its bias added in f32."""
    out, count = op.outputs[0], rows.shape[0]
    outputs, kind = int(out.shape[-1]), layer_format.weight
    scales = (_scales(rewrite, weight_slice, kind),) if kind not in UNSCALED else ()
    factor = _weight(rewrite, weight_slice, out, kind)
    padded_outputs = round_up(outputs, layer_format.output_step)
    product = rewrite.tensor(
        f"{out.name}_{layer_format.sums}", layer_format.sums, (count, padded_outputs), out
    )
    rewrite.insert(op, layer_format.product, (rows, factor, *scales), product)
    if padded_outputs != outputs:
        columns = rewrite.view(f"{out.name}_kept", product, (count, outputs), (padded_outputs, 1))
        rewrite.insert(op, "aten.slice", (product, 1, 0, outputs), columns)
        product = columns
    result = rewrite.row_result(out, count)
    if bias is None:
        rewrite.insert(op, "aten._to_copy", (product,), result, dtype=DType("f32"))
    else:
        rewrite.insert(op, "aten.add", (product, bias), result)
    rewrite.reshape(op, result, out)
