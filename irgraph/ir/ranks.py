"""How many ranks take part in a step's collectives, by what the model and its ops say.

The setting ``ranks`` goes first; without it the ops of the step may agree on a number. Otherwise
the number stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from irgraph.diagnostics import fail, suggestion
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value

RANKS, FABRIC, RANK = "ranks", "fabric", "rank"
"""Settings of a model: how many ranks run it, whose links connect them, and which rank it is."""

RANK, GROUPS = "rank", "groups"
"""Settings of a captured model: which rank it is, and its process groups: ``dp=3,11 tp=0-7``."""

GROUP_ATTRIBUTES = ("process_group", "group_name")
"""Attributes of collectives that name their process group."""

EXCHANGE_PREFIXES = ("c10d.", "_c10d_functional.")
"""Prefixes of the names of ops that exchange data between ranks, or wait for that."""

SPLITS = ("output_split_sizes", "input_split_sizes")
"""Attributes of collectives that have an item for each rank."""

PEERS = {"c10d.send": ("to", "dst"), "c10d.recv_": ("from", "src")}
"""Ops between two ranks: which way their tensors go, and the attribute that names the other."""

_SPAN = re.compile(r"(\d{1,6})(?:-(\d{1,6})(?:/(\d{1,6}))?)?", re.ASCII)
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
    return op.name.startswith(EXCHANGE_PREFIXES) and op.base != "wait_tensor"


def ranks_of(op: Op) -> int:
    """Return how many ranks an op says it has, 0 if it does not."""
    size = op.attributes.get("group_size")
    if isinstance(size, int) and size > 0:
        return int(size)
    lists = (op.attributes.get(name) for name in SPLITS)
    return next((len(sizes) for sizes in lists if isinstance(sizes, tuple) and sizes), 0)


def group_of(op: Op) -> str:
    """Return the name of the process group that a collective is for, ``""`` if it has none."""
    names = (op.attributes.get(name) for name in GROUP_ATTRIBUTES)
    return next((name for name in names if isinstance(name, str)), "")


def peer_of(op: Op) -> tuple[str, int] | None:
    """Return the way and the other rank of an op between two ranks, by its place in the group."""
    direction, name = PEERS.get(op.name, ("", ""))
    number = op.attributes.get(name)
    return (direction, number) if isinstance(number, int) else None


def groups_of(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return the ranks of the process groups that a model names, by the group's name.

    Raises ``IrgraphError`` (exit code 2) where the setting cannot be read.
    """
    groups = {}
    for item in str(graph.settings.get(GROUPS, "")).split():
        name, _, ranks = item.partition("=")
        spans = [_SPAN.fullmatch(span) for span in ranks.split(",")]
        if not all(spans):
            hint = "write NAME=RANKS, such as dp=3,11 tp=0-7 or dp=0-24/8"
            raise fail(f"groups: cannot read {item!r}", hint=hint, exit_code=2)
        groups[name] = tuple(rank for span in spans if span for rank in _ranks_in(span))
    return groups


def groups_at(graph: Graph, rank: int) -> dict[str, tuple[int, ...]]:
    """Return the process groups of a rank that runs the same model as the one captured.

    Groups of a mesh are evenly spaced: those of another rank lie as much further as it does.
    Raises ``IrgraphError`` where the model's groups are not so.
    """
    groups, captured_rank = groups_of(graph), int(str(graph.settings.get(RANK, rank)))
    if captured_rank == rank:
        return groups
    shifted = {}
    for name, ranks in groups.items():
        step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
        shifted[name] = tuple(_mesh_ranks(rank, step, len(ranks)))
        if ranks != tuple(_mesh_ranks(captured_rank, step, len(ranks))):
            message = (
                f"{graph.name}: group {name} is not evenly spaced, so what it is on rank {rank}"
            )
            raise fail(f"{message} is not known", hint="capture that rank, too")
    return shifted


def _mesh_ranks(rank: int, step: int, count: int) -> range:
    """Return the ranks of a mesh that differ from one along an axis only."""
    first = rank - step * (rank // step % count)
    return range(first, first + step * count, step)


def _ranks_in(span: re.Match[str]) -> range:
    first, last, step = (int(text) if text else None for text in span.groups())
    assert first is not None
    return range(first, (first if last is None else last) + 1, step or 1)


def groups_text(groups: Mapping[str, Sequence[int]]) -> str:
    """Return process groups as the setting ``groups`` has them: names and ranks, evenly spaced."""
    return " ".join(f"{name}={_span(ranks)}" for name, ranks in groups.items())


def _span(ranks: Sequence[int]) -> str:
    steps = {after - before for before, after in pairwise(ranks)}
    if len(ranks) < 3 or len(steps) > 1:
        return ",".join(map(str, ranks))
    (step,) = steps
    return f"{ranks[0]}-{ranks[-1]}" + (f"/{step}" if step > 1 else "")


def layout_of(graph: Graph) -> Layout:
    """Return the ranks of a graph.

    Raises ``IrgraphError`` (exit code 2) where the graph's setting is not a number of ranks.
    """
    setting = graph.settings.get(RANKS)
    if setting is not None:
        return read_layout(setting)
    counts = set(filter(None, map(ranks_of, filter(is_collective, graph.walk()))))
    if len(counts) != 1:
        return Layout()
    (count,) = counts
    return Layout(count, count, "as other ops of the step say")


def read_layout(text: Value) -> Layout:
    """Return how many ranks, and how many on a machine, ``N`` or ``MxN`` says.

    Raises ``IrgraphError`` (exit code 2) where it is neither.
    """
    match = _LAYOUT.fullmatch(str(text))
    machines, local = (int(match[1] or 1), int(match[2])) if match else (0, 0)
    if not machines or not local:
        hint = "N is the number of ranks, MxN machines times ranks on each: 8, 2x8"
        raise fail(f"ranks: expected N or MxN, not {text!r}", hint=hint, exit_code=2)
    return Layout(machines * local, local, "as given")


def with_ranks(graph: Graph, ranks: int | str | None = None, fabric: str | None = None) -> Graph:
    """Return a graph whose settings say how many ranks take part in its collectives.

    ``ranks`` is a number, or machines times ranks on each such as ``2x8``; ``fabric`` the platform
    whose links connect them. ``None`` leaves a setting as it is.

    Raises ``IrgraphError`` (exit code 2) where ``ranks`` is neither.
    """
    settings: dict[str, Value] = {}
    if ranks is not None:
        layout = read_layout(ranks)
        settings[RANKS] = layout.ranks if layout.ranks == layout.local else ranks
    if fabric is not None:
        settings[FABRIC] = fabric
    return replace(graph, settings={**graph.settings, **settings}) if settings else graph


def check_fabric(name: str, fabrics: Sequence[str]) -> str:
    """Return the name of a platform whose links are known, else raise ``IrgraphError`` (2).

    A file (``.json``) is another: what reads it says what is wrong with it.
    """
    if name not in fabrics and not name.endswith(".json"):
        message = f"fabric: no collectives were measured on {name!r}{suggestion(name, fabrics)}"
        listed = f"known: {', '.join(fabrics)}; or a .json file that describes its links"
        raise fail(message, hint=listed, exit_code=2)
    return name
