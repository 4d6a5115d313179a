"""Mutants that compute the same on whatever a step may be given, and why: each proof is a rule.

A rule looks at the changed op alone or at what depends on it; none runs anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from irgraph.execute.coverage import live_leaves
from irgraph.ir.effects import is_view
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value, tensors_in
from irgraph.ir.schema import bind, resolve
from irgraph.ir.tensor import Tensor
from tests.execute.mutants import Mutant

Arguments = Mapping[str, Value]


def proof(before: Graph, mutant: Mutant) -> str:
    """Return why a mutant computes what the step does, ``""`` where nothing says so."""
    return next((why for rule in RULES for why in rule(before, mutant)), "")


def _dead(before: Graph, mutant: Mutant) -> Iterator[str]:
    places = {op: place for place, op in enumerate(before.leaves())}
    made = {op: place for place, op in enumerate(mutant.graph.leaves())}
    new = mutant.new
    if places[mutant.old] in live_leaves(before):
        return
    if new is None or made[new] not in live_leaves(mutant.graph):
        yield "nothing that leaves the step depends on it"


def _same_bytes(before: Graph, mutant: Mutant) -> Iterator[str]:
    old, new = mutant.old, mutant.new
    if new is None:
        return
    if is_view(old) and is_view(new) and new.base not in ("_neg_view", "_conj"):
        yield "both give a name to the same bytes"
    same = all(
        _bytes(old, before, name) == _bytes(new, before, name)
        for name in _differing(before, mutant)
    )
    if old.name == new.name and same and old.operands != new.operands:
        yield "it takes the same bytes under another name"


def _bytes(op: Op, graph: Graph, name: str) -> object:
    value = _arguments(op, graph).get(name)
    return [
        (t.buffer, t.offset, t.shape, t.strides, t.dtype) for t in tensors_in((value,))
    ] or value


WITHOUT_VALUES = {"detach_": "it changes what autograd keeps, no value"}


def _without_values(before: Graph, mutant: Mutant) -> Iterator[str]:
    why = WITHOUT_VALUES.get(mutant.old.base, "")
    if why and (mutant.new is None or mutant.new.base == mutant.old.base):
        yield why


def _arguments(op: Op, graph: Graph) -> dict[str, Any]:
    schema = resolve(op, graph.schemas)
    assert schema is not None
    return {argument.name: value for argument, value in bind(schema, op)}


def _differing(graph: Graph, mutant: Mutant) -> set[str]:
    """Return the arguments that differ between two calls of one op."""
    assert mutant.new is not None
    old, new = _arguments(mutant.old, graph), _arguments(mutant.new, graph)
    return {name for name in {*old, *new} if old.get(name) != new.get(name)}


def _training(given: Arguments) -> bool:
    return bool(given.get("train", given.get("training")))


def _always(given: Arguments) -> bool:
    return True


def _no_bias(given: Arguments) -> bool:
    mask = given["output_mask"]
    return isinstance(mask, tuple) and mask[2] is False


def _sums(given: Arguments) -> bool:
    return not given.get("mode", 0)


MAXIMA = "which elements were largest matters to the backward of a maximum alone"
STARTS = "where bags start is read only where nothing says in which bag an index is"
NO_DROPOUT = "the CPU's kernel knows no dropout: its forward refuses any"
FLASH_BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"
MEANS = "what bags hold matters to the backward of a mean alone"
FORWARD_BAGS = "what a bag's gradient is scaled by, or skips, is its backward's affair"
SHAPE_ONLY = "of that operand the backward takes the sizes alone"
SAVED = "in training the backward takes the mean and deviation that the forward saved"

INERT: Mapping[tuple[str, str], tuple[str, Callable[[Arguments], bool]]] = {
    ("embedding", "padding_idx"): (FORWARD_BAGS, _always),
    ("embedding", "scale_grad_by_freq"): (FORWARD_BAGS, _always),
    ("embedding", "sparse"): (FORWARD_BAGS, _always),
    ("_embedding_bag", "scale_grad_by_freq"): (FORWARD_BAGS, _always),
    ("_embedding_bag", "sparse"): (FORWARD_BAGS, _always),
    ("_embedding_bag_backward", "maximum_indices"): (MAXIMA, _sums),
    ("_embedding_bag_backward", "offsets"): (STARTS, _sums),
    (FLASH_BACKWARD, "dropout_p"): (
        "the CPU's kernel knows no dropout: its forward refuses any",
        _always,
    ),
    ("convolution_backward", "bias_sizes"): ("no gradient of a bias is asked for", _no_bias),
    ("max_pool2d_with_indices_backward", "ceil_mode"): ("it goes by the indices", _always),
    ("_embedding_bag_backward", "bag_size"): (MEANS, _sums),
    ("max_pool2d_with_indices_backward", "self"): (SHAPE_ONLY, _always),
    ("nll_loss_backward", "self"): (SHAPE_ONLY, _always),
    ("native_batch_norm_backward", "running_mean"): (SAVED, _training),
    ("native_batch_norm_backward", "running_var"): (SAVED, _training),
    ("native_batch_norm_backward", "eps"): (SAVED, _training),
}
"""Arguments on whose value no result depends, why, and where that holds."""


def _inert(before: Graph, mutant: Mutant) -> Iterator[str]:
    if mutant.new is None or mutant.old.name != mutant.new.name:
        return
    given = _arguments(mutant.old, before)
    changed = _differing(before, mutant)
    known = [INERT.get((mutant.old.base, name), ("", _always)) for name in changed]
    if known and all(why and holds(given) for why, holds in known):
        yield known[0][0]


def _no_row(before: Graph, mutant: Mutant) -> Iterator[str]:
    """No row has a negative number."""
    if mutant.new is None or _differing(before, mutant) != {"padding_idx"}:
        return
    tables = ("_embedding_bag", "embedding_dense_backward")
    if mutant.old.name != mutant.new.name or not mutant.old.base.startswith(tables):
        return
    numbers = [_arguments(op, before).get("padding_idx", -1) for op in (mutant.old, mutant.new)]
    if all(number < 0 for number in numbers):
        yield "no row has a negative number, so that none is left out"


SYNONYMS = (
    {"alias", "detach", "lift_fresh"},
    {"addmm", "_sparse_addmm"},
    {"stack", "_stack"},
    {"index", "_unsafe_index"},
    {"_embedding_bag", "_embedding_bag_forward_only"},
)
"""Ops that are defined as one another on dense tensors, but for what autograd keeps."""


def _synonyms(before: Graph, mutant: Mutant) -> Iterator[str]:
    old, new = mutant.old, mutant.new
    if new is not None and any({old.base, new.base} <= names for names in SYNONYMS):
        yield "two names of one operator"


def _permuted(before: Graph, mutant: Mutant) -> Iterator[str]:
    """A series over lists is the same in any order."""
    old, new = mutant.old, mutant.new
    if new is None or old.name != new.name or not old.base.startswith("_foreach_"):
        return
    lists = [[v for v in op.operands if isinstance(v, tuple)] for op in (old, new)]
    rows = [sorted(zip(*map(_names, each), strict=True)) for each in lists]
    if not old.outputs and rows[0] == rows[1]:
        yield "the series does the same in another order"


def _names(tensors: tuple[Value, ...]) -> list[str]:
    return [tensor.name for tensor in tensors if isinstance(tensor, Tensor)]


def _shifted(before: Graph, mutant: Mutant) -> Iterator[str]:
    """A batch norm in training takes away what a bias before it adds."""
    makers = {t.name: op for op in before.leaves() for t in op.outputs}
    shifts = set()
    for leaf in before.leaves():
        norm = makers.get(leaf.inputs[0].name) if leaf.name == "aten.convolution_backward" else None
        if norm is not None and norm.name == "aten.native_batch_norm_backward":
            bias = leaf.results[2] if _training(_arguments(norm, before)) else None
            shifts.update(t.buffer for t in tensors_in((bias,)))
    changed = [t for t in mutant.old.inputs if t.buffer in shifts]
    if changed and _scaled(mutant):
        yield "the gradient of a bias before a batch norm is zero, whatever it is multiplied by"


def _scaled(mutant: Mutant) -> bool:
    """Tell whether a mutant only scales what is added, or negates it."""
    old, new = mutant.old, mutant.new
    if new is None:
        return False
    if {old.base, new.base} == {"detach", "_neg_view"}:
        return True
    return {old.base, new.base} <= {"add_", "sub_"} and old.operands == new.operands


TYPE_ONLY = ("ones_like", "zeros_like", "full_like", "empty_like", "new_zeros", "new_empty")


def _type_only(before: Graph, mutant: Mutant) -> Iterator[str]:
    old, new = mutant.old, mutant.new
    if new is None or old.name != new.name or old.base not in TYPE_ONLY:
        return
    if _differing(before, mutant) == {"self"}:
        yield "of its operand it takes the type alone"


def _commuted(before: Graph, mutant: Mutant) -> Iterator[str]:
    """``a + b`` is ``b + a``, to the bit."""
    old, new = mutant.old, mutant.new
    if new is None or old.name != new.name or old.written or old.base not in ("add", "mul"):
        return
    if old.operands == new.operands[::-1] and not old.attributes and not new.attributes:
        yield "its operands commute"


def _no_such_mode(before: Graph, mutant: Mutant) -> Iterator[str]:
    """The backward of bags asks for means and for maxima, and sums otherwise."""
    old, new = mutant.old, mutant.new
    if new is None or not old.name == new.name == "aten._embedding_bag_backward":
        return
    modes = {_arguments(op, before).get("mode", 0) for op in (old, new)}
    if _differing(before, mutant) == {"mode"} and not modes & {1, 2}:
        yield "whatever is neither a mean nor a maximum is a sum"


def _keys(before: Graph, mutant: Mutant) -> Iterator[str]:
    """A softmax is the same whatever is added to a row: the rows of its gradient sum to zero.

    So do the gradients of all keys, ``t(gradient) @ queries``: a bias of keys adds to whole rows.
    """
    old, new = mutant.old, mutant.new
    if new is None or {old.base, new.base} - {"sum", "mean"} or old.attributes != new.attributes:
        return
    makers = {t.name: op for op in before.leaves() for t in op.outputs}
    found: list[str] = []
    maker = makers.get(old.inputs[0].name)
    while maker is not None and maker.base in ("t", "mm"):
        found.append(maker.base)
        maker = makers.get(maker.inputs[0].name)
    wanted = ["t", "t", "mm", "t"]
    softmax = maker is not None and maker.base == "_softmax_backward_data"
    if softmax and found == wanted and old.attributes.get("dim") == (0,):
        yield "the gradient of a bias of keys is zero"


def _never_negative(before: Graph, mutant: Mutant) -> Iterator[str]:
    """What is added to a root is as it is without a ReLU."""
    old, new = mutant.old, mutant.new
    if new is None or (old.base, new.base) != ("add_", "_add_relu_"):
        return
    makers = {t.buffer: op for op in before.leaves() for t in op.outputs}
    maker = makers.get(old.inputs[0].buffer)
    if maker is not None and maker.base == "div":
        scale = _arguments(maker, before).get("other")
        held = makers.get(maker.inputs[0].buffer)
        maker = held if isinstance(scale, float) and scale > 0 else None
    added = _arguments(old, before).get("other")
    if maker is not None and maker.base == "sqrt" and isinstance(added, float) and added > 0:
        yield "a root is never negative, nor is it with a positive number added"


RULES: tuple[Callable[[Graph, Mutant], Iterator[str]], ...] = (
    _without_values, _dead, _same_bytes, _inert, _no_row, _synonyms, _permuted, _shifted,
    _never_negative,
    _no_such_mode,
    _keys,
    _type_only,
    _commuted,
)  # fmt: skip
