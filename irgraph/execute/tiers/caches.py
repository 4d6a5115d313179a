"""What caches hold when a step begins: rows of their tables, whichever, and empty slots."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from irgraph.execute.narrow.rows import SCALED
from irgraph.execute.tiers.bags import lists_of, put_bag
from irgraph.execute.tiers.ops import EMPTY, sets_of, tier_pool, tier_read
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.schema import arguments_of
from irgraph.ir.tensor import Tensor

EMPTY_SHARE = 4
"""One slot of so many is empty."""


def fill_caches(
    graph: Graph, values: Mapping[str, torch.Tensor], given: Collection[str], seed: int
) -> None:
    """Let every cache of a graph hold rows of its table; those that were given stay as they are.

    A cache and its directory exist before the step, but not any values will do: a slot that says
    that it holds a row must hold that row.
    """
    for weight, directory, held, ways in _caches(graph):
        if directory.name in given or held.name in given:
            continue
        if not all(t.name in values for t in (weight, directory, held)):
            continue  # what the step makes itself is as its ops make it
        source = torch.Generator().manual_seed(seed)
        _fill(values[weight.name], values[directory.name], values[held.name], ways, source)
    for op in graph.leaves():
        pooled = arguments_of(op, graph.schemas) if op.name == "irgraph.tier_pool" else {}
        if _tensors(pooled.get("found")):
            _hold_bags(graph, op, values, given, seed)


def _hold_bags(
    graph: Graph, pool: Op, values: Mapping[str, torch.Tensor], given: Collection[str], seed: int
) -> None:
    """Let caches of pooled bags hold some of the step's own bags: no others would ever be found.

    Where the step itself makes the indices, or the rows, they begin empty.
    """
    about = arguments_of(pool, graph.schemas)
    found, bags = (_tensors(about.get(name)) for name in ("found", "bags"))
    makers = {t.name: op for op in graph.leaves() for t in op.outputs}
    probe = makers.get(found[0].name)
    read = makers.get(_tensors(about.get("staged"))[0].name)
    if probe is None or read is None or probe.name != "irgraph.bag_probe":
        return
    asked, wanted = (arguments_of(one, graph.schemas) for one in (probe, read))
    weights = _tensors(wanted.get("weights"))
    tables = (_tensors(asked.get(name)) for name in ("keys", "indices", "offsets"))
    for number, (keys, index, offset) in enumerate(zip(*tables, strict=True)):
        if keys.name in given or bags[number].name in given:
            continue
        values[keys.name].zero_()[:, 0] = EMPTY
        if not all(t.name in values for t in (index, offset, weights[number])):
            continue
        held = [values[t.name] for t in (weights[number], index, offset)]
        made = _pooled(about, number, held, values)
        source = torch.Generator().manual_seed(seed + number)
        lists = lists_of(held[1], held[2], bool(about.get("include_last_offset")))
        for bag, row in zip(lists, made, strict=True):
            if drawn := int(torch.randint(EMPTY_SHARE, (), generator=source)):
                how = (set[int](), drawn, _ways(asked))
                put_bag(values[keys.name], values[bags[number].name], bag, row, how)


def _ways(given: Mapping[str, Value]) -> int:
    ways = given.get("ways", 32)
    return ways if isinstance(ways, int) else 32


def _pooled(
    about: Mapping[str, Value],
    number: int,
    held: list[torch.Tensor],
    values: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    """Return the bags of one table of a pooling op, all of its rows read."""
    weight, index, offset = held
    kinds = about.get("kinds")
    named = [str(kind) for kind in kinds] if isinstance(kinds, tuple) else []
    scaled = [n for n, kind in enumerate(named) if kind in SCALED]
    scales = _tensors(about.get("scales"))
    own = [values[scales[scaled.index(number)].name]] if number in scaled else []
    mode = about.get("mode")
    (made,) = tier_pool(
        tier_read([weight], [index]),
        [offset],
        mode=mode if isinstance(mode, int) else 0,
        include_last_offset=bool(about.get("include_last_offset")),
        kinds=named[number : number + 1],
        scales=own,
    )
    return made


def _fill(
    weight: torch.Tensor,
    directory: torch.Tensor,
    held: torch.Tensor,
    ways: int,
    source: torch.Generator,
) -> None:
    """Draw which rows of a table lie in a cache, each in its set, none twice."""
    sets, wide = sets_of(directory.shape[1], ways)
    directory[0], directory[1] = EMPTY, 0
    for slot in range(sets * wide):
        row = slot // wide + sets * (slot % wide)
        drawn = int(torch.randint(EMPTY_SHARE, (), generator=source))
        if row < len(weight) and drawn:
            directory[0, slot], directory[1, slot] = row, drawn
            held[slot] = weight[row]


def _caches(graph: Graph) -> list[tuple[Tensor, Tensor, Tensor, int]]:
    """Return each table that is read through a cache with its directory, its slots and its ways."""
    directories: dict[str, tuple[Tensor, int]] = {}
    weights: dict[str, Tensor] = {}
    held: dict[str, Tensor] = {}
    for op in graph.leaves():
        if not op.name.startswith("irgraph.tier_"):
            continue
        given = arguments_of(op, graph.schemas)
        if op.base == "tier_probe" and op.outputs:
            ways = _ways(given)
            pairs = zip(op.outputs, _tensors(given.get("directories")), strict=False)
            directories.update((slot.name, (one, ways)) for slot, one in pairs)
        for name, found in (("weights", weights), ("held", held)):
            of = zip(_tensors(given.get("slots")), _tensors(given.get(name)), strict=False)
            found.update((slot.name, one) for slot, one in of)
    known = [slot for slot in directories if slot in weights and slot in held]
    return [(weights[s], directories[s][0], held[s], directories[s][1]) for s in known]


def _tensors(value: Value) -> list[Tensor]:
    return [t for t in value if isinstance(t, Tensor)] if isinstance(value, tuple) else []
