"""Anonymises models: names of tensors, modules, labels, files and annotations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any

from msgspec.structs import replace

from irgraph.anonymise.renaming import Anonymiser, number
from irgraph.ir.dim import Dim, normal
from irgraph.ir.graph import OPERANDS, Declared, Graph
from irgraph.ir.measured_times import CARD
from irgraph.ir.narrow.expanded import EXPANDED, ExpandedTable, expanded_of
from irgraph.ir.narrow.prepared import PREPARED, prepared_of
from irgraph.ir.op import Note, Op, Value
from irgraph.ir.quantity import Quantity
from irgraph.ir.ranks import FABRIC, RANKS
from irgraph.ir.resize import BETWEEN, FIXED, FIXED_AT
from irgraph.ir.tensor import DeviceRef, DType, Tensor
from irgraph.ir.tf32 import CONVOLUTIONS, PRODUCTS
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


def anonymous_graph(graph: Graph, anonymiser: Anonymiser | None = None) -> Graph:
    """Return a graph with pseudonyms; shapes, sizes, times and torch's ops are unchanged.

    Operators outside public libraries are renamed as well; no cost model depends on their names.
    """
    return _GraphRenamer(graph, anonymiser or Anonymiser()).graph()


class _GraphRenamer:
    def __init__(self, graph: Graph, anonymiser: Anonymiser) -> None:
        self.source = graph
        self.anonymiser = anonymiser
        self.tensors: dict[str, str] = {}
        self.buffers: dict[str, str] = {}
        self.renamed_tensors: dict[str, Tensor] = {}
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
            schemas=tuple(map(self.anonymiser.schema, graph.schemas)),
            devices=tuple(
                replace(d, name=self.queue(d.name), sheet=self.anonymiser.card(d.sheet))
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
        """Return the settings of the capture that are known to be harmless."""
        settings = self.source.settings
        result: dict[str, Value] = {}
        for key in ("trace_version", "torch"):
            version = _VERSION.match(str(settings.get(key, "")))
            if version:
                result[key] = version[0]
        for key in ("captured_on", CARD, FABRIC):
            if key in settings:
                text = str(settings[key])
                is_harmless = _QUEUES.fullmatch(text) or self.anonymiser.text(text) == text
                result[key] = text if is_harmless else self.anonymiser.card(text)
        if _SIZE.fullmatch(str(settings.get(RANKS, ""))):
            result[RANKS] = settings[RANKS]
        if OPERANDS in settings:
            result[OPERANDS] = "as recorded"
        for key in ("pinned", PRODUCTS, CONVOLUTIONS):
            if isinstance(settings.get(key), bool):
                result[key] = settings[key]
        if PREPARED in settings:
            result[PREPARED] = self.prepared()
        if EXPANDED in settings:
            result[EXPANDED] = self.expanded()
        laws = self.lookups(str(settings.get("indices", "")))
        return {**result, **({"indices": laws} if laws else {}), **self.fixed()}

    def prepared(self) -> str:
        """Return the prepared parameters with their sources, under the new names.

        A source may be missing from the model.
        """
        descriptions = []
        for parameter in prepared_of(self.source):
            name = self.tensors[parameter.name]
            source = replace(parameter.source, name=self.tensor(parameter.source).name)
            descriptions.append(str(replace(parameter, name=name, source=source)))
        return "; ".join(descriptions)

    def expanded(self) -> str:
        """Return the expanded tables with their sources, under the new names."""
        descriptions = []
        for expanded in expanded_of(self.source):
            table, mapping = (
                replace(t, name=self.tensor(t).name) for t in (expanded.table, expanded.mapping)
            )
            descriptions.append(str(ExpandedTable(self.tensors[expanded.name], table, mapping)))
        return "; ".join(descriptions)

    def lookups(self, text: str) -> str:
        """Return the distributions of the tables' lookups, under their new names."""
        labels = {d.label or d.tensor.name: d for d in self.source.tensors}
        rules = []
        for rule in text.split(";"):
            tables, sign, law = rule.strip().rpartition("=")
            if not _LAW.fullmatch(law.strip()):
                continue
            if not sign or tables == "*":
                rules.append(law.strip())
                continue
            matches = (d for name, d in labels.items() if fnmatch(name, tables))
            renamed = map(self.declared, matches)
            rules += [f"{d.label or d.tensor.name}={law.strip()}" for d in renamed]
        return "; ".join(rules)

    def fixed(self) -> dict[str, Value]:
        """Return the notes on sizes that do not depend on a dimension, without names of ops."""
        result: dict[str, Value] = {}
        for dim, name in self.dims.items():
            notes = self.source.settings.get(f"{FIXED}_{dim}")
            if isinstance(notes, str):
                result[f"{FIXED}_{name}"] = BETWEEN.join(
                    map(_fixed_size_note, notes.split(BETWEEN))
                )
                size = self.source.settings.get(f"{FIXED_AT}_{dim}")
                result |= {f"{FIXED_AT}_{name}": size} if type(size) is int else {}
        return result

    def dim(self, name: str) -> str:
        """Return the new name of a dimension; common letters are unchanged."""
        return name if name in _DIMS else self.anonymiser.pseudonym(name, "dim")

    def queue(self, name: str) -> str:
        """Return the new name of a device, stream or thread."""
        is_public = not name or _QUEUES.fullmatch(name)
        return name if is_public else self.anonymiser.pseudonym(name, "queue")

    def declared(self, declared: Declared) -> Declared:
        """Return a declared tensor under its new name."""
        label = self.anonymiser.pseudonym(declared.label) if declared.label else ""
        value = None if declared.value is None else tuple(map(number, declared.value))
        return Declared(declared.role, self.tensor(declared.tensor), label, value)

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor under its new name."""
        if tensor.name not in self.renamed_tensors:
            strides = tensor.strides
            self.renamed_tensors[tensor.name] = replace(
                tensor,
                name=self.tensors.setdefault(tensor.name, f"t{len(self.tensors) + 1}"),
                shape=tuple(map(self.size, tensor.shape)),
                strides=None if strides is None else tuple(map(self.size, strides)),
                offset=self.size(tensor.offset),
                buffer=self.buffers.setdefault(tensor.buffer, f"b{len(self.buffers) + 1}"),
                device=self.queue(tensor.device),
            )
        return self.renamed_tensors[tensor.name]

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
            return DType(self.anonymiser.text(value))
        if isinstance(value, str):
            return value if read_lists(value) else self.anonymiser.text(value)
        return self.size(value) if isinstance(value, Dim) else value

    def op(self, op: Op) -> Op:
        """Return an op and its inner ops, renamed."""
        attributes = {self.anonymiser.argument(k): self.value(v) for k, v in op.attributes.items()}
        label = self.anonymiser.name if op.is_annotation else self.anonymiser.operator
        mark, _, index = op.origin.rpartition("#")
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
            module=self.anonymiser.pseudonym(op.module) if op.module else "",
            notes=self.notes(op.notes),
            origin=f"trace#{index}" if mark and re.fullmatch(r"[0-9]{1,18}", index) else "",
        )

    def notes(self, notes: Mapping[str, Note]) -> Mapping[str, Note]:
        """Return the notes that predictions read."""
        return {key: self.note(notes[key]) for key in _NOTES if key in notes}

    def note(self, note: Note) -> Note:
        """Return a note's number, or its word, as a pseudonym if it is not public."""
        if isinstance(note, Quantity):
            return note if note.unit in _UNITS else replace(note, unit="")
        return self.anonymiser.text(note) if isinstance(note, str) else note


def _fixed_size_note(note: str) -> str:
    match = re.search(r": (\d{1,18}) is not linear in the batch size$", note, re.ASCII)
    if match is None:
        return "a value depends on the batch size"
    return f"an op: {match[1]} is not linear in the batch size"
