"""The sizes of FlexAttention: of attention, and of the tensors that its functions look into."""

from __future__ import annotations

from fractions import Fraction

from irgraph.axes.relations import AxisOf, ConstrainedOp, Relation, Slope, aligned, aligned_at, axis
from irgraph.ir.tensor import Tensor
from irgraph.ir.torch_schemas.score_functions import lookups


def flexible(site: ConstrainedOp) -> Relation:
    """Attention of [B, H, S, D] over [B, H, T, D] by functions of single scores.

    Lengths are fixed where a tensor is looked into by a computed index, since the text's numbers
    may follow from them; so are the numbers of heads where several share their keys.
    """
    tensors = [t for t in site.op.operands if isinstance(t, Tensor)]
    made = [t for t in site.op.results if isinstance(t, Tensor) and t.numel]
    if site.op.name.endswith("_backward"):
        (g, q, k, v, out), sums = tensors[:5], tensors[5:]
        queries, keys, values, wide = [q, made[0]], [k, made[1]], [v, made[2]], [g, out]
    else:
        (q, k, v), (out, *sums) = tensors, made
        queries, keys, values, wide = [q], [k], [v], [out]
    whole = [*queries, *wide, *sums]
    one = k.shape[0] != q.shape[0]
    found = Relation(equal=aligned_at(0, whole if one else [*whole, *keys, *values]))
    if k.shape[1] == q.shape[1]:
        found.equal += aligned_at(1, [*whole, *keys, *values])
    found.equal += [*aligned_at(3, [*queries, *keys]), *aligned_at(3, [*values, *wide])]
    texts = [str(site.attribute(name, "")) for name in ("score", "mask")]
    looked = [entry for text in texts for entry in lookups(text)]
    if all(place for _, _, place in looked):
        found.equal += [*aligned_at(2, whole), *aligned_at(2, [*keys, *values])]
    _tables(
        site, looked, {"b": axis(q, 0), "h": axis(q, 1), "q": axis(q, 2), "k": axis(k, 2)}, found
    )
    return found


def _tables(
    site: ConstrainedOp,
    looked: list[tuple[str, int, str]],
    places: dict[str, AxisOf],
    found: Relation,
) -> None:
    """Add the sizes of what is looked into, and of its gradients, which the last result lists."""
    held = site.attribute("buffers", ())
    buffers = [t for t in held if isinstance(t, Tensor)] if isinstance(held, tuple) else []
    for source, place, index in looked:
        if index in places:
            table = buffers[int(source[1:])]
            found.slopes.append(Slope(places[index], axis(table, place), Fraction(1)))
    learned = site.attribute("learned", ())
    gradients = site.op.results[3] if len(site.op.results) > 3 else ()
    if isinstance(learned, tuple) and isinstance(gradients, tuple):
        for number, gradient in zip(learned, gradients, strict=True):
            found.equal += aligned([buffers[int(number)], gradient])  # type: ignore[arg-type]
