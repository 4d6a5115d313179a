"""Exchanges between ranks in a short type: cast before, cast back once they are waited for."""

from __future__ import annotations

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import DType
from irgraph.verbs.cast import CAST
from irgraph.verbs.quantizing.rewriter import QuantizeRewrite
from irgraph.verbs.refusal import RefusedError, op_refusal

EXCHANGES = tuple(
    f"_c10d_functional.{name}"
    for name in ("all_to_all_single", "reduce_scatter_tensor", "all_gather_into_tensor")
)
"""What ranks exchange into a tensor of its own; sums in place keep their type."""

WAIT = "_c10d_functional.wait_tensor"

TYPES = ("f16", "bf16")
"""Types that NCCL sends and adds up, and that need no scales beside them."""


def is_exchange(op: Op) -> bool:
    """Return whether an op exchanges a tensor with other ranks."""
    return op.name in EXCHANGES


def check_exchange(graph: Graph, op: Op, to: str) -> Op:
    """Return what waits for an exchange that can be in a type; refuse others."""
    if to not in TYPES:
        raise RefusedError(f"ranks exchange {' or '.join(TYPES)}, not {to}", [(op, "")])
    if len(op.inputs) != 1 or len(op.outputs) != 1 or op.inputs[0].dtype != "f32":
        raise op_refusal(op, "exchanges no single tensor in f32")
    made = op.outputs[0].buffer
    touching = [leaf for _, leaf in graph.touching.get(made, ())]
    after = touching[touching.index(op) + 1 :]
    wait = after[0] if after else None
    if wait is None or wait.name != WAIT or wait.outputs or wait.stream != op.stream:
        raise op_refusal(op, "is not waited for on its own stream, where its result could be cast")
    return wait


def quantize_exchange(work: QuantizeRewrite, op: Op, to: str) -> None:
    """Put casts around an exchange and what waits for it."""
    wait = check_exchange(work.graph, op, to)
    (sent,), (made,) = op.inputs, op.outputs
    short = work.tensor(f"{sent.name}_{to}", to, sent.shape, sent)
    work.put(op, CAST, (sent,), short, dtype=DType(to))
    received = work.tensor(f"{made.name}_{to}", to, made.shape, made)
    work.put(op, op.name, (short, *op.operands[1:]), received, **op.attributes)
    work.edit.remove(op)
    work.put(wait, WAIT, (received,))
    work.put(wait, CAST, (received,), made, dtype=DType("f32"))
    work.edit.remove(wait)
