"""From recorded nodes to one tree of calls in launch order: threads joined, one step chosen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from irgraph.capture.nodes import LOST, Node

BOOKKEEPING = "[pytorch|profiler|"
EVALUATE = "autograd::engine::evaluate_function: "
_STEP = re.compile(r"ProfilerStep#(\d+)$")


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
    main = outermost[0].thread
    kept = [n for n in outermost if n.thread == main and n.parent != LOST]
    placed = set(map(id, kept))
    home: Node | None = None
    for node in outermost:
        if id(node) in placed:
            continue
        named = by_id.get(_forward(node))
        if named is not None and named.thread == main and not _is_bookkeeping(named):
            home = named
        elif _forward(node) or not node.name.startswith(EVALUATE):
            home = _open_at(kept, node.id)
        _insert(home.children if home else kept, node)
    return _untangled(kept)


def lost(nodes: Sequence[Node]) -> list[str]:
    """Return a sentence about calls whose caller was not recorded, if there are any."""
    count = sum(node.parent == LOST for node in nodes)
    return [f"{count} calls have no recorded caller: put where they began"] if count else []


def _untangled(nodes: Sequence[Node]) -> list[Node]:
    """Take out of autograd calls what only seems to be in them.

    After an exception a recording counts later calls as the interrupted one's.
    """
    found = []
    for node in nodes:
        escaped: list[Node] = []
        if node.name.startswith(EVALUATE):
            calls = [child.name.startswith(EVALUATE) for child in node.children]
            inner = [child.backward for child in node.children]
            if True in inner and True in calls[inner.index(True) :]:
                first = calls.index(True, inner.index(True))
                node.children, escaped = node.children[:first], node.children[first:]
        found += [node, *_untangled(escaped)]
    return found


def _is_bookkeeping(node: Node) -> bool:
    return node.name.startswith(BOOKKEEPING)


def _is_outermost(node: Node, by_id: dict[int, Node]) -> bool:
    parent = by_id.get(node.parent)
    return parent is None or parent is node or _is_bookkeeping(parent)


def _forward(node: Node) -> int:
    """Return the id of the forward range that a backward call names, 0 if it names none."""
    inner = (child.forward for child in node.children if child.backward)
    return node.forward or next(inner, 0)


def _open_at(siblings: Iterable[Node], moment: int) -> Node | None:
    """Return the innermost annotation that certainly was open when a node started."""
    for node in siblings:
        if node.id < moment and not node.schema and _last(node) > moment:
            return _open_at(node.children, moment) or node
    return None


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
