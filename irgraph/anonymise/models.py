"""A model without the names of its program: tensors, modules, labels, files and annotations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from irgraph.anonymise.traces import Anonymiser
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.op import Op
from irgraph.ir.resize import FIXED
from irgraph.ir.tensor import Tensor

_SETTINGS = ("trace_version", "torch", "captured_on", "ranks", "fabric")


def anonymous(graph: Graph, renamed: Anonymiser | None = None) -> Graph:
    """Return the same graph under other names; shapes, dims, times and torch's ops stay.

    Names of operators outside torch's libraries stay, too: they stand for what the op does. They
    are hashed where ``renamed`` has a key.
    """
    return _Renaming(graph, renamed or Anonymiser()).graph()


class _Renaming:
    def __init__(self, graph: Graph, renamed: Anonymiser) -> None:
        self.source = graph
        self.renamed = renamed
        self.tensors: dict[str, str] = {}

    def graph(self) -> Graph:
        """Return the renamed graph."""
        graph = self.source
        tensors = tuple(
            Declared(d.role, self.tensor(d.tensor), self.renamed.name(d.label) if d.label else "")
            for d in graph.tensors
        )
        settings = {key: graph.settings[key] for key in _SETTINGS if key in graph.settings}
        settings |= {
            key: re.sub(r"[^;()]+ \([^()]*\)", " an op", str(value)).strip()
            for key, value in graph.settings.items()
            if key.startswith(f"{FIXED}_")
        }
        ops = tuple(map(self.op, graph.ops))
        schemas = tuple(map(self.schema, graph.schemas))
        return replace(
            graph, name="model", settings=settings, tensors=tensors, ops=ops, schemas=schemas,
            source="", returned=self.value(graph.returned),
        )  # fmt: skip

    def schema(self, text: str) -> str:
        """Return a declared schema under the new name of its operator."""
        found = re.match(r"(\w+)::(\w+)", text)
        if found is None:
            return text
        name = self.renamed.operator(f"{found.group(1)}.{found.group(2)}")
        return name.replace(".", "::", 1) + text[found.end() :]

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor under its new name."""
        number = len(self.tensors) + 1
        return replace(tensor, name=self.tensors.setdefault(tensor.name, f"t{number}"))

    def value(self, value: Any) -> Any:  # noqa: ANN401
        """Return an operand, attribute or result with its tensors renamed."""
        if isinstance(value, Tensor):
            return self.tensor(value)
        return tuple(map(self.value, value)) if isinstance(value, tuple) else value

    def op(self, op: Op) -> Op:
        """Return an op with all below it renamed."""
        attributes: Mapping[str, Any] = {k: self.value(v) for k, v in op.attributes.items()}
        label = self.renamed.name if op.is_annotation else self.renamed.operator
        file, mark, number = op.origin.rpartition("#")
        return replace(
            op,
            name=label(op.name),
            operands=self.value(op.operands),
            results=self.value(op.results),
            attributes=attributes,
            written=frozenset(self.tensors[name] for name in op.written),
            body=tuple(map(self.op, op.body)),
            module=self.renamed.name(op.module) if op.module else "",
            origin=f"trace#{number}" if mark and file else "",
        )
