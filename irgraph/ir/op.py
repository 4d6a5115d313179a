"""Operations: calls, with their operands, results and the calls inside them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar, Union

from msgspec import Struct, field
from msgspec.structs import replace

from irgraph.facts import StoredProperty, facts_of
from irgraph.ir.quantity import Quantity
from irgraph.ir.tensor import Tensor

Value: TypeAlias = Union[Tensor, int, float, bool, str, tuple["Value", ...], None]
"""An operand or attribute: a tensor, a literal, or a list (as a tuple) of them."""

Result: TypeAlias = Union[Tensor, tuple[Tensor, ...], None]
"""One result: a tensor, nothing (an undefined gradient), or a list of tensors."""

Note: TypeAlias = Union[Quantity, str, int, float, bool, None]
"""Notes of cost models and schedulers about an op."""

EMPTY: Mapping[str, Any] = {}
"""Shared by all ops without attributes or notes; a plain dict, so that graphs can be pickled."""


class Op(Struct, frozen=True, eq=False, dict=True):
    """One call. Two ops are the same op only if they are the same object.

    An op's facts are keyed by the op itself, which hashes as an object. ``identity`` relates ops of
    several graphs: ``replace`` copies it, so that an op has the same one before and after an edit
    (``Graph.became``). A second copy in the same graph needs a new one: ``duplicate``.

    Attributes:
        name: dotted as in ``aten.linear``; autograd nodes are ``autograd.AddmmBackward0``;
            annotations have their original text (printed in quotes).
        operands: tensors and lists of tensors in the schema's order.
        results: new tensors; a result that the schema aliases in place *is* its operand and
            does not appear here.
        attributes: the other arguments by the schema's names, without defaults.
        written: names of tensors written in place (``%x!`` in text).
        body: ops that this call called, in launch order; empty for a leaf.
        thread, stream: host thread, and device stream (``""`` is the device's default stream).
        module: path of the module that called it, ``""`` if none.
        phase: ``forward``, ``backward`` or ``optimizer``.
        notes: results of cost models and schedulers; ignored by comparison.
        origin: its source, such as ``et.json#47`` or a pass and the ops it replaced.
        line: line in the text from which it was read, 0 if it was not read from text.
        identity: token that an op retains through edits; without meaning for anything else.
    """

    name: str
    operands: tuple[Value, ...] = ()
    results: tuple[Result, ...] = ()
    attributes: Mapping[str, Value] = field(default_factory=lambda: EMPTY)
    written: frozenset[str] = frozenset()
    body: tuple[Op, ...] = ()
    thread: str = "main"
    stream: str = ""
    module: str = ""
    phase: str = "forward"
    notes: Mapping[str, Note] = field(default_factory=lambda: EMPTY)
    origin: str = ""
    line: int = 0
    identity: object = field(default_factory=object)

    @StoredProperty
    def inputs(self) -> tuple[Tensor, ...]:
        """Every tensor among operands and attributes, with lists flattened, in order."""
        if self.attributes:
            return _flatten_tensors((*self.operands, *self.attributes.values()))
        return _flatten_tensors(self.operands)

    @StoredProperty
    def outputs(self) -> tuple[Tensor, ...]:
        """Every tensor among the results, with lists flattened, in order."""
        return _flatten_tensors(self.results)

    @StoredProperty
    def below(self) -> frozenset[Op]:
        """Every op below this one."""
        return frozenset(self.body).union(*(child.below for child in self.body if child.body))

    @property
    def base(self) -> str:
        """The last part of the name: ``linear`` of ``aten.linear``."""
        return self.name.rpartition(".")[2]

    @property
    def is_annotation(self) -> bool:
        """Whether this is a label around ops (a profiler range, an optimizer step), not a call."""
        return not self.operands and not self.results and not is_call_name(self.name)

    @property
    def is_autograd(self) -> bool:
        """Whether this is an autograd node."""
        return self.name.startswith("autograd.")

    @property
    def is_scope(self) -> bool:
        """Whether its effects are those of its body: it has one, or it is an annotation."""
        return bool(self.body) or self.is_annotation or self.is_autograd

    def walk(self) -> Iterator[Op]:
        """Yield this op and all below it, outer before inner, in launch order."""
        yield self
        for child in self.body:
            yield from child.walk()

    def leaves(self) -> Iterator[Op]:
        """Yield the ops at or below this one that called nothing further."""
        if not self.body:
            yield self
        for child in self.body:
            yield from child.leaves()


def duplicate(op: Op) -> Op:
    """Return a copy of an op, and of the ops below it, with new identities."""
    return replace(op, body=tuple(map(duplicate, op.body)), identity=object())


def is_call_name(name: str) -> bool:
    """Return whether a name is an operator's (``library.operator``), not an annotation's."""
    return _CALL.fullmatch(name) is not None


_CALL = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*(?:\.\w+)*", re.ASCII)


def tensors_in(values: Iterable[Value]) -> Iterator[Tensor]:
    """Yield the tensors among values, with lists flattened."""
    yield from _flatten_tensors(tuple(values))


def _flatten_tensors(values: tuple[Value, ...]) -> tuple[Tensor, ...]:
    """Return the tensors among values: the same tuple if nothing else is in it."""
    if set(map(type, values)) == {Tensor}:
        return values  # type: ignore[return-value]
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, tuple):
            tensors += _flatten_tensors(value)
    return tuple(tensors)


T = TypeVar("T")


RESULTS_SLOT, OPERANDS_SLOT = "irgraph.ir.names.made", "irgraph.ir.names.taken"
"""Slots of an op that cache its tensors by name: results, and operands from outside."""

TensorsByName = Mapping[str, Tensor]


def results_by_name(op: Op) -> TensorsByName:
    """Return every result of an op and of the ops below it, by name, outer ones first."""
    tensors: dict[str, Tensor] | None = facts_of(op).get(RESULTS_SLOT)
    if tensors is None:
        tensors = {tensor.name: tensor for inner in op.walk() for tensor in inner.outputs}
        if op.body:
            facts_of(op)[RESULTS_SLOT] = tensors
    return tensors


def external_operands(op: Op) -> TensorsByName | None:
    """Return the tensors that an op and the ops below it use but do not define, by name.

    ``None`` if the verifier must examine the op: a name denotes two tensors inside, is defined
    twice, is used before its definition, or is a result that no inner op defines.
    """
    facts = facts_of(op)
    if OPERANDS_SLOT in facts:
        cached: dict[str, Tensor] | None = facts[OPERANDS_SLOT]
        return cached
    operands: dict[str, Tensor] = {}
    consistent = _collect_names(op, operands, {}, results_by_name(op))
    external = operands if consistent and operands.keys().isdisjoint(results_by_name(op)) else None
    if op.body:
        facts[OPERANDS_SLOT] = external
    return external


def convert_names(old: Op, new: Op, change: Callable[[Tensor], Tensor]) -> None:
    """Cache the names of a new op with a body, converted from the op from which it was derived.

    The two ops differ in their tensors' types only: ``change`` converts each tensor.
    """
    operands = external_operands(old)
    facts_of(new)[RESULTS_SLOT] = {
        name: change(tensor) for name, tensor in results_by_name(old).items()
    }
    if operands is not None:
        facts_of(new)[OPERANDS_SLOT] = {name: change(tensor) for name, tensor in operands.items()}


def _collect_names(
    op: Op, operands: dict[str, Tensor], results: dict[str, Tensor], all_results: TensorsByName
) -> bool:
    """Collect external operands and results; return whether every name denotes one tensor."""
    for tensor in op.inputs:
        defined = results.get(tensor.name) or operands.setdefault(tensor.name, tensor)
        if defined is not tensor and defined != tensor:
            return False
    if not all(
        tensor.name not in results and all_results[tensor.name] == tensor for tensor in op.outputs
    ):
        return False
    if not all(_collect_names(child, operands, results, all_results) for child in op.body):
        return False
    lacks_result = op.body and not op.is_autograd and any(t.name not in results for t in op.outputs)
    results.update({tensor.name: tensor for tensor in op.outputs})
    return not lacks_result
