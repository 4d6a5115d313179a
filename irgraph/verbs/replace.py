"""``replace``: several ops become others that make the same tensors."""

from __future__ import annotations

from collections.abc import Sequence

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.verbs.fuse import Fusion, put_in_place
from irgraph.verbs.refusal import RefusedError

MAX_SHOWN = 3


def replace(
    graph: Graph, members: Sequence[Op], new: Sequence[Op], *, caller: str = "", assuming: str = ""
) -> Fusion:
    """Replace ``members`` by ``new``, contiguously.

    As in ``fuse``, no path of dependences may leave the members and return. Raises
    ``RefusedError``: with that path, or with the users of a result that no new op makes.
    """
    check_users(graph, members, new)
    return put_in_place(graph, [members], new, caller=caller or "replace", assuming=assuming)


def check_users(graph: Graph, members: Sequence[Op], new: Sequence[Op]) -> None:
    """Raise ``RefusedError`` if a result in use is no longer made, or has another type."""
    removed_ops = {inner for op in members for inner in op.walk()}
    removed_results = {t.name: t for op in members for inner in op.walk() for t in inner.outputs}
    for tensor in (t for op in new for t in op.outputs):
        if removed_results.pop(tensor.name, tensor) != tensor:
            raise RefusedError(f"%{tensor.name} would have another type", [(members[0], "")])
    users = [
        (leaf, f"{leaf.name} uses %{tensor.name}")
        for _, leaf in sorted(
            {
                i: (i, leaf)
                for tensor in removed_results.values()
                for i, leaf in graph.touching.get(tensor.buffer, ())
                if leaf not in removed_ops and leaf is not graph.end
            }.values(),
            key=lambda access: access[0],
        )
        for tensor in leaf.inputs
        if tensor.name in removed_results
    ]
    if users:
        raise RefusedError("a result that it removes is still in use", users[:MAX_SHOWN])
