"""Exchanges between ranks in a short type: cast before, cast back after their wait."""

from __future__ import annotations

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import DType
from irgraph.ops.book import collective_of
from irgraph.ops.operator import CollectiveKind
from irgraph.verbs.cast import CAST
from irgraph.verbs.quantizing.rewriter import QuantizeRewrite
from irgraph.verbs.refusal import RefusedError, op_refusal

EXCHANGES = (
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_GATHER_BASE,
)
"""Exchanges that can have separate results."""

WAIT = "_c10d_functional.wait_tensor"

TYPES = ("f16", "bf16")
"""Types that NCCL sends and adds up, and that need no scales."""


def is_exchange(op: Op) -> bool:
    """Return whether an op exchanges a tensor with other ranks, and has a separate result."""
    if len(op.inputs) != 1 or len(op.outputs) != 1:
        return False
    return collective_of(op.name) in EXCHANGES


def check_exchange(graph: Graph, op: Op, target: str) -> Op:
    """Return the wait for an exchange that can be in a type; refuse other ops."""
    if target not in TYPES:
        raise RefusedError(f"ranks exchange {' or '.join(TYPES)}, not {target}", [(op, "")])
    if op.inputs[0].dtype != "f32":
        raise op_refusal(op, "exchanges no single tensor in f32")
    buffer = op.outputs[0].buffer
    accesses = [leaf for _, leaf in graph.touching.get(buffer, ())]
    later_leaves = accesses[accesses.index(op) + 1 :]
    wait = later_leaves[0] if later_leaves else None
    if wait is None or wait.name != WAIT or wait.outputs or wait.stream != op.stream:
        raise op_refusal(op, "is not waited for on its own stream, where its result could be cast")
    return wait


def quantize_exchange(rewrite: QuantizeRewrite, op: Op, target: str) -> None:
    """Insert casts around an exchange and its wait."""
    wait = check_exchange(rewrite.graph, op, target)
    (sent,), (output,) = op.inputs, op.outputs
    short = rewrite.tensor(f"{sent.name}_{target}", target, sent.shape, sent)
    rewrite.insert(op, CAST, (sent,), short, dtype=DType(target))
    received = rewrite.tensor(f"{output.name}_{target}", target, output.shape, output)
    rewrite.insert(op, op.name, (short, *op.operands[1:]), received, **op.attributes)
    rewrite.edit.remove(op)
    rewrite.insert(wait, WAIT, (received,))
    rewrite.insert(wait, CAST, (received,), output, dtype=DType("f32"))
    rewrite.edit.remove(wait)
