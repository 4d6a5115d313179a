"""Parameters that are computed from others once, before any step: packed tables and weights.

A model lists them in its setting ``prepared``: by ``w_i4 = i4 rows of w : f32[1000, 64]; …``,
``%w_i4`` contains the rows of ``%w`` in the format ``i4``. The step itself may lack ``%w``. A
layer's weight may be a slice of one: ``q = i8 weight of w : f32[96, 32] rows 0 to 32; …``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod

from msgspec import Struct
from msgspec.structs import replace

from irgraph.diagnostics import fail
from irgraph.ir.dtypes import ITEMSIZE
from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.narrow.expanded import expanded_of
from irgraph.ir.narrow.list_settings import ListSetting, place_of
from irgraph.ir.narrow.ops import GROUP, LAYER_FORMATS, UNSCALED, round_up
from irgraph.ir.narrow.rows import FORMATS, columns_of
from irgraph.ir.tensor import MAX_TENSOR_BYTES, Tensor

PREPARED = "prepared"
"""Name of the setting."""

ROWS, SCALE, WEIGHT, SCALES = "rows", "scale", "weight", "scales"
"""Contents of a parameter: a table's rows, or the single scale of all its rows; a linear layer's
weight in ``i8``, f8, f16 or bf16, transposed and padded for its product, or the scale of each of
its outputs. In ``i4`` a weight is stored by outputs, two elements to a byte, with the scale and
zero of each group."""

WEIGHTS = tuple(dict.fromkeys(layer_format.weight for layer_format in LAYER_FORMATS.values()))
PARTS = {
    ROWS: tuple(FORMATS),
    SCALE: ("f8e4m3", "f8e5m2"),
    WEIGHT: WEIGHTS,
    SCALES: tuple(kind for kind in WEIGHTS if kind not in UNSCALED),
}

_SETTING = ListSetting(
    PREPARED,
    re.compile(
        r"(\w{1,500}) = (\w{1,10}) (\w{1,10}) of (\w{1,500}) : "
        r"(\w{1,10})\[(\d{1,15}), (\d{1,15})\](?: rows (\d{1,15}) to (\d{1,15}))?",
        re.ASCII,
    ),
    "w_i4 = i4 rows of w : f32[1000, 64]",
)


class Prepared(Struct, frozen=True):
    """One prepared parameter.

    Attributes:
        name: name of its tensor.
        format: a row format.
        part: ``rows``, ``scale``, ``weight`` or ``scales``.
        source: the tensor from which it is computed, f32 with two axes.
        span: the first row of the source that it uses, and the one after the last; all if empty.
    """

    name: str
    format: str
    part: str
    source: Tensor
    span: tuple[int, ...] = ()

    @property
    def rows(self) -> tuple[int, int]:
        """The first row of the source that it uses, and the one after the last."""
        first, last = self.span or (0, int(self.source.shape[0]))
        return first, last

    def __str__(self) -> str:
        """Return its item in the setting."""
        rows, columns = map(int, self.source.shape)
        source = f"{self.source.name} : {self.source.dtype}[{rows}, {columns}]"
        span = " rows {} to {}".format(*self.span) if self.span else ""
        return f"{self.name} = {self.format} {self.part} of {source}{span}"


@cached_per_graph
def prepared_of(graph: Graph) -> tuple[Prepared, ...]:
    """Return the prepared parameters of a model's setting.

    A source has the rows of its prepared table in the graph: tables may have been resized.

    Raises:
        IrgraphError: the setting cannot be read, or names a tensor that the model lacks.
    """
    declared = {d.tensor.name: d.tensor for d in graph.tensors}
    listed = [_parse_item(match, declared, graph) for match in _SETTING.read(graph)]
    rows = {item.source.name: declared[item.name].shape[0] for item in listed if item.part == ROWS}
    resized = [
        _with_rows(item, rows.get(item.source.name, item.source.shape[0])) for item in listed
    ]
    for item in resized:
        fits = _shape_of(item) == tuple(map(int, declared[item.name].shape))
        source = declared.get(item.source.name, item.source)
        if not fits or tuple(map(int, source.shape)) != tuple(map(int, item.source.shape)):
            raise fail(
                f"%{item.name} has another shape than {item.part} of it have: {item}",
                place_of(graph),
            )
    return tuple(resized)


def _with_rows(prepared: Prepared, rows: int) -> Prepared:
    return replace(
        prepared, source=replace(prepared.source, shape=(rows, prepared.source.shape[1]))
    )


def _shape_of(prepared: Prepared) -> tuple[int, ...]:
    """Return the shape of a prepared parameter."""
    rows, columns = map(int, prepared.source.shape)
    if prepared.part == ROWS:
        return rows, columns_of(prepared.format, columns)
    if prepared.part == SCALE:
        return (1,)
    first, last = prepared.rows
    return layer_shapes(prepared.format, last - first, columns)[prepared.part == SCALES]


def layer_shapes(kind: str, outputs: int, inputs: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of a layer's prepared weight and of its scales."""
    layer_format = LAYER_FORMATS[kind]
    depth, width = (
        round_up(inputs, layer_format.depth_step),
        round_up(outputs, layer_format.output_step),
    )
    if kind == "i4":
        return (width, depth // 2), (depth // GROUP, width, 2)
    return (depth, width), (int(outputs),)


def _parse_item(match: re.Match[str], declared: Mapping[str, Tensor], graph: Graph) -> Prepared:
    name, kind, part, source, dtype, rows, columns, *limits = match.groups()
    if kind not in PARTS.get(part, ()) or dtype != "f32":
        raise _SETTING.unread(match[0], graph)
    shape, problem = (int(rows), int(columns)), ""
    span = tuple(map(int, limits)) if limits[0] else ()
    if name not in declared:
        problem = f"%{name} is prepared, and the model lacks it"
    elif prod(shape) * ITEMSIZE[dtype] > MAX_TENSOR_BYTES:
        problem = f"%{source} would take more than 1 PiB"
    elif part == ROWS and shape[1] % FORMATS[kind].elements_per_byte:
        problem = f"a row of {shape[1]} elements does not fill bytes in {kind}"
    elif span and (part not in (WEIGHT, SCALES) or not span[0] < span[1] <= shape[0]):
        problem = f"%{name} cannot be made of rows {span[0]} to {span[1]} of %{source}"
    if problem:
        raise fail(problem, place_of(graph))
    return Prepared(name, kind, part, Tensor(source, dtype, shape, source), span)


def sources_of(graph: Graph) -> dict[str, Tensor]:
    """Return the sources of prepared parameters and expanded tables, by name."""
    sources = {prepared.source.name: prepared.source for prepared in prepared_of(graph)}
    for expanded in expanded_of(graph):
        sources |= {expanded.table.name: expanded.table, expanded.mapping.name: expanded.mapping}
    return sources


def with_prepared(graph: Graph, items: Iterable[Prepared]) -> Graph:
    """Return a graph whose setting also lists these parameters."""
    return _SETTING.write(graph, (*prepared_of(graph), *items))
