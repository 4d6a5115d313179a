"""How many ranks take part in a step's collectives, by what the model and its ops say.

The setting ``ranks`` goes first; without it the ops of the step may agree on a number. Otherwise
the number stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from irgraph.diagnostics import fail, near
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value

RANKS, FABRIC, RANK = "ranks", "fabric", "rank"
"""Settings of a model: how many ranks run it, whose links connect them, and which rank it is."""

SPLITS = ("output_split_sizes", "input_split_sizes")
"""Attributes of collectives that have an item for each rank."""

_LAYOUT = re.compile(r"(?:(\d{1,6})x)?(\d{1,6})", re.ASCII)


class Layout(Struct, frozen=True):
    """The ranks of a step.

    Attributes:
        ranks: how many take part, 0 where nothing says so.
        local: how many of them share a machine.
        source: who says so.
    """

    ranks: int = 0
    local: int = 0
    source: str = ""


def is_collective(op: Op) -> bool:
    """Return whether an op is called to exchange data with other ranks, known or not."""
    return op.name.startswith(("c10d.", "_c10d_functional.")) and op.base != "wait_tensor"


def ranks_of(op: Op) -> int:
    """Return how many ranks an op says it has, 0 if it does not."""
    size = op.attributes.get("group_size")
    if isinstance(size, int) and size > 0:
        return int(size)
    lists = (op.attributes.get(name) for name in SPLITS)
    return next((len(found) for found in lists if isinstance(found, tuple) and found), 0)


def layout_of(graph: Graph) -> Layout:
    """Return the ranks of a graph.

    Raises ``IrgraphError`` (exit code 2) where the graph's setting is not a number of ranks.
    """
    given = graph.settings.get(RANKS)
    if given is not None:
        return _read(given)
    named = set(filter(None, map(ranks_of, filter(is_collective, graph.walk()))))
    if len(named) != 1:
        return Layout()
    (count,) = named
    return Layout(count, count, "as other ops of the step say")


def _read(given: Value) -> Layout:
    found = _LAYOUT.fullmatch(str(given))
    machines, local = (int(found[1] or 1), int(found[2])) if found else (0, 0)
    if not machines or not local:
        hint = "N is the number of ranks, MxN machines times ranks on each: 8, 2x8"
        raise fail(f"ranks: expected N or MxN, not {given!r}", hint=hint, exit_code=2)
    return Layout(machines * local, local, "as given")


def with_ranks(graph: Graph, ranks: int | str | None = None, fabric: str | None = None) -> Graph:
    """Return a graph whose settings say how many ranks take part in its collectives.

    ``ranks`` is a number, or machines times ranks on each such as ``2x8``; ``fabric`` the platform
    whose links connect them. ``None`` leaves a setting as it is.

    Raises ``IrgraphError`` (exit code 2) where ``ranks`` is neither.
    """
    given: dict[str, Value] = {}
    if ranks is not None:
        layout = _read(ranks)
        given[RANKS] = layout.ranks if layout.ranks == layout.local else ranks
    if fabric is not None:
        given[FABRIC] = fabric
    return replace(graph, settings={**graph.settings, **given}) if given else graph


def check_fabric(name: str, known: Sequence[str]) -> str:
    """Return the name of a platform whose links are known, else raise ``IrgraphError`` (2)."""
    if name not in known:
        message = f"fabric: no collectives were measured on {name!r}{near(name, known)}"
        raise fail(message, hint=f"known: {', '.join(known)}", exit_code=2)
    return name
