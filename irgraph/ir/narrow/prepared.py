"""Parameters that are made of others once, before any step: packed tables and weights.

A model names them in its setting ``prepared``: ``w_i4 = i4 rows of w : f32[1000, 64]; …`` says
that ``%w_i4`` holds the rows of ``%w`` in the format ``i4``. The step itself may lack ``%w``. A
layer's weight may be a part of one: ``q = i8 weight of w : f32[96, 32] rows 0 to 32; …``.
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
from irgraph.ir.narrow.ops import GROUP, LAYER_FORMATS, UNSCALED, filled
from irgraph.ir.narrow.rows import FORMATS, columns_of
from irgraph.ir.tensor import LARGEST, Tensor

PREPARED = "prepared"
"""The setting's name."""

ROWS, SCALE, WEIGHT, SCALES = "rows", "scale", "weight", "scales"
"""What a parameter holds: a table's rows, the one scale of all of them; a linear layer's weight in
``i8``, f8, f16 or bf16, transposed and filled up as its product takes it, and the scale of each of
its outputs; in ``i4`` a weight by outputs, two to a byte, the scale and zero of each group."""

WEIGHTS = tuple(dict.fromkeys(known.weight for known in LAYER_FORMATS.values()))
PARTS = {
    ROWS: tuple(FORMATS),
    SCALE: ("f8e4m3", "f8e5m2"),
    WEIGHT: WEIGHTS,
    SCALES: tuple(kind for kind in WEIGHTS if kind not in UNSCALED),
}

_LISTED = ListSetting(
    PREPARED,
    re.compile(
        r"(\w{1,500}) = (\w{1,10}) (\w{1,10}) of (\w{1,500}) : "
        r"(\w{1,10})\[(\d{1,15}), (\d{1,15})\](?: rows (\d{1,15}) to (\d{1,15}))?",
        re.ASCII,
    ),
    "w_i4 = i4 rows of w : f32[1000, 64]",
)


class Prepared(Struct, frozen=True):
    """One parameter that is prepared.

    Attributes:
        name: of its tensor.
        format: a row format.
        part: ``rows``, ``scale``, ``weight`` or ``scales``.
        source: the tensor that it is made of, f32 with two axes.
        span: the first of the rows that it is made of, and the one after the last; all if empty.
    """

    name: str
    format: str
    part: str
    source: Tensor
    span: tuple[int, ...] = ()

    @property
    def rows(self) -> tuple[int, int]:
        """The first row of the source that it is made of, and the one after the last."""
        first, last = self.span or (0, int(self.source.shape[0]))
        return first, last

    def __str__(self) -> str:
        """Return how the setting names it."""
        rows, columns = map(int, self.source.shape)
        made = f"{self.source.name} : {self.source.dtype}[{rows}, {columns}]"
        some = " rows {} to {}".format(*self.span) if self.span else ""
        return f"{self.name} = {self.format} {self.part} of {made}{some}"


@cached_per_graph
def prepared_of(graph: Graph) -> tuple[Prepared, ...]:
    """Return what a model says is prepared.

    Rows of a source are those that its prepared table has now: tables may have been resized.

    Raises:
        IrgraphError: the setting cannot be read, or names a tensor that the model lacks.
    """
    declared = {d.tensor.name: d.tensor for d in graph.tensors}
    found = [_item(match, declared, graph) for match in _LISTED.read(graph)]
    rows = {one.source.name: declared[one.name].shape[0] for one in found if one.part == ROWS}
    whole = [_resized(one, rows.get(one.source.name, one.source.shape[0])) for one in found]
    for one in whole:
        fits = _shape_of(one) == tuple(map(int, declared[one.name].shape))
        other = declared.get(one.source.name, one.source)
        if not fits or tuple(map(int, other.shape)) != tuple(map(int, one.source.shape)):
            raise fail(
                f"%{one.name} has another shape than {one.part} of it have: {one}", place_of(graph)
            )
    return tuple(whole)


def _resized(one: Prepared, rows: int) -> Prepared:
    return replace(one, source=replace(one.source, shape=(rows, one.source.shape[1])))


def _shape_of(one: Prepared) -> tuple[int, ...]:
    """Return the shape that a prepared parameter has."""
    rows, columns = map(int, one.source.shape)
    if one.part == ROWS:
        return rows, columns_of(one.format, columns)
    if one.part == SCALE:
        return (1,)
    first, last = one.rows
    return layer_shapes(one.format, last - first, columns)[one.part == SCALES]


def layer_shapes(kind: str, outputs: int, inputs: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of a layer's prepared weight and of its scales."""
    known = LAYER_FORMATS[kind]
    deep, wide = filled(inputs, known.deep), filled(outputs, known.wide)
    if kind == "i4":
        return (wide, deep // 2), (deep // GROUP, wide, 2)
    return (deep, wide), (int(outputs),)


def _item(match: re.Match[str], declared: Mapping[str, Tensor], graph: Graph) -> Prepared:
    name, kind, part, source, dtype, rows, columns, *some = match.groups()
    if kind not in PARTS.get(part, ()) or dtype != "f32":
        raise _LISTED.unread(match[0], graph)
    shape, wrong = (int(rows), int(columns)), ""
    span = tuple(map(int, some)) if some[0] else ()
    if name not in declared:
        wrong = f"%{name} is prepared, and the model lacks it"
    elif prod(shape) * ITEMSIZE[dtype] > LARGEST:
        wrong = f"%{source} would take more than 1 PiB"
    elif part == ROWS and shape[1] % FORMATS[kind].each:
        wrong = f"a row of {shape[1]} elements does not fill bytes in {kind}"
    elif span and (part not in (WEIGHT, SCALES) or not span[0] < span[1] <= shape[0]):
        wrong = f"%{name} cannot be made of rows {span[0]} to {span[1]} of %{source}"
    if wrong:
        raise fail(wrong, place_of(graph))
    return Prepared(name, kind, part, Tensor(source, dtype, shape, source), span)


def sources_of(graph: Graph) -> dict[str, Tensor]:
    """Return by name the tensors that something is prepared, or expanded, from."""
    found = {one.source.name: one.source for one in prepared_of(graph)}
    for whole in expanded_of(graph):
        found |= {whole.table.name: whole.table, whole.mapping.name: whole.mapping}
    return found


def with_prepared(graph: Graph, items: Iterable[Prepared]) -> Graph:
    """Return a graph that names these parameters as prepared, too."""
    return _LISTED.write(graph, (*prepared_of(graph), *items))
