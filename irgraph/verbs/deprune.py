"""``deprune``: pruned tables are expanded when they are loaded, and lookups need no mapping.

A lookup in a pruned table reads the mapping for each index, and then the row. An expanded table has
a row for every index (zeros for pruned rows), so that lookups read it directly, can be placed on a
tier, and the mapping needs no memory of the device; the table needs more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.edit import Edit, free_name, names_of
from irgraph.ir.effects import written_by
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.narrow.expanded import ExpandedTable, with_expanded
from irgraph.ir.narrow.ops import FORMAT_OF
from irgraph.ir.op import Op, Value
from irgraph.ir.schema import arguments_of
from irgraph.ir.tensor import Tensor
from irgraph.verbs.refusal import RefusedError, op_refusal

PRUNED, MAPPING = "pruned_weights", "compressed_indices_mapping"
"""Arguments of lookups in pruned tables."""


class DepruneResult(Struct, frozen=True):
    """Result of ``deprune``: the graph, the new lookups, and the bytes that parameters grow by.

    ``freed_bytes`` are the bytes of mappings that are no longer needed.
    """

    graph: Graph
    ops: tuple[Op, ...]
    added_bytes: int
    freed_bytes: int


def check_deprune(graph: Graph, op: Op) -> tuple[Declared, Declared]:
    """Return the pruned table of a lookup and its mapping; refuse other ops, and odd tables.

    Raises:
        RefusedError: the op looks up no pruned table, or something else uses table or mapping.
    """
    arguments = arguments_of(op, graph.schemas)
    weight, mapping = arguments.get("weight"), arguments.get(MAPPING)
    if op.name not in FORMAT_OF or not isinstance(weight, Tensor):
        raise op_refusal(op, "looks up no table in packed rows")
    if not isinstance(mapping, Tensor) or not arguments.get(PRUNED):
        raise op_refusal(op, "looks up a table that is not pruned")
    if mapping.rank != 1 or mapping.dtype != "i32" or int(mapping.shape[0]) < 2:
        raise op_refusal(op, f"has no mapping of i32 for two indices or more (%{mapping.name})")
    return _parameter(graph, op, weight), _parameter(graph, op, mapping)


def refused_sharing(graph: Graph, ops: Sequence[Op]) -> list[tuple[Op, RefusedError]]:
    """Return the lookups whose table or mapping another op uses, each with its refusal."""
    changed_ops = set(ops)
    errors: list[tuple[Op, RefusedError]] = []
    for op in ops:
        try:
            for declaration in check_deprune(graph, op):
                _check_uses(graph, declaration, changed_ops)
        except RefusedError as error:
            errors.append((op, error))
    return errors


def deprune(graph: Graph, ops: Sequence[Op]) -> DepruneResult:
    """Rewrite lookups to read expanded tables. Check each op with ``check_deprune`` first.

    Raises:
        RefusedError: an op that is not among them uses one of their tables or mappings.
    """
    for _, error in refused_sharing(graph, ops):
        raise error
    edit, used_names = Edit(graph), names_of(graph)
    new_ops: list[Op] = []
    tables: dict[tuple[str, str], tuple[Declared, ExpandedTable]] = {}
    for op in ops:
        weight, mapping = check_deprune(graph, op)
        key = (weight.tensor.name, mapping.tensor.name)
        if key not in tables:
            name = free_name(f"{weight.tensor.name}_whole", used_names)
            used_names.add(name)
            shape = (mapping.tensor.shape[0], weight.tensor.shape[1])
            tensor = replace(weight.tensor, name=name, buffer=name, shape=shape, offset=0)
            table = ExpandedTable(name, weight.tensor, mapping.tensor)
            tables[key] = (Declared("param", tensor, weight.label), table)
        new = _lookup(graph, op, tables[key][0].tensor)
        edit.insert(new, before=op)
        edit.remove(op)
        new_ops.append(new)
    return _with_tables(edit.commit(), graph, tables, tuple(new_ops))


def _with_tables(
    rewritten: Graph,
    original: Graph,
    tables: Mapping[tuple[str, str], tuple[Declared, ExpandedTable]],
    new_ops: tuple[Op, ...],
) -> DepruneResult:
    """Replace pruned tables by the expanded ones, and remove mappings."""
    tables_by_source = {
        table: [d for (name, _), (d, _) in tables.items() if name == table] for table, _ in tables
    }
    mappings = {mapping for _, mapping in tables}
    tensors: list[Declared] = []
    for declaration in rewritten.tensors:
        if declaration.tensor.name not in mappings:
            tensors += tables_by_source.get(declaration.tensor.name, (declaration,))
    graph = replace(rewritten, tensors=tuple(tensors))
    graph = with_expanded(graph, [table for _, table in tables.values()])
    freed_bytes = sum(original.by_name[name].nbytes for name in mappings)
    sizes = [sum(d.tensor.nbytes for d in side.tensors) for side in (original, graph)]
    return DepruneResult(graph, new_ops, sizes[1] - sizes[0], freed_bytes)


def _lookup(graph: Graph, op: Op, table: Tensor) -> Op:
    """Return the lookup in an expanded table that replaces one in a pruned table."""
    arguments = arguments_of(op, graph.schemas)
    replaced_names = ("weight", "indices", "offsets", PRUNED, MAPPING)
    attributes = {
        k: v for k, v in arguments.items() if k not in replaced_names and v not in (None, False, 0)
    }
    operands: list[Value] = [table, arguments["indices"], arguments.get("offsets")]
    while operands[-1] is None:
        operands.pop()
    return replace(
        op, operands=tuple(operands), attributes=attributes, origin=f"deprune: {op.name}"
    )


def _parameter(graph: Graph, op: Op, tensor: Tensor) -> Declared:
    """Return a tensor's declaration, which must be a separate parameter that no op writes."""
    params = (d for d in graph.tensors if d.tensor.name == tensor.name and d.role == "param")
    declaration = next(params, None)
    if declaration is None or not tensor.contiguous:
        raise op_refusal(op, f"uses %{tensor.name}, which is no parameter of its own")
    for _, leaf in graph.touching.get(tensor.buffer, ()):
        if any(t.buffer == tensor.buffer for t in written_by(leaf)):
            raise RefusedError(f"the step writes %{tensor.name}", [(leaf, "")])
    return declaration


def _check_uses(graph: Graph, declaration: Declared, changed_ops: set[Op]) -> None:
    for _, leaf in graph.touching.get(declaration.tensor.buffer, ()):
        if leaf is graph.end:
            raise RefusedError(f"the step returns %{declaration.tensor.name}")
        if leaf not in changed_ops:
            reason = f"{leaf.name} reads %{declaration.tensor.name} too, and would still need it"
            raise RefusedError(reason, [(leaf, "")])
