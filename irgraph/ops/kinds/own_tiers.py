"""irgraph's own lookups through tiers of memory: caches of rows and of pooled bags."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from irgraph.ops.call import Call
from irgraph.ops.custom import custom_operator, deferred
from irgraph.ops.meaning import OPAQUE, Axes, Meaning, Result, Slope, axis_names, growing_together
from irgraph.ops.operator import Trait
from irgraph.ops.patterns import Rule

AXES: dict[str, str] = {
    "directories": "t s",
    "indices": "i",
    "wanted": "i",
    "weights": "v e",
    "slots": "i",
    "staged": "i e",
    "offsets": "b",
    "held": "s e",
    "keys": "w u",
    "bags": "w d",
    "pooled": "b d",
    "found": "b",
}
"""Axes of the tensors of one table, by argument: t rows of a directory, s slots of rows, i indices,
v rows of the table, e their elements, b bags, d elements of a bag, w slots of bags, u words of a
key."""

FIXED = "tue"
"""Letters whose sizes follow from a format or from the layout of a cache."""


def _by_table(*results: str) -> Rule:
    """Return the rule of an op over tables, given the axes of each list of results.

    The tensors of one position belong together.
    """

    def rule(call: Call) -> Meaning | None:
        spans = call.spans
        count = len(spans["indices" if "indices" in spans else "staged"])
        closed = call.flag("include_last_offset")
        axes_by_name = {**AXES, "offsets": "o"} if closed else AXES
        operands: list[Axes] = []
        for name, span in spans.items():
            axes = axes_by_name.get(name, OPAQUE)
            operands += [_axes(axes, position) for position in range(len(span))]
        outputs = [_axes(axes, p) for axes in results for p in range(count)]
        tensors = (*call.inputs, *call.outputs)
        ranks = [len(axes) for axes in (*operands, *outputs)]
        if ranks != [tensor.rank for tensor in tensors]:
            return None
        # caches are looked up by values: no axis of them may be split
        axes_of_tensors = chain(*operands, *outputs)
        letters = axis_names(axes_of_tensors) - {OPAQUE}
        fixed = {letter for letter in letters if letter[0] in FIXED}
        # the elements of bags follow from those of rows
        elements = {letter[1:] for letter in fixed if letter.startswith("e")}
        fixed.update(letters & {f"d{number}" for number in elements})
        return Meaning(
            operands=tuple(operands),
            results=tuple(map(Result, outputs)),
            mixed=frozenset(letters),
            slopes=tuple(_last_offsets(count)) if closed else (),
            fixed=frozenset(fixed),
        )

    return rule


def _axes(text: str, position: int) -> Axes:
    axes = [f"{axis}{position}" for axis in text.split()]
    return tuple(OPAQUE if axis.startswith(OPAQUE) else axis for axis in axes)


def _last_offsets(count: int) -> Iterator[Slope]:
    """Yield that there is one more offset than bags."""
    for p in range(count):
        yield from growing_together(f"b{p}", f"o{p}")


def _slot_types(indices: Any, **_: object) -> Any:  # noqa: ANN401  (torch's tensors)
    import torch

    return [torch.empty_like(index, dtype=torch.int64) for index in indices]


def _read_types(weights: Any, indices: Any, **_: object) -> Any:  # noqa: ANN401
    pairs = zip(weights, indices, strict=True)
    return [weight.new_empty((index.numel(), weight.shape[1])) for weight, index in pairs]


def _bag_types(indices: Any, offsets: Any, include_last_offset: bool = False, **_: object) -> Any:  # noqa: ANN401
    import torch

    counts = [len(offset) - include_last_offset for offset in offsets]
    slots = [
        i.new_empty((count,), dtype=torch.int64) for i, count in zip(indices, counts, strict=True)
    ]
    return slots, _slot_types(indices)


def _no_results(**_: object) -> None:
    """Return the results of an op that only writes its operands."""


OPERATORS = {
    **custom_operator(
        "irgraph::tier_probe(Tensor[] directories, Tensor[] indices, *, Tensor[] wanted=[],"
        " int ways=32) -> Tensor[]",
        _by_table("i"),
        deferred("tiers", "tier_probe"),
        types=_slot_types,
    ),
    **custom_operator(
        "irgraph::tier_read(Tensor[] weights, Tensor[] indices, *, Tensor[] slots=[], str tier,"
        " int pieces=1, int[] cached=[], str policy='', bool sub_block=False, float load=0.0,"
        " Tensor[] found=[], int[] pooled=[], int[] longest=[], str lists='') -> Tensor[]",
        _by_table("i e"),
        deferred("tiers", "tier_read"),
        types=_read_types,
        traits=[Trait.LOOKUP],
    ),
    **custom_operator(
        "irgraph::tier_pool(Tensor[] staged, Tensor[] offsets, *, Tensor[] held=[],"
        " Tensor[] slots=[], int mode=0, bool include_last_offset=False, str[] kinds=[],"
        " Tensor[] scales=[], Tensor[] found=[], Tensor[] bags=[]) -> Tensor[]",
        _by_table("b d"),
        deferred("tiers", "tier_pool"),
        types=deferred("tiers", "pooled_types"),
    ),
    **custom_operator(
        "irgraph::bag_probe(Tensor[] keys, Tensor[] indices, Tensor[] offsets, *,"
        " bool include_last_offset=False, int ways=32) -> (Tensor[], Tensor[])",
        _by_table("b", "i"),
        deferred("bags", "bag_probe"),
        types=_bag_types,
    ),
    **custom_operator(
        "irgraph::bag_fill(Tensor(a!)[] keys, Tensor(b!)[] bags, Tensor[] indices,"
        " Tensor[] offsets, Tensor[] found, Tensor[] pooled, *, str policy='lru',"
        " bool include_last_offset=False, int ways=32) -> ()",
        _by_table(),
        deferred("bags", "bag_fill"),
        types=_no_results,
    ),
    **custom_operator(
        "irgraph::tier_fill(Tensor(a!)[] directories, Tensor(b!)[] held, Tensor[] indices,"
        " Tensor[] slots, Tensor[] staged, *, str policy='lru', int ways=32) -> ()",
        _by_table(),
        deferred("tiers", "tier_fill"),
        types=_no_results,
    ),
}
