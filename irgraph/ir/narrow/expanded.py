"""Tables whose pruned rows are restored when they are loaded, before any step.

A pruned table has a subset of rows, and a mapping has for each index the position of its row, -1
for none. A model with the setting ``expanded`` of ``w_whole = w by map : u8[20, 16], i32[50]`` has
a table ``%w_whole`` of 50 rows instead: the rows of ``%w`` for mapped indices, zeros (which
represent rows of zeros in every packed format) for others. The step lacks ``%w`` and ``%map``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from irgraph.diagnostics import fail
from irgraph.ir.dtypes import ITEMSIZE
from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.narrow.list_settings import ListSetting, place_of
from irgraph.ir.tensor import MAX_TENSOR_BYTES, Tensor

EXPANDED = "expanded"
"""Name of the setting."""

_SETTING = ListSetting(
    EXPANDED,
    re.compile(
        r"(\w{1,500}) = (\w{1,500}) by (\w{1,500}) : "
        r"(\w{1,10})\[(\d{1,15}), (\d{1,15})\], i32\[(\d{1,15})\]",
        re.ASCII,
    ),
    "w_whole = w by map : u8[20, 16], i32[50]",
)


class ExpandedTable(Struct, frozen=True):
    """One expanded table.

    Attributes:
        name: name of its tensor.
        table: the pruned table [retained rows, columns].
        mapping: i32 [rows], the retained row of each index or -1.
    """

    name: str
    table: Tensor
    mapping: Tensor

    def __str__(self) -> str:
        """Return its item in the setting."""
        rows, columns = map(int, self.table.shape)
        shapes = f"{self.table.dtype}[{rows}, {columns}], i32[{int(self.mapping.shape[0])}]"
        return f"{self.name} = {self.table.name} by {self.mapping.name} : {shapes}"


@cached_per_graph
def expanded_of(graph: Graph) -> tuple[ExpandedTable, ...]:
    """Return the expanded tables of a model's setting.

    Raises:
        IrgraphError: the setting cannot be read, or names a table that the model lacks or has in
            another shape.
    """
    declared = {d.tensor.name: d.tensor for d in graph.tensors}
    expanded = []
    for match in _SETTING.read(graph):
        item = _parse_item(match, graph)
        table = declared.get(item.name)
        shape = (item.mapping.shape[0], item.table.shape[1])
        if table is None or tuple(map(int, table.shape)) != shape:
            message = f"%{item.name} is expanded to {list(shape)}, and the model has no such table"
            raise fail(message, place_of(graph))
        if table.dtype != item.table.dtype:
            message = f"%{item.name} is {table.dtype}, and expanded from {item.table.dtype}"
            raise fail(message, place_of(graph))
        expanded.append(item)
    return tuple(expanded)


def _parse_item(match: re.Match[str], graph: Graph) -> ExpandedTable:
    name, source, mapping, dtype = match.groups()[:4]
    rows, columns, count = map(int, match.groups()[4:])
    max_elements = max(rows, count) * max(columns, 4)
    if dtype not in ITEMSIZE or max_elements * ITEMSIZE[dtype] > MAX_TENSOR_BYTES:
        raise _SETTING.unread(match[0], graph)
    table = Tensor(source, dtype, (rows, columns), source)
    return ExpandedTable(name, table, Tensor(mapping, "i32", (count,), mapping))


def with_expanded(graph: Graph, items: Iterable[ExpandedTable]) -> Graph:
    """Return a graph whose setting also lists these tables."""
    return _SETTING.write(graph, (*expanded_of(graph), *items))
