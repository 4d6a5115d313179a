"""Resolves recorded values to tensors with one identity each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from irgraph.capture.common.calls import CapturedCall, Item, handles_in
from irgraph.capture.common.identity import Exact, Handle, Identities
from irgraph.capture.common.nodes import Recorded, RecordedNode, TraceTensor
from irgraph.capture.common.streams import IssuedCollective
from irgraph.capture.common.view_strides import view_strides
from irgraph.ir.schema import Schema
from irgraph.ops.book import names_with
from irgraph.ops.operator import Trait


class Record(Protocol):
    """A running program's own record of one device call, in schema order."""

    schema: str
    inputs: list[Recorded]
    outputs: list[Recorded]
    issued: IssuedCollective | None
    waits: tuple[str, ...]


@dataclass(slots=True)
class Resolver:
    """Turns recorded values into handles; ``counts`` has the number of assumptions by sentence."""

    identities: Identities
    counts: Counter[str] = field(default_factory=Counter)

    def notes(self) -> list[str]:
        """Return a sentence for each kind of assumption, with how often it was made."""
        return [f"{count} {sentence}" for sentence, count in sorted(self.counts.items())]

    def find(self, value: Recorded) -> Handle | None:
        """Return the known tensor that a recorded value denotes, if any."""
        return self.identities.find(value) if isinstance(value, TraceTensor) else None

    def argument(self, value: Recorded) -> Item:
        """Return a recorded argument with its tensors; unknown ones exist since before the step."""
        return _map_tensors(value, self.identities.use)

    def results(self, node: RecordedNode, schema: Schema, inputs: Sequence[Item]) -> list[Item]:
        """Return a device call's results from the trace only: operands, views or new tensors."""
        operand_by_id = {tensor.id: tensor for tensor in tensors_in(node.inputs)}
        sources = list(operand_by_id.values())
        outputs = list(tensors_in(node.outputs))
        found = view_strides(schema.name, inputs, [tensor.shape for tensor in outputs])
        remaining_strides = iter(found)  # of the outputs in order

        def result(value: TraceTensor) -> Handle:
            strides = next(remaining_strides)
            if operand_by_id.get(value.id) == value:
                return self.identities.use(value)
            if value.strides is None and strides is None and _may_stride(schema):
                self.counts[f"results of {schema.name} taken to be contiguous"] += 1
            return self.identities.define(value, sources, strides)

        return [_map_tensors(value, result) for value in node.outputs]

    def composite_inputs(self, node: RecordedNode, early: Sequence[Handle | None]) -> list[Item]:
        """Return a composite's arguments: tensors known at its start, else those its body uses.

        ``early`` has the tensors known at its start in the order of its inputs.
        """
        remaining = iter(early)

        def operand(value: TraceTensor) -> Handle:
            return next(remaining) or self.identities.use(value)

        return [_map_tensors(value, operand) for value in node.inputs]

    def composite_outputs(self, node: RecordedNode, visible: set[Handle]) -> list[Item] | None:
        """Return a composite's results, ``None`` if its body and operands lack one of them."""
        outputs = [_map_tensors(value, self.find) for value in node.outputs]
        expected = sum(1 for _ in tensors_in(node.outputs))
        count = sum(handle in visible for handle in handles_in(outputs))
        return outputs if count == expected else None

    def opaque_outputs(self, node: RecordedNode) -> list[Item]:
        """Return new tensors for all results of a call whose body is unknown."""
        sources = list(tensors_in(node.inputs))
        return [_map_tensors(v, lambda t: self.identities.define(t, sources)) for v in node.outputs]

    def exact_inputs(self, record: Record, node: RecordedNode) -> list[Item]:
        """Return a device call's arguments as the program itself showed them."""
        return _resolve_exact(record.inputs, node.inputs, self.identities.use_exact)

    def exact_outputs(self, record: Record, node: RecordedNode) -> list[Item]:
        """Return a device call's results as the program itself showed them."""
        operand_by_impl = {exact.impl: exact for exact in _exact_tensors(record.inputs)}

        def result(value: Exact, description: Recorded) -> Handle:
            operand = operand_by_impl.get(value.impl)
            if operand is not None and replace(operand, hint=value.hint) == value:
                return self.identities.use_exact(value, description)
            return self.identities.define_exact(value, description)

        return _resolve_exact(record.outputs, node.outputs, result)


def _map_tensors(value: Recorded, change: Callable[[TraceTensor], Item]) -> Item:
    if isinstance(value, TraceTensor):
        return change(value)
    return [_map_tensors(item, change) for item in value] if isinstance(value, list) else value


def _resolve_exact(
    values: Sequence[Recorded], descriptions: Recorded, change: Callable[[Exact, Recorded], Handle]
) -> list[Item]:
    """Return resolved exact values; ``descriptions`` are the trace's values for them."""
    result: list[Item] = []
    for i, value in enumerate(values):
        description = (
            descriptions[i] if isinstance(descriptions, list) and i < len(descriptions) else None
        )
        if isinstance(value, list):
            result.append(_resolve_exact(value, description, change))
        else:
            result.append(change(value, description) if isinstance(value, Exact) else value)
    return result


def _exact_tensors(values: Sequence[Recorded]) -> Iterator[Exact]:
    for value in values:
        if isinstance(value, list):
            yield from _exact_tensors(value)
        elif isinstance(value, Exact):
            yield value


def tensors_in(values: Sequence[Recorded]) -> Iterator[TraceTensor]:
    """Yield the recorded tensors among values, including those in nested lists."""
    for value in values:
        if isinstance(value, TraceTensor):
            yield value
        elif isinstance(value, list):
            yield from tensors_in(value)


def _may_stride(schema: Schema) -> bool:
    aliased = any(r.alias and not r.written for r in schema.returns)
    # results of these ops are contiguous if their operand is
    is_reshape = schema.name == "aten.view" or schema.name in names_with(Trait.VIEW_OR_COPY)
    return aliased and not is_reshape


def set_results(
    call: CapturedCall, schema: Schema, inputs: Sequence[Item], outputs: Sequence[Item]
) -> None:
    """Set a call's results: the distinct tensors of its outputs that are not its operands."""
    seen = set(handles_in(inputs))
    for i, output in enumerate(outputs):
        declared = schema.returns[i].type if i < len(schema.returns) else "Tensor"
        new = dict.fromkeys(h for h in handles_in(output) if h not in seen)
        seen.update(new)
        if output is None and declared.startswith("Tensor") and len(outputs) > 1:
            call.results.append(None)
        elif new and isinstance(output, Handle):
            call.results.append(output)
        elif new:
            call.results.append(tuple(new))
