"""A model without the names of its program: tensors, modules, labels, files and annotations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any

from msgspec.structs import replace

from irgraph.anonymise.renaming import Anonymiser, number
from irgraph.ir.dim import Dim, normal
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.measured import CARD
from irgraph.ir.narrow.expanded import EXPANDED, ExpandedTable, expanded_of
from irgraph.ir.narrow.prepared import PREPARED, prepared_of
from irgraph.ir.op import Note, Op, Value
from irgraph.ir.quantity import Quantity
from irgraph.ir.ranks import FABRIC, RANKS
from irgraph.ir.resize import BETWEEN, FIXED, FIXED_AT
from irgraph.ir.tensor import DeviceRef, DType, Tensor
from irgraph.ir.tf32 import CONVOLUTIONS, PRODUCTS
from irgraph.ir.verify import OPERANDS
from irgraph.tiers.bags import read_lists

_VERSION = re.compile(r"\d{1,3}(?:\.\d{1,3}){0,3}(?:-chakra(?:\.\d{1,3}){0,3})?", re.ASCII)
_SIZE = re.compile(r"\d{1,6}(?:x\d{1,6})?", re.ASCII)
_LAW = re.compile(
    r"(?:(?:uniform|zipf:N(?:,N)?(?:\+N){0,20})(?: bags (?:B))?|bags (?:B))".replace(
        "B", "equal|poisson|normal:N,N|lognormal:N"
    ).replace("N", r"[\d.e-]{1,12}"),
    re.ASCII,
)
_DIMS = frozenset(("B", "N", "L", "S", "T", "H", "batch", "seq"))
_QUEUES = re.compile(
    r"main|backward|(?:gpu|thread|stream)\d{0,4}|cpu|copy|comm|io\d{0,4}", re.ASCII
)
_UNITS = ("us", "ms", "s", "ns", "B", "KiB", "MiB", "GiB", "%", "")
_NOTES = ("time", "by", "kernels")


def anonymous(graph: Graph, renamed: Anonymiser | None = None) -> Graph:
    """Return the same graph under other names; shapes, sizes, times and torch's ops stay.

    Operators outside public libraries get other names, too; no cost model knows them by name.
    """
    return _Renaming(graph, renamed or Anonymiser()).graph()


class _Renaming:
    def __init__(self, graph: Graph, renamed: Anonymiser) -> None:
        self.source = graph
        self.renamed = renamed
        self.tensors: dict[str, str] = {}
        self.buffers: dict[str, str] = {}
        self.known: dict[str, Tensor] = {}
        self.dims = {dim: self.dim(dim) for dim in graph.dims}

    def graph(self) -> Graph:
        """Return the renamed graph."""
        graph = self.source
        tensors = tuple(map(self.declared, graph.tensors))
        ops = tuple(map(self.op, graph.ops))
        return replace(
            graph,
            name="model",
            dims={self.dims[dim]: int(size) for dim, size in graph.dims.items()},
            settings=self.settings(),
            schemas=tuple(map(self.renamed.schema, graph.schemas)),
            devices=tuple(
                replace(d, name=self.queue(d.name), sheet=self.renamed.card(d.sheet))
                for d in graph.devices
            ),
            streams=tuple(
                replace(s, name=self.queue(s.name), device=self.queue(s.device))
                for s in graph.streams
            ),
            tensors=tensors,
            ops=ops,
            source="",
            returned=self.value(graph.returned),
        )

    def settings(self) -> dict[str, Value]:
        """Return what is known to be harmless of the facts about the capture."""
        given = self.source.settings
        found: dict[str, Value] = {}
        for key in ("trace_version", "torch"):
            version = _VERSION.match(str(given.get(key, "")))
            if version:
                found[key] = version[0]
        for key in ("captured_on", CARD, FABRIC):
            if key in given:
                said = str(given[key])
                plain = _QUEUES.fullmatch(said) or self.renamed.text(said) == said
                found[key] = said if plain else self.renamed.card(said)
        if _SIZE.fullmatch(str(given.get(RANKS, ""))):
            found[RANKS] = given[RANKS]
        if OPERANDS in given:
            found[OPERANDS] = "as recorded"
        for key in ("pinned", PRODUCTS, CONVOLUTIONS):
            if isinstance(given.get(key), bool):
                found[key] = given[key]
        if PREPARED in given:
            found[PREPARED] = self.prepared()
        if EXPANDED in given:
            found[EXPANDED] = self.expanded()
        laws = self.lookups(str(given.get("indices", "")))
        return {**found, **({"indices": laws} if laws else {}), **self.fixed()}

    def prepared(self) -> str:
        """Return what is prepared of what, under the new names; the model may lack the latter."""
        made = []
        for one in prepared_of(self.source):
            name = self.tensors[one.name]
            source = replace(one.source, name=self.tensor(one.source).name)
            made.append(str(replace(one, name=name, source=source)))
        return "; ".join(made)

    def expanded(self) -> str:
        """Return which tables are expanded from which, under the new names."""
        made = []
        for one in expanded_of(self.source):
            table, mapping = (
                replace(t, name=self.tensor(t).name) for t in (one.table, one.mapping)
            )
            made.append(str(ExpandedTable(self.tensors[one.name], table, mapping)))
        return "; ".join(made)

    def lookups(self, text: str) -> str:
        """Return what the model says of its tables' lookups, under their new names."""
        labels = {d.label or d.tensor.name: d for d in self.source.tensors}
        rules = []
        for part in text.split(";"):
            tables, sign, law = part.strip().rpartition("=")
            if not _LAW.fullmatch(law.strip()):
                continue
            if not sign or tables == "*":
                rules.append(law.strip())
                continue
            found = (d for name, d in labels.items() if fnmatch(name, tables))
            new = map(self.declared, found)
            rules += [f"{d.label or d.tensor.name}={law.strip()}" for d in new]
        return "; ".join(rules)

    def fixed(self) -> dict[str, Value]:
        """Return which sizes do not follow a dimension, without the names of their ops."""
        found: dict[str, Value] = {}
        for dim, name in self.dims.items():
            notes = self.source.settings.get(f"{FIXED}_{dim}")
            if isinstance(notes, str):
                found[f"{FIXED}_{name}"] = BETWEEN.join(map(_fixed, notes.split(BETWEEN)))
                at = self.source.settings.get(f"{FIXED_AT}_{dim}")
                found |= {f"{FIXED_AT}_{name}": at} if type(at) is int else {}
        return found

    def dim(self, name: str) -> str:
        """Return the new name of a dimension; the usual letters stay."""
        return name if name in _DIMS else self.renamed.stand_in(name, "dim")

    def queue(self, name: str) -> str:
        """Return the new name of a device, stream or thread."""
        usual = not name or _QUEUES.fullmatch(name)
        return name if usual else self.renamed.stand_in(name, "queue")

    def declared(self, given: Declared) -> Declared:
        """Return a tensor from before the step under its new name."""
        label = self.renamed.stand_in(given.label) if given.label else ""
        value = None if given.value is None else tuple(map(number, given.value))
        return Declared(given.role, self.tensor(given.tensor), label, value)

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor under its new name."""
        if tensor.name not in self.known:
            strides = tensor.strides
            self.known[tensor.name] = replace(
                tensor,
                name=self.tensors.setdefault(tensor.name, f"t{len(self.tensors) + 1}"),
                shape=tuple(map(self.size, tensor.shape)),
                strides=None if strides is None else tuple(map(self.size, strides)),
                offset=self.size(tensor.offset),
                buffer=self.buffers.setdefault(tensor.buffer, f"b{len(self.buffers) + 1}"),
                device=self.queue(tensor.device),
            )
        return self.known[tensor.name]

    def size(self, size: int) -> int:
        """Return a size over the new names of dimensions."""
        if not isinstance(size, Dim):
            return size
        terms = [(tuple(self.dims[name] for name in names), n) for names, n in size.terms]
        return Dim(int(size), normal(terms))

    def value(self, value: Any) -> Any:  # noqa: ANN401
        """Return an operand, attribute or result with its tensors and texts renamed."""
        if isinstance(value, Tensor):
            return self.tensor(value)
        if isinstance(value, tuple):
            return tuple(map(self.value, value))
        if isinstance(value, DeviceRef):
            return DeviceRef(self.queue(value))
        if isinstance(value, DType):
            return DType(self.renamed.text(value))
        if isinstance(value, str):
            return value if read_lists(value) else self.renamed.text(value)
        return self.size(value) if isinstance(value, Dim) else value

    def op(self, op: Op) -> Op:
        """Return an op with all below it renamed."""
        attributes = {self.renamed.argument(k): self.value(v) for k, v in op.attributes.items()}
        label = self.renamed.name if op.is_annotation else self.renamed.operator
        mark, _, place = op.origin.rpartition("#")
        return replace(
            op,
            name=label(op.name),
            operands=self.value(op.operands),
            results=self.value(op.results),
            attributes=attributes,
            written=frozenset(self.tensors[name] for name in op.written),
            body=tuple(map(self.op, op.body)),
            thread=self.queue(op.thread),
            stream=self.queue(op.stream),
            module=self.renamed.stand_in(op.module) if op.module else "",
            notes=self.notes(op.notes),
            origin=f"trace#{place}" if mark and re.fullmatch(r"[0-9]{1,18}", place) else "",
        )

    def notes(self, notes: Mapping[str, Note]) -> Mapping[str, Note]:
        """Return the notes that predictions read."""
        return {key: self.note(notes[key]) for key in _NOTES if key in notes}

    def note(self, note: Note) -> Note:
        """Return a note's number, or its word where that is a usual one."""
        if isinstance(note, Quantity):
            return note if note.unit in _UNITS else replace(note, unit="")
        return self.renamed.text(note) if isinstance(note, str) else note


def _fixed(note: str) -> str:
    found = re.search(r": (\d{1,18}) is not linear in the batch size$", note, re.ASCII)
    if found is None:
        return "a value depends on the batch size"
    return f"an op: {found[1]} is not linear in the batch size"
