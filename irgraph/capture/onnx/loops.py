"""Unrolls loops, one iteration after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.onnx.bind import UnsupportedError
from irgraph.capture.onnx.bodies import inline_graph
from irgraph.capture.onnx.model import OnnxNode

MAX_ITERATIONS = 256
"""Maximum number of iterations of a loop to unroll."""


def unroll_loop(
    node: OnnxNode, constants: dict[str, Torch], add: Callable[[Sequence[OnnxNode]], None]
) -> list[OnnxNode]:
    """Add the iterations of a ``Loop`` of constant length; return the nodes of its results.

    Args:
        node: the loop.
        constants: values of constants by name; each iteration's number and condition are added.
        add: adds nodes, and the constants among their results to ``constants``.
    """
    trips, condition = _constant(node, "M", 0, constants), _constant(node, "cond", 1, constants)
    body, states = node.attributes["body"], list(node.inputs[2:])
    scan_outputs: list[list[str]] = []
    while condition and len(scan_outputs) < min(trips, MAX_ITERATIONS):
        mark = f"{len(scan_outputs)}/"
        names = (f"{node.name}/{mark}trip", f"{node.name}/{mark}going")
        constants |= {names[0]: torch.tensor(len(scan_outputs)), names[1]: torch.tensor(True)}
        outputs = _add_iteration(node, body, (*names, *states), mark, add)
        if outputs[0] not in constants:
            raise UnsupportedError("its condition is not a constant")
        condition, states = int(constants[outputs[0]]), outputs[1 : len(states) + 1]
        scan_outputs.append(outputs[len(states) + 1 :])
    if not scan_outputs or (condition and trips > MAX_ITERATIONS):
        raise UnsupportedError(f"it runs {trips} iterations, not 1 to {MAX_ITERATIONS}")
    lists = list(zip(*scan_outputs, strict=True))
    return _result_nodes(node, states, lists, [0] * len(lists))


def _constant(node: OnnxNode, word: str, position: int, constants: Mapping[str, Torch]) -> int:
    name = node.inputs[position]
    if name and name not in constants:
        raise UnsupportedError(f"its input {word}, {name!r}, is not a constant")
    return int(constants[name]) if name else MAX_ITERATIONS + 1


def unroll_scan(node: OnnxNode, type_of: Callable[[str], Torch]) -> list[OnnxNode] | None:
    """Return the unrolled nodes of a ``Scan``, ``None`` for other nodes."""
    if node.op != "Scan" or node.domain:
        return None
    body, count = node.attributes["body"], node.attributes["num_scan_inputs"]
    states, rows = list(node.inputs[:-count]), node.inputs[-count:]
    axes, is_reversed = _axes_and_directions(node, "scan_input", count)
    rounds = type_of(rows[0]).shape[axes[0]]
    if not 0 < rounds <= MAX_ITERATIONS:
        raise UnsupportedError(f"it runs {rounds} iterations, not 1 to {MAX_ITERATIONS}")
    nodes: list[OnnxNode] = []
    scan_outputs: list[list[str]] = []
    for t in range(rounds):
        places = [rounds - 1 - t if reverse else t for reverse in is_reversed]
        inputs = list(states)
        for row, axis, index in zip(rows, axes, places, strict=True):
            inputs.append(f"{node.name}/{t}/{row}")
            nodes += _slice_nodes(node, row, axis, index, inputs[-1])
        outputs = _add_iteration(node, body, inputs, f"{t}/", nodes.extend)
        states = outputs[: len(states)]
        scan_outputs.append(outputs[len(states) :])
    axes, is_reversed = _axes_and_directions(node, "scan_output", len(scan_outputs[0]))
    lists = [
        r[::-1] if b else r
        for r, b in zip(zip(*scan_outputs, strict=True), is_reversed, strict=True)
    ]
    return nodes + _result_nodes(node, states, lists, axes)


def _axes_and_directions(
    node: OnnxNode, word: str, count: int
) -> tuple[Sequence[int], Sequence[int]]:
    none = [0] * count
    attributes = node.attributes
    return attributes.get(f"{word}_axes", none), attributes.get(f"{word}_directions", none)


def _slice_nodes(node: OnnxNode, row: str, axis: int, index: int, out: str) -> list[OnnxNode]:
    """Return the nodes that select one slice of a scanned input of a ``Scan``."""
    index_name = f"{out}/at"
    return [
        OnnxNode("Constant", "", node.name, (), (index_name,), {"value_int": index}),
        OnnxNode("Gather", "", node.name, (row, index_name), (out,), {"axis": axis}, node.module),
    ]


def _add_iteration(
    node: OnnxNode,
    body: Torch,
    inputs: Sequence[str],
    mark: str,
    add: Callable[[Sequence[OnnxNode]], None],
) -> list[str]:
    """Add one iteration of a body; return the names of its outputs."""
    outputs = [f"{node.name}/{mark}out{i}" for i in range(len(body.output))]
    names = dict(zip((value.name for value in body.input), inputs, strict=True))
    add(inline_graph(body, node, names, outputs, mark))
    return outputs


def _result_nodes(
    node: OnnxNode, states: Sequence[str], lists: Sequence[Sequence[str]], axes: Sequence[int]
) -> list[OnnxNode]:
    """Return the nodes of a loop's results: its last states, and the stacked outputs of rounds."""
    nodes = [
        OnnxNode("Identity", "", node.name, (state,), (out,), {}, node.module)
        for state, out in zip(states, node.outputs, strict=False)
        if out
    ]
    for names, axis, out in zip(lists, axes, node.outputs[len(states) :], strict=False):
        parts = tuple(f"{name}/wide" for name in names)
        nodes += [
            OnnxNode("Unsqueeze", "", node.name, (name,), (part,), {"axes": [axis]}, node.module)
            for name, part in zip(names, parts, strict=True)
        ]
        nodes.append(OnnxNode("Concat", "", node.name, parts, (out,), {"axis": axis}, node.module))
    return nodes
