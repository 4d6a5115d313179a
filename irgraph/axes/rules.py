"""Size constraints of the ops of captured steps, for which torch need not be queried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache

from irgraph.axes.flexible import flex_attention_relation
from irgraph.axes.relations import (
    ConstrainedOp,
    Multiple,
    Relation,
    SizeKey,
    Slope,
    Sum,
    axes,
    axis,
    axis_pairs,
    broadcast_groups,
    equal_groups_at,
)
from irgraph.axes.views import view_relation
from irgraph.ir.schema import schemas_of
from irgraph.ir.tensor import Tensor
from irgraph.ir.tf32 import PLAIN

POINTWISE = frozenset((
    "aten._to_copy", "aten.to", "aten.copy_", "aten.contiguous", "aten.zero_", "aten.fill_",
    "aten.pin_memory", "aten._pin_memory",
    "aten.ones_like", "aten.zeros_like", "aten.empty_like", "aten.full_like", "aten.rand_like",
    "aten.bernoulli", "aten.bernoulli_", "aten.normal_", "aten.uniform_", "aten.dropout",
    "aten.dropout_", "aten.native_dropout", "aten.native_dropout_backward", "aten.detach_",
    "aten.lift_fresh_", "aten.broadcast_tensors", "aten.expand_as", "aten.cumsum", "aten.softmax",
    "aten.log_softmax", "aten._softmax", "aten._log_softmax", "aten._softmax_backward_data",
    "aten._log_softmax_backward_data", "aten.mse_loss", "aten.mse_loss_backward",
    "aten.l1_loss", "aten.smooth_l1_loss", "aten.smooth_l1_loss_backward",
    "aten.binary_cross_entropy", "aten.binary_cross_entropy_backward",
    "aten.binary_cross_entropy_with_logits",
))  # fmt: skip
"""Pointwise ops, up to broadcasting, that torch does not tag as such."""


def relation_of(site: ConstrainedOp) -> Relation:
    """Return the size constraints of an op; ``needs_probe`` is set if there is no rule."""
    name = site.op.name
    rule = RULES.get(name)
    if rule is not None:
        return rule(site)
    if name.startswith(("aten._foreach_", "aten._fused_", "aten._amp_foreach", "c10d.")):
        return _foreach(site)
    if name in POINTWISE or _is_pointwise(name):
        return Relation(equal=broadcast_groups(site.tensors))
    return view_relation(site) or Relation(needs_probe=True)


def has_rule(name: str) -> bool:
    """Return whether an op has a rule: its arguments may be sizes, even if it is a scope."""
    return name in RULES


@cache
def _is_pointwise(name: str) -> bool:
    return any(schema.pointwise for schema in schemas_of(name))


def _foreach(site: ConstrainedOp) -> Relation:
    """Lists of tensors, element by element."""
    op = site.op
    values = (*op.operands, *op.attributes.values(), *op.results)
    lists = [v for v in values if isinstance(v, tuple) and v and isinstance(v[0], Tensor)]
    relation = Relation()
    for column in zip(*lists, strict=False):
        relation.equal += broadcast_groups([t for t in column if isinstance(t, Tensor)])
    return relation


def _product(site: ConstrainedOp) -> Relation:
    """``mm``, ``bmm``, ``addmm``, ``baddbmm``: the last two operands are multiplied."""
    *added, a, b = site.inputs
    y = site.outputs[0] if site.outputs else added[0]
    relation = Relation(equal=[(axis(a, -2), axis(y, -2)), (axis(b, -1), axis(y, -1))])
    relation.equal.append((axis(a, -1), axis(b, -2)))
    if a.rank == 3:
        relation.equal.append((axis(a, 0), axis(b, 0), axis(y, 0)))
    for bias in added:
        relation.equal += broadcast_groups([bias, y])
    return relation


def _linear(site: ConstrainedOp) -> Relation:
    x, w, *bias = site.inputs
    y = site.outputs[0]
    equal: list[tuple[SizeKey, ...]] = [(axis(x, i), axis(y, i)) for i in range(x.rank - 1)]
    equal.append((axis(x, -1), axis(w, -1)))
    equal.append((axis(y, -1), axis(w, 0), *(axis(b, 0) for b in bias)))
    return Relation(equal=equal)


def _reduction(site: ConstrainedOp) -> Relation:
    """Reductions over the axes ``dim``."""
    x = site.inputs[0]
    dim = site.attribute("dim")
    dims = dim if isinstance(dim, tuple) else () if dim is None else (dim,)
    reduced_axes = {i % x.rank for i in dims if isinstance(i, int) and x.rank} or set(range(x.rank))
    relation = Relation(free={axis(x, i) for i in reduced_axes})
    remaining_axes = [i for i in range(x.rank) if i not in reduced_axes]
    for y in site.outputs:
        output_axes = remaining_axes if y.rank == x.rank else range(y.rank)
        relation.equal += [
            (axis(x, i), axis(y, j)) for i, j in zip(remaining_axes, output_axes, strict=False)
        ]
    return relation


def _factory(site: ConstrainedOp) -> Relation:
    """Factories: ``size`` is the shape; operands determine only the type."""
    y = site.outputs[0]
    relation = Relation(free={key for x in site.inputs for key in axes(x)})
    sizes = site.sizes("size")
    relation.equal = [(axis(y, i), site.argument("size", i)) for i in range(len(sizes))]
    return relation


def _concatenation(site: ConstrainedOp) -> Relation:
    """``cat``: the axis ``dim`` of the result is the sum of the operands'."""
    y = site.outputs[0]
    dim = site.number_of("dim", 0) % y.rank
    parts = [x for x in site.inputs if x.rank == y.rank]
    sides = [[(t.name, i) for i in range(y.rank) if i != dim] for t in (y, *parts)]
    total = Sum(axis(y, dim), tuple(axis(x, dim) for x in parts))
    return Relation(equal=axis_pairs(*sides), sums=[total])


def _stack(site: ConstrainedOp) -> Relation:
    y = site.outputs[0]
    dim = site.number_of("dim", 0) % y.rank
    other_axes = [axis(y, i) for i in range(y.rank) if i != dim]
    return Relation(equal=axis_pairs(other_axes, *(axes(x) for x in site.inputs)))


def _embedding(site: ConstrainedOp) -> Relation:
    w, i = site.inputs[:2]
    y = site.outputs[0]
    equal = [*axis_pairs(axes(i), axes(y)), (axis(w, 1), axis(y, -1))]
    return Relation(equal=equal, free={axis(w, 0)})


def _embedding_backward(site: ConstrainedOp) -> Relation:
    g, i = site.inputs[:2]
    relation = Relation(equal=[*axis_pairs(axes(i), axes(g))])
    for y in site.outputs:
        relation.equal.append((axis(g, -1), axis(y, -1)))
        relation.equal.append((axis(y, 0), site.argument("num_weights")))
    return relation


def _bags(site: ConstrainedOp) -> Relation:
    """``embedding_bag``: the number of lookups per bag is unchanged as the number of bags grows."""
    w, indices, offsets = site.inputs[:3]
    y, *auxiliaries = site.outputs
    relation = Relation(equal=[(axis(w, -1), axis(y, -1))], free={axis(w, 0)})
    bags = (axis(y, 0), axis(offsets, 0))
    if y.shape[0] == offsets.shape[0]:
        relation.equal.append(bags)
    else:
        relation.slopes += [Slope(a, b, Fraction(1)) for a, b in (bags, bags[::-1])]
    _add_lookups(indices, y, relation)
    if len(auxiliaries) == 3:
        _add_auxiliaries(
            auxiliaries, (axis(indices, 0), bags[0], axis(y, -1)), (indices, y), relation
        )
    for weights in site.inputs[3:]:
        relation.equal.append((axis(indices, 0), axis(weights, 0)))
    return relation


def _add_auxiliaries(
    auxiliaries: Sequence[Tensor],
    keys: tuple[SizeKey, SizeKey, SizeKey],
    operands: tuple[Tensor, Tensor],
    relation: Relation,
) -> None:
    """Link the bag of each index, the sizes of bags and the indices of maxima, if recorded."""
    of_index, sizes, maxima = auxiliaries
    indices, y = operands
    if of_index.shape == indices.shape:
        relation.equal.append((axis(of_index, 0), keys[0]))
    if sizes.shape[:1] == y.shape[:1]:
        relation.equal.append((axis(sizes, 0), keys[1]))
    if maxima.shape[:1] == y.shape[:1]:
        relation.equal += axis_pairs(axes(maxima), keys[1:])


def _add_lookups(indices: Tensor, bags: Tensor, relation: Relation) -> None:
    if indices.rank == 1 and bags.shape[0] and indices.shape[0] % bags.shape[0] == 0:
        multiple = indices.shape[0] // bags.shape[0]
        relation.follows.append(Multiple(axis(bags, 0), axis(indices, 0), multiple))


def _bags_backward(site: ConstrainedOp) -> Relation:
    g, indices, *auxiliaries = site.inputs
    relation = Relation()
    if site.op.name == "aten._embedding_bag_backward" and auxiliaries:
        offsets, *auxiliaries = auxiliaries
        if offsets.shape[0] == g.shape[0]:
            relation.equal.append((axis(g, 0), axis(offsets, 0)))
        else:
            relation.slopes.append(Slope(axis(g, 0), axis(offsets, 0), Fraction(1)))
    if len(auxiliaries) >= 3:
        keys = (axis(indices, 0), axis(g, 0), axis(g, -1))
        _add_auxiliaries(auxiliaries[:3], keys, (indices, g), relation)
    relation.equal += [(axis(weights, 0), axis(indices, 0)) for weights in auxiliaries[3:]]
    _add_lookups(indices, g, relation)
    for y in site.outputs:
        relation.equal.append((axis(y, 0), site.argument("num_weights")))
        if y.rank > 1:
            relation.equal.append((axis(y, -1), axis(g, -1)))
    return relation


def _layer_norm(site: ConstrainedOp) -> Relation:
    relation = Relation(equal=broadcast_groups(site.tensors))
    sizes = site.sizes("normalized_shape")
    x = site.inputs[0]
    relation.equal += [
        (axis(x, i - len(sizes)), site.argument("normalized_shape", i)) for i in range(len(sizes))
    ]
    return relation


def _channels(site: ConstrainedOp) -> Relation:
    """Batch normalisation: tensors of one axis have an element for each channel."""
    images = [t for t in site.tensors if t.rank > 1]
    relation = Relation(equal=broadcast_groups(images))
    x = images[0]
    of_channels = [axis(t, 0) for t in site.tensors if t.rank == 1 and t.shape[0] == x.shape[1]]
    relation.equal.append((axis(x, 1), *of_channels))
    return relation


def _per_axis(site: ConstrainedOp, name: str, count: int, default: int) -> list[int]:
    """Return an argument with one number per axis; a single number applies to all."""
    value = site.attribute(name)
    items = value if isinstance(value, tuple) else (value,) if isinstance(value, int) else ()
    numbers = [int(n) for n in items if isinstance(n, int)] or [default]
    return numbers if len(numbers) == count else numbers[:1] * count


def _window_slopes(x: Tensor, ys: Iterable[Tensor], strides: Sequence[int]) -> list[Slope]:
    """Relate the number of window positions to the size of the images."""
    slopes = []
    for y in ys:
        for from_end, stride in enumerate(reversed(strides), 1):
            a, b = axis(x, -from_end), axis(y, -from_end)
            slopes.append(Slope(a, b, Fraction(1, stride)))
            slopes.append(Slope(b, a, Fraction(stride)))
    return slopes


def _convolution(site: ConstrainedOp) -> Relation:
    x, w, *bias = site.inputs
    if site.attribute("transposed") is True or site.number_of("groups", 1) != 1:
        return Relation(needs_probe=True)
    y = site.outputs[0]
    relation = Relation(equal=[(axis(x, 0), axis(y, 0)), (axis(x, 1), axis(w, 1))])
    relation.equal.append((axis(w, 0), axis(y, 1), *(axis(b, 0) for b in bias)))
    relation.slopes = _window_slopes(x, [y], _per_axis(site, "stride", x.rank - 2, 1))
    return relation


def _convolution_backward(site: ConstrainedOp) -> Relation:
    g, x, w = site.inputs[:3]
    if site.attribute("transposed") is True or site.number_of("groups", 1) != 1:
        return Relation(needs_probe=True)
    relation = Relation(equal=[(axis(g, 0), axis(x, 0)), (axis(x, 1), axis(w, 1))])
    channels: list[SizeKey] = [axis(g, 1), axis(w, 0)]
    if site.sizes("bias_sizes") == (w.shape[0],):
        channels.append(site.argument("bias_sizes", 0))
    for y in site.outputs:
        if y.rank == 1:
            channels.append(axis(y, 0))
        else:
            relation.equal += broadcast_groups([y, x if y.shape == x.shape else w])
    relation.equal.append(tuple(channels))
    relation.slopes = _window_slopes(x, [g], _per_axis(site, "stride", x.rank - 2, 1))
    return relation


def _pool(site: ConstrainedOp) -> Relation:
    """Pooling over windows, forward and backward: images and windows of one batch and channels."""
    backward = site.op.name.endswith("_backward")
    x = site.inputs[1] if backward else site.inputs[0]
    windows = [site.inputs[0], *site.inputs[2:]] if backward else [*site.outputs]
    relation = Relation(equal=broadcast_groups([x, *site.outputs]) if backward else [])
    relation.equal += broadcast_groups(windows)
    relation.equal += [(axis(x, i), axis(windows[0], i)) for i in range(x.rank - 2)]
    kernel = _per_axis(site, "kernel_size", 2, 1)
    explicit_strides = _per_axis(site, "stride", 2, 0)
    strides = [s or k for s, k in zip(explicit_strides, kernel, strict=True)]
    relation.slopes = _window_slopes(x, windows[:1], strides)
    return relation


def _adaptive_pool(site: ConstrainedOp) -> Relation:
    """Pooling to a given size: images may grow, the result is unchanged."""
    backward = site.op.name.endswith("_backward")
    y, x = site.inputs[:2] if backward else (site.outputs[0], site.inputs[0])
    relation = Relation(equal=[(axis(x, i), axis(y, i)) for i in range(x.rank - 2)])
    relation.free = {axis(x, -1), axis(x, -2)}
    if backward:
        relation.equal += broadcast_groups([x, *site.outputs])
    return relation


def _nll_loss(site: ConstrainedOp) -> Relation:
    """Negative log-likelihood of [N, C] (or [N, C, ...]) under N classes."""
    rows = [t for t in site.tensors if t.rank > 1 and t.dtype != "i64"]
    x = rows[0]
    relation = Relation(equal=broadcast_groups(rows), free={axis(x, 1)})
    other_axes = [axis(x, i) for i in range(x.rank) if i != 1]
    batch = [t for t in site.tensors if t.rank == x.rank - 1 and t.shape[:1] == x.shape[:1]]
    relation.equal += axis_pairs(other_axes, *(axes(t) for t in batch))
    return relation


def _attention(site: ConstrainedOp) -> Relation:
    """Attention of [B, H, T, D] tensors, forward (q, k, v, ...) and backward (g, q, k, v, ...)."""
    backward = site.op.name.endswith("_backward")
    g, q, k, v = site.inputs[:4] if backward else (site.outputs[0], *site.inputs[:3])
    gradients = site.outputs[:3] if backward else ()
    rest = [t for t in site.tensors[3:] if t.rank == 4 and t.shape == g.shape]
    queries = [q, g, *rest, *gradients[:1]]
    keys = [k, v, *gradients[1:]]
    relation = Relation(equal=equal_groups_at(0, [*queries, *keys]))
    relation.equal += [*equal_groups_at(1, [*queries, *keys]), *equal_groups_at(1, keys)]
    relation.equal += [
        *equal_groups_at(2, queries),
        *equal_groups_at(2, keys),
        *equal_groups_at(3, [*queries, *keys]),
    ]
    for name, tensor in (("max_q", q), ("max_k", k)):
        if site.attribute(name) == tensor.shape[2]:
            relation.equal.append((axis(tensor, 2), site.argument(name)))
    for sums in (t for t in site.tensors if t.rank == 3):
        relation.equal += [(axis(q, 0), axis(sums, 0)), (axis(q, 1), axis(sums, 1))]
        if sums.shape[2] == q.shape[2]:
            relation.equal.append((axis(q, 2), axis(sums, 2)))
        else:  # some kernels round it up
            relation.slopes.append(Slope(axis(q, 2), axis(sums, 2), Fraction(1)))
            relation.steps.append((axis(q, 2), QUERY_ROUNDING))
    return relation


QUERY_ROUNDING = 32
"""Multiple that memory-efficient attention rounds the number of queries up to, for its sums."""


Rule = Callable[[ConstrainedOp], Relation]


def _rules(rule: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys((f"aten.{name}" for name in names.split()), rule)


RULES: Mapping[str, Rule] = {
    **_rules(_product, "mm bmm addmm baddbmm"),
    **dict.fromkeys(PLAIN, _product),
    "irgraph.addmm_relu": _product,
    **_rules(_linear, "linear"),
    **dict.fromkeys(("irgraph.linear_relu", "irgraph.linear_tf32"), _linear),
    **_rules(_reduction, "sum mean amax amin prod logsumexp var std var_mean norm any all argmax"),
    **_rules(_factory, "empty zeros ones full rand randn new_zeros new_empty new_full new_ones"),
    **_rules(_concatenation, "cat concat"),
    **_rules(_stack, "stack"),
    **_rules(_embedding, "embedding"),
    **_rules(_embedding_backward, "embedding_dense_backward embedding_backward"),
    **_rules(_bags, "embedding_bag _embedding_bag _embedding_bag_forward_only"),
    **_rules(_bags_backward, "_embedding_bag_backward _embedding_bag_dense_backward"),
    **_rules(_layer_norm, "layer_norm native_layer_norm native_layer_norm_backward"),
    **_rules(_channels, "native_batch_norm cudnn_batch_norm native_batch_norm_backward"),
    **_rules(_channels, "cudnn_batch_norm_backward _native_batch_norm_legit batch_norm"),
    **_rules(_convolution, "convolution cudnn_convolution _convolution conv2d conv1d"),
    **_rules(_convolution_backward, "convolution_backward"),
    **_rules(_pool, "max_pool2d_with_indices max_pool2d_with_indices_backward"),
    **_rules(_pool, "avg_pool2d avg_pool2d_backward"),
    **_rules(_adaptive_pool, "adaptive_avg_pool2d _adaptive_avg_pool2d"),
    **_rules(_adaptive_pool, "_adaptive_avg_pool2d_backward"),
    **_rules(_attention, "_scaled_dot_product_flash_attention"),
    **_rules(_attention, "_scaled_dot_product_flash_attention_backward"),
    **_rules(_attention, "_scaled_dot_product_efficient_attention"),
    **_rules(_attention, "_scaled_dot_product_efficient_attention_backward"),
    **_rules(_attention, "_scaled_dot_product_flash_attention_for_cpu"),
    **_rules(_attention, "_scaled_dot_product_flash_attention_for_cpu_backward"),
    **_rules(_attention, "_scaled_dot_product_cudnn_attention"),
    **_rules(_attention, "_scaled_dot_product_cudnn_attention_backward"),
    **dict.fromkeys(
        ("irgraph.flex_attention", "irgraph.flex_attention_backward"), flex_attention_relation
    ),
    **_rules(_nll_loss, "nll_loss_forward nll_loss_backward nll_loss2d_forward"),
}
"""Rules by op."""
