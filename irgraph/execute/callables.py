"""Functions that compute ops, or the reasons why there are none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import zip_longest

import torch
from msgspec import Struct

from irgraph.diagnostics import Diagnostic, IrgraphError, SourceSpan
from irgraph.execute.substitutes import SUBSTITUTES, no_op
from irgraph.execute.torch_values import Torch, literal
from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.op import Op, Value
from irgraph.ir.schema import Schema, bind, resolve
from irgraph.ir.tensor import Tensor
from irgraph.ir.torch_schemas.custom_ops import custom_ops
from irgraph.ir.torch_schemas.pure_operators import OperatorError, pure_operator, pure_packet
from irgraph.ops.book import collective_of, names_with
from irgraph.ops.live_out import is_label
from irgraph.ops.operator import CollectiveKind, Trait

Lookup = Callable[[Tensor], Torch]
"""Maps a tensor of the graph to torch's tensor."""

Check = Callable[[str, Mapping[str, Torch]], None]
"""Raises an error if a call may not be computed with these arguments."""

MAX_LISTED = 10
"""Maximum number of kinds of ops that an error lists."""

UNCHANGING = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.BROADCAST,
    CollectiveKind.BARRIER,
)
"""Collectives that change nothing in a single process, if they write their operands in place."""

UNKNOWN_CALLS = "the ops that it called are unknown"


class Computation(Struct, frozen=True):
    """Computation of an op: its schema, if it has one, and a function of torch's values.

    ``by_name`` if the function requires all arguments by name.
    """

    schema: Schema | None
    call: Callable[..., Torch]
    by_name: bool = False

    def __call__(self, op: Op, lookup: Lookup, check: Check | None = None) -> Torch:
        """Compute an op; ``check`` is first called with its name and its arguments by name."""
        leading, keywords = self.arguments(op, lookup)
        if check is not None and self.schema is not None:
            names = (argument.name for argument in self.schema.arguments)
            check(op.name, {**dict(zip(names, leading, strict=False)), **keywords})
        return self.call(*leading, **keywords)

    def arguments(self, op: Op, lookup: Lookup) -> tuple[list[Torch], dict[str, Torch]]:
        """Return the positional and the keyword arguments of the function."""
        if self.schema is None:
            return [_tensors(value, lookup) for value in op.operands], dict(op.attributes)
        pairs = bind(self.schema, op)
        values = {
            argument.name: _tensors(value, lookup)
            if argument.is_tensor
            else literal(argument, value)
            for argument, value in pairs
        }
        if self.by_name:
            return [], values
        leading = []
        for argument in self.schema.arguments:
            if argument.keyword or argument.name not in values:
                break
            leading.append(values.pop(argument.name))
        return leading, values


def _tensors(value: Value, lookup: Lookup) -> Torch:
    if isinstance(value, Tensor):
        return lookup(value)
    if isinstance(value, tuple):
        return [_tensors(item, lookup) for item in value]
    return value


def computation(op: Op, graph: Graph) -> Computation | str:
    """Return the computation of a leaf, or the reason why it cannot be computed."""
    if op.name.startswith("c10d.") and collective_of(op.name) in UNCHANGING:
        return Computation(None, no_op)
    schema = resolve(op, graph.schemas)
    if schema is None:
        return "no known schema takes these operands"
    custom = custom_ops().get(op.name)
    implementation = SUBSTITUTES.get(op.name) if custom is None else custom.reference
    if implementation is not None:
        if op.name in names_with(Trait.RESERVE):
            implementation = _with_recorded_reserve(implementation, op)
        return Computation(schema, implementation, by_name=True)
    try:
        operator = pure_operator(op.name, schema.overload)
        by_name = any("Dimname" in argument.type for argument in schema.arguments)
        call = pure_packet(op.name) if by_name else operator
    except OperatorError as error:
        return str(error)
    has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    if not any(has_kernel(operator.name(), key) for key in ("CPU", "SparseCPU")):
        return "it has no CPU kernel"
    return Computation(schema, call)


def _with_recorded_reserve(call: Callable[..., Torch], op: Op) -> Callable[..., Torch]:
    """Return a function whose results of bytes have their recorded sizes, and are zero.

    A step runs in wider types than it was recorded in, and copies of these bytes keep their size.
    """
    shapes = [t.shape if isinstance(t, Tensor) and t.dtype == "u8" else None for t in op.results]

    def call_with_reserve(**arguments: Torch) -> tuple[Torch, ...]:
        pairs = zip_longest(call(**arguments), shapes)
        return tuple(
            value if shape is None else torch.zeros(tuple(map(int, shape)), dtype=torch.uint8)
            for value, shape in pairs
        )

    return call_with_reserve


def computations(graph: Graph, excluded: Collection[str] = ()) -> dict[Op, Computation]:
    """Return the computation of each leaf, except for ops named in ``excluded``.

    Raises:
        IrgraphError: names every kind of op that cannot be executed, with its number and position.
    """
    computation_by_op: dict[Op, Computation] = {}
    refused: dict[tuple[str, str], list[Op]] = {}
    for op in graph.leaves():
        outcome: Computation | str = UNKNOWN_CALLS if op.is_autograd and op.outputs else ""
        if not outcome and not is_label(op) and op.name not in excluded:
            outcome = computation(op, graph)
        if isinstance(outcome, Computation):
            computation_by_op[op] = outcome
        elif outcome:
            refused.setdefault((op.name, outcome), []).append(op)
    if refused:
        raise _refusal(graph, refused)
    return computation_by_op


@cached_per_graph
def all_computations(graph: Graph) -> Mapping[Op, Computation]:
    """Return the computation of each leaf; see ``computations`` for the errors."""
    return computations(graph)


def _refusal(graph: Graph, refused: dict[tuple[str, str], list[Op]]) -> IrgraphError:
    notes = [
        Diagnostic(f"{name} ({len(ops)}): {reason}", span_of(ops[0], graph), severity="note")
        for (name, reason), ops in refused.items()
    ]
    count = sum(map(len, refused.values()))
    more = len(notes) - MAX_LISTED
    hint = f"{more} more kinds of ops are not executable" if more > 0 else ""
    verb = "op is" if count == 1 else "ops are"
    span = SourceSpan(graph.source) if graph.source else None
    return IrgraphError(
        (Diagnostic(f"{count} {verb} not executable", span, tuple(notes[:MAX_LISTED]), hint),)
    )


def span_of(op: Op, graph: Graph) -> SourceSpan:
    """Return the source position of an op: its line, or its origin."""
    source = graph.source or graph.name
    return SourceSpan(source, "", op.line) if op.line else SourceSpan(op.origin or source)
