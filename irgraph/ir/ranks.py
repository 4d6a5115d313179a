"""Number of ranks that take part in a step's collectives, from the model and its ops.

The setting ``ranks`` has precedence; without it the ops of the step may agree on a number.
Otherwise the number is unknown.
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
"""Settings of a model: number of ranks, platform whose links connect them, and captured rank."""

RANK, GROUPS = "rank", "groups"
"""Settings of a captured model: its rank, and its process groups, such as ``dp=3,11 tp=0-7``."""

GROUP_ATTRIBUTES = ("process_group", "group_name")
"""Attributes of collectives that name their process group."""

EXCHANGE_PREFIXES = ("c10d.", "_c10d_functional.")
"""Prefixes of the names of ops that exchange data between ranks, or wait for an exchange."""

SPLITS = ("output_split_sizes", "input_split_sizes")
"""Attributes of collectives that have an item for each rank."""

PEERS = {"c10d.send": ("to", "dst"), "c10d.recv_": ("from", "src")}
"""Point-to-point ops: direction of the transfer, and the attribute with the other rank."""

_SPAN = re.compile(r"(\d{1,6})(?:-(\d{1,6})(?:/(\d{1,6}))?)?", re.ASCII)
_LAYOUT = re.compile(r"(?:(\d{1,6})x)?(\d{1,6})", re.ASCII)


class Layout(Struct, frozen=True):
    """The ranks of a step.

    Attributes:
        ranks: number of ranks, 0 if unknown.
        local: number of ranks on a machine.
        source: source of these numbers, in a few words.
    """

    ranks: int = 0
    local: int = 0
    source: str = ""


def is_collective(op: Op) -> bool:
    """Return whether an op exchanges data with other ranks, by its name."""
    return op.name.startswith(EXCHANGE_PREFIXES) and op.base != "wait_tensor"


def ranks_of(op: Op) -> int:
    """Return the number of ranks that an op's attributes specify, 0 if they do not."""
    size = op.attributes.get("group_size")
    if isinstance(size, int) and size > 0:
        return int(size)
    lists = (op.attributes.get(name) for name in SPLITS)
    return next((len(sizes) for sizes in lists if isinstance(sizes, tuple) and sizes), 0)


def group_of(op: Op) -> str:
    """Return the name of a collective's process group, ``""`` if it names none."""
    names = (op.attributes.get(name) for name in GROUP_ATTRIBUTES)
    return next((name for name in names if isinstance(name, str)), "")


def peer_of(op: Op) -> tuple[str, int] | None:
    """Return the direction and the other rank's position in the group of a point-to-point op."""
    direction, name = PEERS.get(op.name, ("", ""))
    number = op.attributes.get(name)
    return (direction, number) if isinstance(number, int) else None


def groups_of(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return the ranks of a model's process groups, by the group's name.

    Raises ``IrgraphError`` (exit code 2) if the setting cannot be read.
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
    """Return the process groups of a rank that runs the same model as the captured rank.

    Groups of a mesh are evenly spaced: the groups of another rank are shifted along the mesh.
    Raises ``IrgraphError`` if the model's groups are not evenly spaced.
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
    """Return the ranks of a mesh that differ from ``rank`` along one axis only."""
    first = rank - step * (rank // step % count)
    return range(first, first + step * count, step)


def _ranks_in(span: re.Match[str]) -> range:
    first, last, step = (int(text) if text else None for text in span.groups())
    assert first is not None
    return range(first, (first if last is None else last) + 1, step or 1)


def groups_text(groups: Mapping[str, Sequence[int]]) -> str:
    """Return process groups as text of the setting ``groups``: names and ranks."""
    return " ".join(f"{name}={_span(ranks)}" for name, ranks in groups.items())


def _span(ranks: Sequence[int]) -> str:
    steps = {after - before for before, after in pairwise(ranks)}
    if len(ranks) < 3 or len(steps) > 1:
        return ",".join(map(str, ranks))
    (step,) = steps
    return f"{ranks[0]}-{ranks[-1]}" + (f"/{step}" if step > 1 else "")


def layout_of(graph: Graph) -> Layout:
    """Return the ranks of a graph.

    Raises ``IrgraphError`` (exit code 2) if the graph's setting is not a number of ranks.
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
    """Return the number of ranks, and of ranks on a machine, from text ``N`` or ``MxN``.

    Raises ``IrgraphError`` (exit code 2) if the text is neither.
    """
    match = _LAYOUT.fullmatch(str(text))
    machines, local = (int(match[1] or 1), int(match[2])) if match else (0, 0)
    if not machines or not local:
        hint = "N is the number of ranks, MxN machines times ranks on each: 8, 2x8"
        raise fail(f"ranks: expected N or MxN, not {text!r}", hint=hint, exit_code=2)
    return Layout(machines * local, local, "as given")


def with_ranks(graph: Graph, ranks: int | str | None = None, fabric: str | None = None) -> Graph:
    """Return a graph whose settings specify the number of ranks and the links between them.

    ``ranks`` is a number, or machines times ranks on each such as ``2x8``; ``fabric`` is the
    platform whose links connect them. ``None`` leaves a setting unchanged.

    Raises ``IrgraphError`` (exit code 2) if ``ranks`` is neither.
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

    The name of a ``.json`` file is accepted; its reader reports errors in it.
    """
    if name not in fabrics and not name.endswith(".json"):
        message = f"fabric: no collectives were measured on {name!r}{suggestion(name, fabrics)}"
        listed = f"known: {', '.join(fabrics)}; or a .json file that describes its links"
        raise fail(message, hint=listed, exit_code=2)
    return name
