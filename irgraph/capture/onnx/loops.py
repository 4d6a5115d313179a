"""Loops written out, round by round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.onnx.bind import UnsupportedError
from irgraph.capture.onnx.bodies import inside
from irgraph.capture.onnx.model import Node

MOST = 256
"""Rounds of a loop that are written out."""


def looped(
    node: Node, known: dict[str, Torch], add: Callable[[Sequence[Node]], None]
) -> list[Node]:
    """Add the rounds of a ``Loop`` whose number is known; return what gives its results.

    Args:
        node: the loop.
        known: values of constants; learns what a round is told of itself.
        add: adds nodes; what of them is constant is known then.
    """
    trips, more = _constant(node, "M", 0, known), _constant(node, "cond", 1, known)
    body, states = node.attributes["body"], list(node.inputs[2:])
    kept: list[list[str]] = []
    while more and len(kept) < min(trips, MOST):
        mark = f"{len(kept)}/"
        names = (f"{node.name}/{mark}trip", f"{node.name}/{mark}going")
        known |= {names[0]: torch.tensor(len(kept)), names[1]: torch.tensor(True)}
        made = _round(node, body, (*names, *states), mark, add)
        if made[0] not in known:
            raise UnsupportedError("its condition is not a constant")
        more, states = int(known[made[0]]), made[1 : len(states) + 1]
        kept.append(made[len(states) + 1 :])
    if not kept or (more and trips > MOST):
        raise UnsupportedError(f"it runs {trips} iterations, not 1 to {MOST}")
    lists = list(zip(*kept, strict=True))
    return _results(node, states, lists, [0] * len(lists))


def _constant(node: Node, word: str, place: int, known: Mapping[str, Torch]) -> int:
    name = node.inputs[place]
    if name and name not in known:
        raise UnsupportedError(f"its input {word}, {name!r}, is not a constant")
    return int(known[name]) if name else MOST + 1


def scanned(node: Node, type_of: Callable[[str], Torch]) -> list[Node] | None:
    """Return the nodes that a ``Scan`` runs."""
    if node.op != "Scan" or node.domain:
        return None
    body, count = node.attributes["body"], node.attributes["num_scan_inputs"]
    states, rows = list(node.inputs[:-count]), node.inputs[-count:]
    axes, back = _of_each(node, "scan_input", count)
    rounds = type_of(rows[0]).shape[axes[0]]
    if not 0 < rounds <= MOST:
        raise UnsupportedError(f"it runs {rounds} iterations, not 1 to {MOST}")
    found: list[Node] = []
    kept: list[list[str]] = []
    for t in range(rounds):
        places = [rounds - 1 - t if reverse else t for reverse in back]
        given = list(states)
        for row, axis, at in zip(rows, axes, places, strict=True):
            given.append(f"{node.name}/{t}/{row}")
            found += _taken(node, row, axis, at, given[-1])
        made = _round(node, body, given, f"{t}/", found.extend)
        states = made[: len(states)]
        kept.append(made[len(states) :])
    axes, back = _of_each(node, "scan_output", len(kept[0]))
    lists = [r[::-1] if b else r for r, b in zip(zip(*kept, strict=True), back, strict=True)]
    return found + _results(node, states, lists, axes)


def _of_each(node: Node, word: str, count: int) -> tuple[Sequence[int], Sequence[int]]:
    none = [0] * count
    said = node.attributes
    return said.get(f"{word}_axes", none), said.get(f"{word}_directions", none)


def _taken(node: Node, row: str, axis: int, at: int, out: str) -> list[Node]:
    """Return the nodes that take one slice of what a ``Scan`` runs over."""
    place = f"{out}/at"
    return [
        Node("Constant", "", node.name, (), (place,), {"value_int": at}),
        Node("Gather", "", node.name, (row, place), (out,), {"axis": axis}, node.module),
    ]


def _round(
    node: Node,
    body: Torch,
    given: Sequence[str],
    mark: str,
    add: Callable[[Sequence[Node]], None],
) -> list[str]:
    """Add one round of a body; return the names of what it makes."""
    made = [f"{node.name}/{mark}out{i}" for i in range(len(body.output))]
    names = dict(zip((value.name for value in body.input), given, strict=True))
    add(inside(body, node, names, made, mark))
    return made


def _results(
    node: Node, states: Sequence[str], lists: Sequence[Sequence[str]], axes: Sequence[int]
) -> list[Node]:
    """Return the nodes that give a loop's last states, and what each round made, stacked."""
    found = [
        Node("Identity", "", node.name, (state,), (out,), {}, node.module)
        for state, out in zip(states, node.outputs, strict=False)
        if out
    ]
    for names, axis, out in zip(lists, axes, node.outputs[len(states) :], strict=False):
        parts = tuple(f"{name}/wide" for name in names)
        found += [
            Node("Unsqueeze", "", node.name, (name,), (part,), {"axes": [axis]}, node.module)
            for name, part in zip(names, parts, strict=True)
        ]
        found.append(Node("Concat", "", node.name, parts, (out,), {"axis": axis}, node.module))
    return found
