"""Whether the returned tensors of two steps share memory in the same way."""

from __future__ import annotations

from collections.abc import Iterator

from irgraph.ir.graph import Graph
from irgraph.ir.tensor import Tensor, overlap


def sharing(before: Graph, after: Graph) -> dict[tuple[str, str], str]:
    """Return what returned tensors share bytes with in one of the steps only, by both names.

    The sentences name tensors of the first step. Two returned tensors are held against each
    other, and each against all that exists before the step.
    """
    if before.returned is None or after.returned is None:
        return {}
    found: dict[tuple[str, str], str] = {}
    for (name, a, b), (other, c, d) in _pairs(before, after):
        now, then = overlap(a, c), overlap(b, d)
        if now != then:
            what = "no longer shares" if now else "would share"
            found.setdefault((name, b.name), f"{what} its memory with %{other}")
    return found


Named = tuple[str, Tensor, Tensor]


def _pairs(before: Graph, after: Graph) -> Iterator[tuple[Named, Named]]:
    given = zip(before.returned or (), after.returned or (), strict=True)
    returned = [(a.name, a, b) for a, b in given]
    known = {declared.tensor.name: declared.tensor for declared in after.tensors}
    lasting = [
        (d.tensor.name, d.tensor, known[d.tensor.name])
        for d in before.tensors
        if d.tensor.name in known
    ]
    for i, one in enumerate(returned):
        for other in (*returned[i + 1 :], *lasting):
            yield one, other
