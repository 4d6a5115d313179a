"""irgraph's own ops of quantised models: rounded rows, scaled sums, lookups in short types."""

from __future__ import annotations

from typing import Any

from irgraph.ir.narrow.ops import TOLERANCE
from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.custom import custom_operator, deferred
from irgraph.ops.meaning import OPAQUE, Axes, Axis, Meaning, Result, Slope, growing_together
from irgraph.ops.operator import Trait
from irgraph.ops.patterns import linear_sets

MIXED = frozenset({"k", "c", "n", "v", "i", "b", "o", "s"})
"""Letters of rows that are rounded together, of padded columns, and of lookups."""


def _rounding(call: Call) -> Meaning | None:
    """Return the meaning of rows rounded together and padded to ``columns``."""
    rows = call.inputs[0]
    if rows.rank != 2:
        return None
    is_padded = rows.shape != call.outputs[0].shape
    padded: Axes = ("m", "c" if is_padded else "k")
    results = (padded, ("m",))[: len(call.outputs)]
    return Meaning(
        operands=(("m", "k"),),
        results=tuple(map(Result, results)),
        mixed=MIXED,
        arguments={("columns", -1): padded[1]},
    )


def _scaling(call: Call) -> Meaning | None:
    """Return the meaning of sums, which may be padded, times scales of rows and columns."""
    sums, columns = call.tensor("self"), call.tensor("columns")
    if sums is None or columns is None or sums.rank != 2:
        return None
    is_padded = sums.shape[1] != columns.shape[0]
    axes: dict[str, Axes] = {
        "self": ("m", "c" if is_padded else "n"),
        "rows": ("m",),
        "columns": ("n",),
        "bias": ("n",),
    }
    return Meaning(
        operands=tuple(axes[name] for name, span in call.spans.items() for _ in span),
        results=(Result(("m", "n")),),
        mixed=MIXED if is_padded else frozenset(),
        linear=linear_sets(call, ("self bias",)),
    )


def _product(call: Call) -> Meaning | None:
    """Return the meaning of a product with a weight of two elements a byte, scaled by groups."""
    packed: Axes = ("n", "h")
    scales: Axes = ("g", "n", OPAQUE)
    return Meaning(
        operands=(("m", "k"), packed, scales),
        results=(Result(("m", "n")),),
        mixed=MIXED | {"h", "g"},
        fixed=frozenset({"k", "h", "g", "n"}),
    )


def _bags(call: Call) -> Meaning | None:
    """Return the meaning of bags of rows in a short type; without offsets a row is a bag."""
    indices, bags = call.tensor("indices"), call.outputs[0]
    if indices is None or indices.rank != (1 if "offsets" in call.spans else 2):
        return None
    of_indices: Axes = ("i",) if indices.rank == 1 else ("b", "s")
    of_offsets, slopes = _offsets(call, bags)
    axes: dict[str, Axes] = {
        "weight": ("v", "d"),
        "indices": of_indices,
        "offsets": of_offsets,
        "scale": (OPAQUE,),
        "per_sample_weights": ("i",),
    }
    return Meaning(
        operands=tuple(axes[name] for name, span in call.spans.items() for _ in span),
        results=(Result(("b", "d")),),
        mixed=MIXED,
        slopes=slopes,
    )


def _means(call: Call) -> Meaning | None:
    """Return the meaning of bags divided by their lengths."""
    offsets, slopes = _offsets(call, call.outputs[0])
    return Meaning(
        operands=(("b", "d"), ("i",), offsets),
        results=(Result(("b", "d")),),
        mixed=MIXED,
        linear=linear_sets(call, ("self",)),
        slopes=slopes,
    )


def _offsets(call: Call, bags: Tensor) -> tuple[Axes, tuple[Slope, ...]]:
    """Return the axes of offsets, of which there are as many as bags or one more."""
    offsets = call.tensor("offsets")
    letter: Axis = "b"
    if offsets is None or offsets.shape[0] == bags.shape[0]:
        return (letter,), ()
    return ("o",), growing_together("b", "o")


def _product_types(self: Any, weight: Any, scales: Any) -> Any:  # noqa: ANN401  (torch's tensors)
    return self.new_empty((self.shape[0], weight.shape[0]))


def _bag_types(
    weight: Any,  # noqa: ANN401
    indices: Any,  # noqa: ANN401
    offsets: Any = None,  # noqa: ANN401
    include_last_offset: bool = False,
    **_: object,
) -> Any:  # noqa: ANN401
    import torch

    bags = len(indices) if offsets is None else len(offsets) - include_last_offset
    return weight.new_empty((bags, weight.shape[1]), dtype=torch.float32)


OPERATORS = {
    **custom_operator(
        "irgraph::quantize_rows(Tensor self, SymInt columns, *, ScalarType? dtype=None)"
        " -> (Tensor, Tensor)",
        _rounding,
        deferred("narrow", "quantize_rows"),
        tolerance=TOLERANCE["layers"],
        text="m k! -> m c!, m",
    ),
    **custom_operator(
        "irgraph::dequantize_rows(Tensor self, Tensor rows, Tensor columns, *, Tensor? bias=None)"
        " -> Tensor",
        _scaling,
        deferred("narrow", "dequantize_rows"),
        text="m n, m, n, n -> m n",
    ),
    **custom_operator(
        "irgraph::quantize_static(Tensor self, SymInt columns, *, float scale) -> Tensor",
        _rounding,
        deferred("narrow", "quantize_static"),
        tolerance=TOLERANCE["layers"],
        text="m k! -> m c!",
    ),
    **custom_operator(
        "irgraph::dequantize_columns(Tensor self, Tensor columns, *, float scale,"
        " Tensor? bias=None) -> Tensor",
        _scaling,
        deferred("narrow", "dequantize_columns"),
        text="m n, n, n -> m n",
    ),
    **custom_operator(
        "irgraph::linear_i4(Tensor self, Tensor weight, Tensor scales) -> Tensor",
        _product,
        deferred("narrow", "linear_i4"),
        tolerance=TOLERANCE["layers"],
        types=_product_types,
        text="m k!, n! h!, g! n! _ -> m n!",
    ),
    **custom_operator(
        "irgraph::embedding_bag_rows(Tensor weight, Tensor indices, Tensor? offsets=None,"
        " Tensor? scale=None, *, Tensor? per_sample_weights=None, bool include_last_offset=False)"
        " -> Tensor",
        _bags,
        deferred("narrow", "embedding_bag_rows"),
        tolerance=TOLERANCE["rows"],
        types=_bag_types,
        text="v! d, i!, b! -> b! d",
        traits=[Trait.LOOKUP],
    ),
    **custom_operator(
        "irgraph::bag_means(Tensor self, Tensor indices, Tensor offsets, *,"
        " bool include_last_offset=False) -> Tensor",
        _means,
        deferred("narrow", "bag_means"),
        text="b! d, i!, b! -> b! d",
    ),
}
