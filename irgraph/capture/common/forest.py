"""From recorded nodes to one tree of calls in launch order: threads joined, one step chosen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from irgraph.capture.common.interrupted import EVALUATE
from irgraph.capture.common.nodes import LOST, Node
from irgraph.text.builder import DEEPEST

BOOKKEEPING = "[pytorch|profiler|"
_STEP = re.compile(r"ProfilerStep#(\d{1,18})$", re.ASCII)
_PROGRAM = ("ProfilerStep#", "Optimizer.")


def attach(nodes: Sequence[Node], repairs: Counter[str]) -> None:
    """Give each node, in order of starts, to the one that called it.

    A caller that cannot be one counts as not recorded; ``repairs`` counts those by a sentence.
    """
    by_id = {node.id: node for node in nodes}
    circular = _circular(by_id)
    for node in nodes:
        parent = by_id.get(node.parent)
        if parent is node and _is_bookkeeping(node):
            node.parent = 0
        elif parent is None:
            node.parent = LOST if node.parent else 0
        elif node.id in circular or parent.id > node.id:
            node.parent = LOST
            repairs["calls name a caller that began later, or that they called themselves"] += 1
        else:
            parent.children.append(node)


def _circular(by_id: Mapping[int, Node]) -> set[int]:
    """Return the ids of nodes that are their own callers, by themselves or by way of others."""
    found: set[int] = set()
    done: set[int] = set()
    for start in by_id:
        path: list[int] = []
        current = start
        while current in by_id and current not in done:
            done.add(current)
            path.append(current)
            current = by_id[current].parent
        if current in path:
            found.update(path[path.index(current) :])
    return found


def too_deep(nodes: Sequence[Node]) -> Node | None:
    """Return the first node, if any, that lies below more calls than a model may nest."""
    depths: dict[int, int] = {}
    for node in nodes:
        depth = depths.setdefault(id(node), 0)
        if depth > DEEPEST:
            return node
        depths.update((id(child), depth + 1) for child in node.children)
    return None


def main_thread(nodes: Sequence[Node]) -> int:
    """Return the thread of the program: others are autograd's, or were started by it.

    It runs the optimizer and marks the steps; else it is the one that backward calls name as
    theirs; else the one with most of their forward calls; else the one with most operators.
    """
    by_id = {node.id: node for node in nodes}
    labels = Counter(node.thread for node in nodes if node.name.startswith(_PROGRAM))
    callers = [by_id[node.forward] for node in nodes if node.forward in by_id]
    waited = Counter(node.thread for node in callers if not node.name.startswith(EVALUATE))
    forward = _outside_autograd(nodes)
    numbers = {node.sequence for node in nodes if node.backward and node.sequence >= 0}
    linked = Counter(node.thread for node in forward if node.sequence in numbers)
    calls = Counter(node.thread for node in forward if node.schema)
    threads = dict.fromkeys(node.thread for node in nodes if not _is_bookkeeping(node))
    rank = {t: (labels[t], waited[t], linked[t], calls[t]) for t in threads}
    return max(threads, key=rank.__getitem__, default=0)


def _outside_autograd(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes, given in order of starts, that lie in no autograd call."""
    inside: set[int] = set()
    found = []
    for node in nodes:
        if node.backward or node.name.startswith(EVALUATE) or node.parent in inside:
            inside.add(node.id)
        else:
            found.append(node)
    return found


def roots(nodes: Sequence[Node]) -> list[Node]:
    """Return the outermost calls of all threads in launch order.

    What the backward thread ran goes where the forward thread waited for it: into the range that
    its autograd nodes name as their forward one, or else into the one that was open then. So do
    calls whose caller was not recorded.
    """
    by_id = {node.id: node for node in nodes}
    outermost = [n for n in nodes if not _is_bookkeeping(n) and _is_outermost(n, by_id)]
    if not outermost:
        return []
    main = main_thread(nodes)
    kept = [n for n in outermost if n.thread == main and n.parent != LOST]
    placed = set(map(id, kept))
    home: Node | None = None
    for node in outermost:
        if id(node) in placed:
            continue
        named = by_id.get(_forward(node))
        if _may_hold(named, node, main):
            home = _around(named, by_id)
        elif _forward(node) or not node.name.startswith(EVALUATE):
            home = _open_at(kept, node.id)
        _insert(home.children if home else kept, node)
    return kept


def lost(nodes: Sequence[Node]) -> list[str]:
    """Return a sentence about calls whose caller was not recorded, if there are any."""
    count = sum(node.parent == LOST for node in nodes)
    return [f"{count} calls have no recorded caller: put where they began"] if count else []


def _is_bookkeeping(node: Node) -> bool:
    return node.name.startswith(BOOKKEEPING)


def _is_outermost(node: Node, by_id: dict[int, Node]) -> bool:
    parent = by_id.get(node.parent)
    return parent is None or parent is node or _is_bookkeeping(parent)


def _forward(node: Node) -> int:
    """Return the id of the forward range that a backward call names, 0 if it names none."""
    inner = (child.forward for child in node.children if child.backward)
    return node.forward or next(inner, 0)


def _may_hold(named: Node | None, node: Node, main: int) -> TypeGuard[Node]:
    """Return whether the range that a backward call names can be around it."""
    if named is None or _is_bookkeeping(named):
        return False
    return named.thread == main and named.id < node.id


def _around(node: Node, by_id: Mapping[int, Node]) -> Node | None:
    """Return the innermost range, from a node outwards, that lies in no operator."""
    found: Node | None = node
    current: Node | None = node
    while current is not None and not _is_bookkeeping(current):
        above = by_id.get(current.parent)
        if current.schema:
            found = above
        current = above
    return None if found is None or _is_bookkeeping(found) else found


def _open_at(siblings: Sequence[Node], moment: int) -> Node | None:
    """Return the innermost annotation that certainly was open when a node started."""
    found: Node | None = None
    while True:
        labels = (node for node in siblings if node.id < moment and not node.schema)
        inner = next((node for node in labels if _last(node) > moment), None)
        if inner is None:
            return found
        found, siblings = inner, inner.children


def _last(node: Node) -> int:
    while node.children:
        node = node.children[-1]
    return node.id


def _insert(siblings: list[Node], node: Node) -> None:
    place = len(siblings)
    while place and siblings[place - 1].id > node.id:
        place -= 1
    siblings.insert(place, node)


def steps(forest: Sequence[Node]) -> dict[int, Node]:
    """Return the profiler's step ranges by their number, in launch order."""
    found = {}
    for root in forest:
        for node in root.walk():
            match = _STEP.match(node.name)
            if match:
                found[int(match.group(1))] = node
    return found


def last_complete(found: dict[int, Node]) -> int:
    """Return the number of the last step that holds about as many calls as the fullest one.

    A recording may have stopped in the midst of its last step.
    """
    sizes = {number: sum(1 for _ in node.walk()) for number, node in found.items()}
    full = 0.9 * max(sizes.values())
    return [number for number, size in sizes.items() if size >= full][-1]
