"""Number of ranks that take part in a recorded step's collectives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from irgraph.capture.common.nodes import RecordedNode

GROUP = ("start", "stride", "size")
"""Last arguments of ``record_param_comms`` since torch 2.1, which describe the group's ranks."""


def recorded_ranks(forest: Iterable[RecordedNode]) -> Mapping[str, int]:
    """Return the setting ``ranks`` if all collectives below these nodes have one group size.

    Torch records the size with each collective (``RECORD_PARAM_COMMS``).
    """
    sizes = {
        node.inputs[-1]
        for tree in forest
        for node in tree.walk()
        if node.name == "record_param_comms" and _has_group(node)
    }
    valid_sizes = [size for size in sizes if isinstance(size, int) and size > 0]
    return {"ranks": valid_sizes[0]} if len(valid_sizes) == len(sizes) == 1 else {}


def _has_group(node: RecordedNode) -> bool:
    """Return whether a record has a group with a first rank; records of waits have -1 there."""
    last = [value for value in node.inputs[-len(GROUP) :] if isinstance(value, int)]
    return len(last) == len(GROUP) and last[0] >= 0
