"""Effects of operations: the tensors they read and write."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from irgraph.facts import cached_calls
from irgraph.ir.op import Op, tensors_in
from irgraph.ir.schema import bind, schemas_of
from irgraph.ir.tensor import Tensor

MAX_CACHED_OPS = 1 << 15
"""Maximum number of ops whose effects are cached: variants of a step share most ops."""


class Effects(Struct, frozen=True, gc=False):
    """The bytes an op touches.

    Attributes:
        reads: tensors whose bytes it reads.
        writes: tensors whose bytes it writes: fresh results and those written in place.
        random: whether it draws random numbers (the order of such ops is preserved).
        barrier: whether its effects are unknown: no op moves across it.
    """

    reads: tuple[Tensor, ...] = ()
    writes: tuple[Tensor, ...] = ()
    random: bool = False
    barrier: bool = False


def effects(op: Op, declared: frozenset[str] = frozenset()) -> Effects:
    """Return the effects of an op; the effects of a scope are the union of its leaves' effects.

    ``declared`` names ops whose schema the model declares. A leaf without a schema or without
    recorded operands could have any effect and is a barrier, and so is an autograd node with
    results but no body; any other scope without a body has no effects.
    """
    if not op.body:
        return _leaf_effects(op, declared)
    parts = [_leaf_effects(leaf, declared) for leaf in op.leaves()]
    return Effects(
        tuple(dict.fromkeys(t for part in parts for t in part.reads)),
        tuple(dict.fromkeys(t for part in parts for t in part.writes)),
        any(part.random for part in parts),
        any(part.barrier for part in parts),
    )


@cached_calls(MAX_CACHED_OPS)
def _leaf_effects(op: Op, declared: frozenset[str]) -> Effects:
    inputs = op.inputs
    outputs = op.outputs
    if op.is_scope:  # an autograd node with results but no body: its ops were not recorded
        return Effects(inputs, outputs, barrier=True) if outputs else Effects()
    has_schema = op.name in declared or bool(schemas_of(op.name))
    if not has_schema or not (inputs or outputs or op.attributes):
        return Effects(inputs, outputs, barrier=True)
    if is_view(op):
        return Effects()
    # A result in an operand's buffer is a view if the schema allows one (``reshape`` may also
    # copy): it writes nothing. If no alias is possible, the result is new memory, which the
    # program's allocator may have placed in the buffer of a dead operand.
    operand_buffers = {t.buffer for t in inputs}
    shares = may_alias(op.name)
    fresh = tuple(t for t in outputs if t.buffer not in operand_buffers or not shares)
    if fresh and always_alias(op.name):
        fresh = ()  # the parts of a sparse tensor are not in the buffer recorded for it
    written = written_by(op)
    return Effects(inputs, (*fresh, *written), any(s.random for s in schemas_of(op.name)))


RUNNING_STATISTICS = ("running_mean", "running_var")

_BY_TRAINING = (("training", RUNNING_STATISTICS),)
_BY_SCALE = (("grad_scale", ("grads",)),)

CONDITIONAL_WRITES: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "aten.batch_norm": _BY_TRAINING,
    "aten._batch_norm_impl_index": _BY_TRAINING,
    "aten.native_batch_norm": _BY_TRAINING,
    "aten._native_batch_norm_legit": _BY_TRAINING,
    "aten.cudnn_batch_norm": _BY_TRAINING,
    "aten.miopen_batch_norm": _BY_TRAINING,
    "aten.instance_norm": (("use_input_stats", RUNNING_STATISTICS),),
    "aten.batch_norm_update_stats": (("", RUNNING_STATISTICS),),
    "aten.batch_norm_gather_stats": (("", RUNNING_STATISTICS),),
    "aten.batch_norm_gather_stats_with_counts": (("", RUNNING_STATISTICS),),
    "_c10d_functional.wait_tensor": (("", ("tensor",)),),
    "c10d_functional.wait_tensor": (("", ("tensor",)),),
    "aten._fused_sgd_": _BY_SCALE,
    "aten._fused_adam_": _BY_SCALE,
    "aten._fused_adamw_": _BY_SCALE,
    "aten._fused_adagrad_": _BY_SCALE,
}
"""Writes that a flag controls, by op: the flag (empty: always) and the written arguments.

They override the op's schema. A wait for a collective counts as its write, so that readers of the
tensor stay after it.
"""


def written_by(op: Op) -> tuple[Tensor, ...]:
    """Return the operands that a leaf writes in place, as torch does.

    Those are the operands that its schema marks as written, except for ``CONDITIONAL_WRITES``:
    these ops write operands without a mark, or write a marked operand only if a flag is set.
    """
    if op.name not in CONDITIONAL_WRITES:
        return tuple(t for t in op.inputs if t.name in op.written) if op.written else ()
    arguments = {a.name: value for schema in schemas_of(op.name) for a, value in bind(schema, op)}
    written = dict.fromkeys(op.written, True)
    for flag, names in CONDITIONAL_WRITES[op.name]:
        # An omitted flag has torch's default: batch norms train, a gradient scale is absent.
        # The empty name is no flag: its arguments are always written.
        is_written = arguments.get(flag, flag != "grad_scale") not in (False, None)
        governed = tensors_in(arguments[name] for name in names if name in arguments)
        written.update((tensor.name, is_written) for tensor in governed)
    return tuple(t for t in op.inputs if written.get(t.name))


def returns_operand(op: Op) -> bool:
    """Return whether a composite call has no result: it returned its operand and did nothing.

    Dropout with nothing to drop does so, and a cast to the type that a tensor has.
    """
    schemas = schemas_of(op.name)
    has_no_results = not op.outputs and not op.written
    return has_no_results and bool(schemas) and all(schema.composite for schema in schemas)


def is_view(op: Op) -> bool:
    """Return whether a leaf only returns views of its operands."""
    outputs = op.outputs
    if not outputs or op.written or not may_alias(op.name):
        return False
    operand_buffers = {t.buffer for t in op.inputs}
    return all(t.buffer in operand_buffers for t in outputs)


UNDECLARED_VIEWS = frozenset({
    "aten._unsafe_view", "aten.unsafe_split", "aten.unsafe_split_with_sizes",
    "aten._sparse_coo_tensor_unsafe", "aten._sparse_coo_tensor_with_dims_and_tensors",
    "aten.sparse_coo_tensor",
})  # fmt: skip
"""Ops that return a view without an alias in their schema; sparse tensors share their parts."""


@cache
def may_alias(name: str) -> bool:
    """Return whether results may share bytes with operands, by schema or for lack of a schema."""
    schemas = schemas_of(name)
    declares_alias = any(s.composite or any(r.alias for r in s.fresh_returns) for s in schemas)
    return declares_alias or not schemas or name in UNDECLARED_VIEWS


@cache
def always_alias(name: str) -> bool:
    """Return whether all results of all overloads alias an argument; composites may copy."""
    schemas = schemas_of(name)
    returns = [r for schema in schemas for r in schema.returns]
    return bool(returns) and not any(
        schema.composite or not all(r.alias and not r.written for r in schema.returns)
        for schema in schemas
    )
