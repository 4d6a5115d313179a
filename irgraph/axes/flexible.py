"""Size constraints of FlexAttention and of the tensors that its functions look up."""

from __future__ import annotations

from fractions import Fraction

from irgraph.axes.relations import (
    AxisOf,
    ConstrainedOp,
    Relation,
    Slope,
    axis,
    broadcast_groups,
    equal_groups_at,
)
from irgraph.ir.tensor import Tensor
from irgraph.ir.torch_schemas.score_functions import lookups


def flex_attention_relation(site: ConstrainedOp) -> Relation:
    """Return the constraints of attention of [B, H, S, D] over [B, H, T, D] with score functions.

    Lengths are fixed if a tensor is looked up by a computed index, since the text's numbers may
    follow from them; so are the numbers of heads if several share their keys.
    """
    tensors = [t for t in site.op.operands if isinstance(t, Tensor)]
    outputs = [t for t in site.op.results if isinstance(t, Tensor) and t.numel]
    if site.op.name.endswith("_backward"):
        (g, q, k, v, out), sums = tensors[:5], tensors[5:]
        queries, keys, values, value_rows = (
            [q, outputs[0]],
            [k, outputs[1]],
            [v, outputs[2]],
            [g, out],
        )
    else:
        (q, k, v), (out, *sums) = tensors, outputs
        queries, keys, values, value_rows = [q], [k], [v], [out]
    query_like = [*queries, *value_rows, *sums]
    broadcasts_keys = k.shape[0] != q.shape[0]
    relation = Relation(
        equal=equal_groups_at(0, query_like if broadcasts_keys else [*query_like, *keys, *values])
    )
    if k.shape[1] == q.shape[1]:
        relation.equal += equal_groups_at(1, [*query_like, *keys, *values])
    relation.equal += [
        *equal_groups_at(3, [*queries, *keys]),
        *equal_groups_at(3, [*values, *value_rows]),
    ]
    texts = [str(site.attribute(name, "")) for name in ("score", "mask")]
    entries = [entry for text in texts for entry in lookups(text)]
    if all(position for _, _, position in entries):
        relation.equal += [*equal_groups_at(2, query_like), *equal_groups_at(2, [*keys, *values])]
    _add_lookups(
        site,
        entries,
        {"b": axis(q, 0), "h": axis(q, 1), "q": axis(q, 2), "k": axis(k, 2)},
        relation,
    )
    return relation


def _add_lookups(
    site: ConstrainedOp,
    entries: list[tuple[str, int, str]],
    axis_by_index: dict[str, AxisOf],
    relation: Relation,
) -> None:
    """Add the sizes of tensors looked up, and of their gradients, which the last result lists."""
    value = site.attribute("buffers", ())
    buffers = [t for t in value if isinstance(t, Tensor)] if isinstance(value, tuple) else []
    for source, position, index in entries:
        if index in axis_by_index:
            table = buffers[int(source[1:])]
            relation.slopes.append(Slope(axis_by_index[index], axis(table, position), Fraction(1)))
    numbers = site.attribute("learned", ())
    gradients = site.op.results[3] if len(site.op.results) > 3 else ()
    if isinstance(numbers, tuple) and isinstance(gradients, tuple):
        for number, gradient in zip(numbers, gradients, strict=True):
            relation.equal += broadcast_groups([buffers[int(number)], gradient])  # type: ignore[arg-type]
