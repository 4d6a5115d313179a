"""Initial content of caches: random rows of their tables, and empty slots."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.schema import arguments_of
from irgraph.ir.tensor import Tensor
from irgraph.ops.references.bags import bag_lists, insert_bag
from irgraph.ops.references.rows import SCALED
from irgraph.ops.references.tiers import EMPTY, sets_of, tier_pool, tier_read

EMPTY_SHARE = 4
"""Average number of slots per empty slot."""


def fill_caches(
    graph: Graph, values: Mapping[str, torch.Tensor], input_names: Collection[str], seed: int
) -> None:
    """Fill every cache of a graph with rows of its table, except caches in ``input_names``.

    A cache and its directory exist before the step, but their values must be consistent: a slot
    must contain the row that its directory names.
    """
    for weight, directory, cache, ways in _caches(graph):
        if directory.name in input_names or cache.name in input_names:
            continue
        if not all(t.name in values for t in (weight, directory, cache)):
            continue  # the step itself creates one of them
        source = torch.Generator().manual_seed(seed)
        _fill_row_cache(
            values[weight.name], values[directory.name], values[cache.name], ways, source
        )
    for op in graph.leaves():
        arguments = arguments_of(op, graph.schemas) if op.name == "irgraph.tier_pool" else {}
        if _tensors(arguments.get("found")):
            _fill_bag_caches(graph, op, values, input_names, seed)


def _fill_bag_caches(
    graph: Graph,
    pool: Op,
    values: Mapping[str, torch.Tensor],
    input_names: Collection[str],
    seed: int,
) -> None:
    """Fill caches of pooled bags with some of the step's own bags: others would never be found.

    If the step itself creates the indices or the rows, they start empty.
    """
    pool_arguments = arguments_of(pool, graph.schemas)
    slots, bags = (_tensors(pool_arguments.get(name)) for name in ("found", "bags"))
    makers = {t.name: op for op in graph.leaves() for t in op.outputs}
    probe = makers.get(slots[0].name)
    read = makers.get(_tensors(pool_arguments.get("staged"))[0].name)
    if probe is None or read is None or probe.name != "irgraph.bag_probe":
        return
    probe_arguments, read_arguments = (
        arguments_of(lookup_op, graph.schemas) for lookup_op in (probe, read)
    )
    weights = _tensors(read_arguments.get("weights"))
    tables = (_tensors(probe_arguments.get(name)) for name in ("keys", "indices", "offsets"))
    for number, (keys, index, offset) in enumerate(zip(*tables, strict=True)):
        if keys.name in input_names or bags[number].name in input_names:
            continue
        values[keys.name].zero_()[:, 0] = EMPTY
        if not all(t.name in values for t in (index, offset, weights[number])):
            continue
        operands = [values[t.name] for t in (weights[number], index, offset)]
        pooled = _pooled_bags(pool_arguments, number, operands, values)
        source = torch.Generator().manual_seed(seed + number)
        lists = bag_lists(operands[1], operands[2], bool(pool_arguments.get("include_last_offset")))
        for bag, row in zip(lists, pooled, strict=True):
            if stamp := int(torch.randint(EMPTY_SHARE, (), generator=source)):
                state = (set[int](), stamp, _ways(probe_arguments))
                insert_bag(values[keys.name], values[bags[number].name], bag, row, state)


def _ways(arguments: Mapping[str, Value]) -> int:
    ways = arguments.get("ways", 32)
    return ways if isinstance(ways, int) else 32


def _pooled_bags(
    pool_arguments: Mapping[str, Value],
    number: int,
    operands: list[torch.Tensor],
    values: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    """Return the bags of one table of a pooling op, pooled from its rows without a cache."""
    weight, index, offset = operands
    kinds = pool_arguments.get("kinds")
    formats = [str(kind) for kind in kinds] if isinstance(kinds, tuple) else []
    scaled = [n for n, kind in enumerate(formats) if kind in SCALED]
    scales = _tensors(pool_arguments.get("scales"))
    table_scales = [values[scales[scaled.index(number)].name]] if number in scaled else []
    mode = pool_arguments.get("mode")
    (bags,) = tier_pool(
        tier_read([weight], [index]),
        [offset],
        mode=mode if isinstance(mode, int) else 0,
        include_last_offset=bool(pool_arguments.get("include_last_offset")),
        kinds=formats[number : number + 1],
        scales=table_scales,
    )
    return bags


def _fill_row_cache(
    weight: torch.Tensor,
    directory: torch.Tensor,
    cache: torch.Tensor,
    ways: int,
    source: torch.Generator,
) -> None:
    """Draw the rows of a table that are in a cache, each in its set, none twice."""
    sets, wide = sets_of(directory.shape[1], ways)
    directory[0], directory[1] = EMPTY, 0
    for slot in range(sets * wide):
        row = slot // wide + sets * (slot % wide)
        stamp = int(torch.randint(EMPTY_SHARE, (), generator=source))
        if row < len(weight) and stamp:
            directory[0, slot], directory[1, slot] = row, stamp
            cache[slot] = weight[row]


def _caches(graph: Graph) -> list[tuple[Tensor, Tensor, Tensor, int]]:
    """Return each table that is read through a cache, with its directory, slots and ways."""
    directories: dict[str, tuple[Tensor, int]] = {}
    weights: dict[str, Tensor] = {}
    caches: dict[str, Tensor] = {}
    for op in graph.leaves():
        if not op.name.startswith("irgraph.tier_"):
            continue
        arguments = arguments_of(op, graph.schemas)
        if op.base == "tier_probe" and op.outputs:
            ways = _ways(arguments)
            pairs = zip(op.outputs, _tensors(arguments.get("directories")), strict=False)
            directories.update((slot.name, (directory, ways)) for slot, directory in pairs)
        for name, tensor_by_slot in (("weights", weights), ("held", caches)):
            slot_pairs = zip(
                _tensors(arguments.get("slots")), _tensors(arguments.get(name)), strict=False
            )
            tensor_by_slot.update((slot.name, tensor) for slot, tensor in slot_pairs)
    complete = [slot for slot in directories if slot in weights and slot in caches]
    return [(weights[s], directories[s][0], caches[s], directories[s][1]) for s in complete]


def _tensors(value: Value) -> list[Tensor]:
    return [t for t in value if isinstance(t, Tensor)] if isinstance(value, tuple) else []
