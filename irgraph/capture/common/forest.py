"""Builds trees of calls in launch order from recorded nodes: joins threads, selects a step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from irgraph.capture.common.interrupted import EVALUATE
from irgraph.capture.common.nodes import MISSING_CALLER, RecordedNode
from irgraph.text.builder import MAX_DEPTH

BOOKKEEPING = "[pytorch|profiler|"
_STEP = re.compile(r"ProfilerStep#(\d{1,18})$", re.ASCII)
_PROGRAM = ("ProfilerStep#", "Optimizer.")


def attach_to_callers(nodes: Sequence[RecordedNode], repairs: Counter[str]) -> None:
    """Append each node to the children of its caller, in order of starts.

    An impossible caller counts as not recorded; ``repairs`` counts such callers by a sentence.
    """
    by_id = {node.id: node for node in nodes}
    circular = _nodes_in_cycles(by_id)
    for node in nodes:
        parent = by_id.get(node.parent)
        if parent is node and _is_bookkeeping(node):
            node.parent = 0
        elif parent is None:
            node.parent = MISSING_CALLER if node.parent else 0
        elif node.id in circular or parent.id > node.id:
            node.parent = MISSING_CALLER
            repairs["calls name a caller that began later, or that they called themselves"] += 1
        else:
            parent.children.append(node)


def _nodes_in_cycles(by_id: Mapping[int, RecordedNode]) -> set[int]:
    """Return the ids of nodes that are their own callers, directly or through other nodes."""
    cycle_ids: set[int] = set()
    visited: set[int] = set()
    for start in by_id:
        path: list[int] = []
        current = start
        while current in by_id and current not in visited:
            visited.add(current)
            path.append(current)
            current = by_id[current].parent
        if current in path:
            cycle_ids.update(path[path.index(current) :])
    return cycle_ids


def first_too_deep(nodes: Sequence[RecordedNode]) -> RecordedNode | None:
    """Return the first node, if any, that is nested more deeply than a model may be."""
    depths: dict[RecordedNode, int] = {}
    for node in nodes:
        depth = depths.setdefault(node, 0)
        if depth > MAX_DEPTH:
            return node
        depths.update((child, depth + 1) for child in node.children)
    return None


def main_thread(nodes: Sequence[RecordedNode]) -> int:
    """Return the thread of the program: others are autograd's, or were started by the program.

    The program's thread runs the optimizer and marks the steps. If no thread does, it is the one
    that has most of the callers of backward calls; else most of their forward calls; else most
    operators.
    """
    by_id = {node.id: node for node in nodes}
    labels = Counter(node.thread for node in nodes if node.name.startswith(_PROGRAM))
    callers = [by_id[node.forward] for node in nodes if node.forward in by_id]
    backward_callers = Counter(
        node.thread for node in callers if not node.name.startswith(EVALUATE)
    )
    forward = _nodes_outside_autograd(nodes)
    numbers = {node.sequence for node in nodes if node.backward and node.sequence >= 0}
    linked = Counter(node.thread for node in forward if node.sequence in numbers)
    calls = Counter(node.thread for node in forward if node.schema)
    threads = dict.fromkeys(node.thread for node in nodes if not _is_bookkeeping(node))
    rank = {t: (labels[t], backward_callers[t], linked[t], calls[t]) for t in threads}
    return max(threads, key=rank.__getitem__, default=0)


def _nodes_outside_autograd(nodes: Sequence[RecordedNode]) -> list[RecordedNode]:
    """Return the nodes that are in no autograd call; ``nodes`` are in order of starts."""
    inside: set[int] = set()
    forward_nodes = []
    for node in nodes:
        if node.backward or node.name.startswith(EVALUATE) or node.parent in inside:
            inside.add(node.id)
        else:
            forward_nodes.append(node)
    return forward_nodes


def roots(nodes: Sequence[RecordedNode]) -> list[RecordedNode]:
    """Return the outermost calls of all threads in launch order.

    Calls of the backward thread are inserted where the forward thread waited for them: into the
    range that their autograd nodes name as their forward one, or else into the annotation that was
    open at that time. The same holds for calls whose caller was not recorded.
    """
    by_id = {node.id: node for node in nodes}
    outermost = [n for n in nodes if not _is_bookkeeping(n) and _is_outermost(n, by_id)]
    if not outermost:
        return []
    main = main_thread(nodes)
    forest = [n for n in outermost if n.thread == main and n.parent != MISSING_CALLER]
    forest_set = set(forest)
    container: RecordedNode | None = None
    for node in outermost:
        if node in forest_set:
            continue
        forward_range = by_id.get(_forward_id(node))
        if _may_enclose(forward_range, node, main):
            container = _enclosing_annotation(forward_range, by_id)
        elif _forward_id(node) or not node.name.startswith(EVALUATE):
            container = _open_annotation(forest, node.id)
        _insert(container.children if container else forest, node)
    return forest


def orphan_notes(nodes: Sequence[RecordedNode]) -> list[str]:
    """Return a note on the number of calls whose caller was not recorded, if there are any."""
    count = sum(node.parent == MISSING_CALLER for node in nodes)
    return [f"{count} calls have no recorded caller: put where they began"] if count else []


def _is_bookkeeping(node: RecordedNode) -> bool:
    return node.name.startswith(BOOKKEEPING)


def _is_outermost(node: RecordedNode, by_id: dict[int, RecordedNode]) -> bool:
    parent = by_id.get(node.parent)
    return parent is None or parent is node or _is_bookkeeping(parent)


def _forward_id(node: RecordedNode) -> int:
    """Return the id of the forward range that a backward call names, 0 if it names none."""
    inner = (child.forward for child in node.children if child.backward)
    return node.forward or next(inner, 0)


def _may_enclose(
    candidate: RecordedNode | None, node: RecordedNode, main: int
) -> TypeGuard[RecordedNode]:
    """Return whether the forward range that a backward call names can enclose the call."""
    if candidate is None or _is_bookkeeping(candidate):
        return False
    return candidate.thread == main and candidate.id < node.id


def _enclosing_annotation(
    node: RecordedNode, by_id: Mapping[int, RecordedNode]
) -> RecordedNode | None:
    """Return the innermost range, from a node outwards, that is in no operator."""
    enclosing: RecordedNode | None = node
    current: RecordedNode | None = node
    while current is not None and not _is_bookkeeping(current):
        caller = by_id.get(current.parent)
        if current.schema:
            enclosing = caller
        current = caller
    return None if enclosing is None or _is_bookkeeping(enclosing) else enclosing


def _open_annotation(siblings: Sequence[RecordedNode], moment: int) -> RecordedNode | None:
    """Return the innermost annotation that was certainly open when a node started."""
    annotation: RecordedNode | None = None
    while True:
        labels = (node for node in siblings if node.id < moment and not node.schema)
        inner = next((node for node in labels if _last_id(node) > moment), None)
        if inner is None:
            return annotation
        annotation, siblings = inner, inner.children


def _last_id(node: RecordedNode) -> int:
    while node.children:
        node = node.children[-1]
    return node.id


def _insert(siblings: list[RecordedNode], node: RecordedNode) -> None:
    index = len(siblings)
    while index and siblings[index - 1].id > node.id:
        index -= 1
    siblings.insert(index, node)


def step_ranges(forest: Sequence[RecordedNode]) -> dict[int, RecordedNode]:
    """Return the profiler's step ranges by their number, in launch order."""
    range_by_number = {}
    for root in forest:
        for node in root.walk():
            match = _STEP.match(node.name)
            if match:
                range_by_number[int(match.group(1))] = node
    return range_by_number


def last_complete_step(range_by_number: dict[int, RecordedNode]) -> int:
    """Return the number of the last step that has at least 90 % of the calls of the largest one.

    A recording may have stopped in the middle of its last step.
    """
    sizes = {number: sum(1 for _ in node.walk()) for number, node in range_by_number.items()}
    full = 0.9 * max(sizes.values())
    return [number for number, size in sizes.items() if size >= full][-1]
