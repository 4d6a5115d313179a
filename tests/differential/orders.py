"""The orders in which a device may run a graph's ops: streams are queues, events tie them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op

NAME = re.compile(r"\w+(\.\w+)+")
READS = ("aten.item", "aten._local_scalar_dense", "aten.is_nonzero", "aten.equal")


def computes(leaf: Op) -> bool:
    """Tell whether a leaf is a call, and no label or empty autograd node."""
    return NAME.fullmatch(leaf.name) is not None and not (
        leaf.name.startswith("autograd.") and not leaf.results
    )


def in_random_order(graph: Graph, chance: Random) -> list[Op]:
    """Return the leaves in an order that streams, events and the host's waits allow."""
    leaves = [leaf for leaf in graph.leaves() if computes(leaf)]
    before = [set(found) for found in _needs(leaves)]
    after: list[list[int]] = [[] for _ in leaves]
    for i, needed in enumerate(before):
        for j in needed:
            after[j].append(i)
    ready = [i for i, needed in enumerate(before) if not needed]
    order = []
    while ready:
        here = ready.pop(chance.randrange(len(ready)))
        order.append(leaves[here])
        for i in after[here]:
            before[i].discard(here)
            if not before[i]:
                ready.append(i)
    assert len(order) == len(leaves)
    return order


def _needs(leaves: list[Op]) -> Iterator[set[int]]:
    """Yield for each leaf what must have run before it.

    The host launches one op after the other. Its own work is done at once; a device's work is
    done in the order of its stream, and waits for nothing else but events.
    """
    last: dict[str, int] = {}
    waits: dict[str, set[int]] = {}
    events: dict[str, int] = {}
    host: set[int] = set()
    for here, leaf in enumerate(leaves):
        if leaf.name == "sync.event":
            host = {here, *host, *(events[t.name] for t in leaf.inputs)}
            yield set(host) - {here}
            continue
        if leaf.name == "sync.wait":
            waits.setdefault(leaf.stream, set()).update(events[t.name] for t in leaf.inputs)
            yield {events[t.name] for t in leaf.inputs}
            continue
        if leaf.name in ("sync.device", "sync.stream"):
            over = (
                last.values()
                if leaf.name == "sync.device"
                else [last[leaf.stream]] * (leaf.stream in last)
            )
            needed = {*host, *over}
            host = {here, *needed}
            yield needed
            continue
        touched = (*leaf.inputs, *leaf.outputs)
        on_device = any(t.device != "cpu" for t in touched) or leaf.name == "sync.record"
        needed = set(host)
        if on_device:
            needed |= waits.get(leaf.stream, set())
            needed |= {last[leaf.stream]} if leaf.stream in last else set()
            last[leaf.stream] = here
        events.update((t.name, here) for t in leaf.outputs if leaf.name == "sync.record")
        yield needed
        if not on_device or _awaited(leaf):
            host = {here}


def _awaited(leaf: Op) -> bool:
    """Tell whether the host stands still until this is done: reads, and copies it waits for."""
    devices = {t.device == "cpu" for t in (*leaf.inputs, *leaf.outputs)}
    copies = len(devices) == 2 and leaf.attributes.get("non_blocking") is not True
    return leaf.name in READS or copies
