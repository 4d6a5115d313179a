"""Layouts of a rank's tensors: their relation to tensors of the unsharded step, by a setting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from irgraph.diagnostics import fail
from irgraph.ir.graph import Graph

PARTS, BATCH = "parts", "batch"
"""Settings of a rank's model: the layouts of its tensors, and the dimension of the batch."""

SAMPLES, LAYERS, REPLICAS = "data", "tensor", "replicas"
"""Process groups of a mesh: ranks that share samples and parameters, ranks that share linear
layers, and ranks with other samples and the same parts of parameters."""

Kind: TypeAlias = Literal["split", "piece", "mean", "sum"]

_ITEM = re.compile(
    r"(\S+) (?:(split) (\d{1,2})|(mean|sum)|rows (\d+):(\d+) columns (\d+):(\d+))(?: over (\S+))?",
    re.ASCII,
)


class TensorLayout(Struct, frozen=True):
    """One tensor: ``split`` along an axis, a ``piece`` of a matrix, or part of a ``mean``, ``sum``.

    Attributes:
        rows: rows of a piece, first and one past the last; for a split, its axis and the next.
        columns: columns of a piece, first and one past the last.
        over: the process group whose ranks have the parts, ``""`` for all ranks.
    """

    name: str
    kind: Kind
    rows: tuple[int, int] = (0, 0)
    columns: tuple[int, int] = (0, 0)
    over: str = ""

    def __str__(self) -> str:
        """Return the text of the layout in the setting."""
        return self._local_text() + (f" over {self.over}" if self.over else "")

    def _local_text(self) -> str:
        if self.kind == "split":
            return f"{self.name} split {self.rows[0]}"
        if self.kind == "piece":
            (first_row, end_row), (first_column, end_column) = self.rows, self.columns
            return f"{self.name} rows {first_row}:{end_row} columns {first_column}:{end_column}"
        return f"{self.name} {self.kind}"


def layout_text(layouts: Sequence[TensorLayout]) -> str:
    """Return the setting ``parts``."""
    return "; ".join(map(str, layouts))


def layouts_of(graph: Graph) -> dict[str, tuple[TensorLayout, ...]]:
    """Return the layouts of tensors that differ by rank; raises ``IrgraphError`` (exit code 2).

    On a mesh a tensor may be split several times: each layout is of a part by the ones before.
    """
    text = graph.settings.get(PARTS, "")
    layouts: dict[str, tuple[TensorLayout, ...]] = {}
    for layout in (_parse_layout(item) for item in str(text).split("; ") if item):
        layouts[layout.name] = (*layouts.get(layout.name, ()), layout)
    return layouts


def _parse_layout(item: str) -> TensorLayout:
    match = _ITEM.fullmatch(item)
    if match is None:
        hint = "such as: x split 0; loss mean; table rows 0:100 columns 0:64"
        raise fail(f"parts: cannot read {item!r}", hint=hint, exit_code=2)
    name, split, axis, kind, *numbers, over = match.groups(default="")
    if split:
        return TensorLayout(name, "split", (int(axis), int(axis) + 1), over=over)
    if kind:
        return TensorLayout(name, "mean" if kind == "mean" else "sum", over=over)
    first_row, end_row, first_column, end_column = map(int, numbers)
    return TensorLayout(name, "piece", (first_row, end_row), (first_column, end_column), over)
