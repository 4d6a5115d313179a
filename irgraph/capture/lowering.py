"""From a tree of recorded nodes to calls whose tensors have one identity each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from irgraph.capture.calls import Call, fill, handles_in, known_schema
from irgraph.capture.forest import BOOKKEEPING, EVALUATE
from irgraph.capture.identity import Handle, Identities
from irgraph.capture.nodes import Node, TraceTensor
from irgraph.capture.views import view_strides
from irgraph.ir.op import is_call_name
from irgraph.ir.schema import Schema

OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")


class Record(Protocol):
    """What a running program showed of one device call, in schema order."""

    schema: str
    inputs: Sequence[Any]
    outputs: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Around:
    """What a call inherits from the ranges around it."""

    thread: str = "main"
    module: str = ""
    phase: str = "forward"


@dataclass(slots=True)
class Lowering:
    """One recording on its way to calls.

    Attributes:
        source: word for origins, such as ``et.json``.
        identities: the tensors known so far.
        records: by node id, what the program itself showed of that device call.
        modules: by autograd sequence number, the module of the last forward call that had it.
        schemas: recorded schemas that the shipped list lacks.
        counts: how often something was assumed or repaired, by sentence.
        threads: the IR's thread names by the recording's number.
    """

    source: str
    identities: Identities
    records: Mapping[int, Record] = field(default_factory=dict)
    modules: dict[int, str] = field(default_factory=dict)
    origins: dict[int, str] = field(default_factory=dict)
    links: list[tuple[str, str]] = field(default_factory=list)
    schemas: dict[str, None] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    threads: dict[int, str] = field(default_factory=dict)
    last_module: str = ""

    def calls(self, nodes: Sequence[Node], around: Around | None = None) -> list[Call]:
        """Return the calls that recorded nodes stand for, in launch order."""
        around = around or Around()
        return [call for node in nodes for call in self._node(node, around)]

    def _node(self, node: Node, around: Around) -> list[Call]:
        if node.name.startswith(BOOKKEEPING):
            return self.calls(node.children, around)
        if node.name.startswith(EVALUATE) or node.backward:
            return self._autograd(node)
        around = replace(around, thread=self._thread(node, around))
        if node.name.startswith(MODULE):
            return self.calls(node.children, replace(around, module=_module(node.name)))
        found = known_schema(node.schema) if node.schema else None
        if found is None:
            return self._unschemed(node, around)
        schema, shipped = found
        if not shipped:
            self.schemas[node.schema] = None
        if node.sequence >= 0 and around.thread != "backward":
            self.modules[node.sequence] = around.module
            self.origins[node.sequence] = self._origin(node)
        call = self._start(node, schema.name, around)
        if schema.composite and node.children and node.id not in self.records:
            return self._composite(node, schema, call, around)
        return [self._device(node, schema, call)]

    def _thread(self, node: Node, around: Around) -> str:
        if around.thread == "backward":
            return "backward"
        if node.thread not in self.threads:
            known = len(self.threads)
            self.threads[node.thread] = f"thread{known + 1}" if known else "main"
        return self.threads[node.thread]

    def _start(self, node: Node, name: str, around: Around) -> Call:
        return Call(
            name,
            thread=around.thread,
            module=around.module,
            phase=around.phase,
            origin=self._origin(node),
            sequence=node.sequence,
        )

    def _origin(self, node: Node) -> str:
        return f"{self.source}#{node.id}"

    def _unschemed(self, node: Node, around: Around) -> list[Call]:
        """Lower a range that is no operator: a label, or a kernel that was called by its name."""
        if node.name.startswith(OPTIMIZER):
            around = replace(around, phase="optimizer")
        call = self._start(node, label(node.name), around)
        tensors = [value for value in node.inputs if isinstance(value, TraceTensor)]
        if tensors and not node.children and node.name.startswith("triton"):
            call.operands = [self.identities.use(tensor) for tensor in tensors]
            self.counts["compiled kernels without a schema: kept as opaque ops"] += 1
        call.body = self.calls(node.children, around)
        return [call]

    def _autograd(self, node: Node) -> list[Call]:
        """Collapse the engine's wrapper and the autograd node in it into one scope."""
        inner = node if node.backward else next((c for c in node.children if c.backward), None)
        if inner is None:
            return self.calls(node.children, Around("backward", "", "backward"))
        module = self.modules.get(inner.sequence, self.last_module)
        self.last_module = module
        around = Around("backward", module, "backward")
        call = self._start(inner, autograd_name(inner.name), around)
        if inner.sequence in self.origins:
            self.links.append((call.origin, self.origins[inner.sequence]))
        early = [self._find(value) for value in inner.inputs]
        call.body = self.calls(inner.children, around)
        if inner is not node:
            call.body += self.calls([c for c in node.children if c is not inner], around)
        inside = {id(handle) for c in call.walk() for handle in handles_in(c.results)}
        late = [self._find(value) for value in inner.inputs]
        found = [a or b for a, b in zip(early, late, strict=True)]
        call.operands = [h for h in found if h is not None and id(h) not in inside]
        return [call]

    def _find(self, value: Any) -> Handle | None:
        return self.identities.find(value) if isinstance(value, TraceTensor) else None

    def _composite(self, node: Node, schema: Schema, call: Call, around: Around) -> list[Call]:
        """Lower an operator made of others; its tensors are those its body names."""
        early = [self._find(value) for value in tensors_in(node.inputs)]
        call.body = self.calls(node.children, around)
        handles = dict(zip(map(id, tensors_in(node.inputs)), early, strict=True))
        inputs = [self._operand(value, handles) for value in node.inputs]
        fill(call, schema, inputs, self.identities.device)
        known = {id(h) for inner in call.body for c in inner.walk() for h in handles_in(c.results)}
        held = {id(handle) for handle in handles_in(inputs)}
        outputs = [self._output(value, known | held) for value in node.outputs]
        if any(isinstance(output, TraceTensor) for output in tensors_in(outputs)):
            # what made the result was not recorded: the call stands for all it called
            call.body = []
            self.counts["calls whose body did not show their result: kept without body"] += 1
            outputs = [self._defined(value, node) for value in node.outputs]
        set_results(call, schema, inputs, outputs)
        return [call]

    def _operand(self, value: Any, early: Mapping[int, Handle | None]) -> Any:
        if isinstance(value, TraceTensor):
            return early.get(id(value)) or self.identities.use(value)
        if isinstance(value, list):
            return [self._operand(item, early) for item in value]
        return value

    def _output(self, value: Any, known: set[int]) -> Any:
        """Return what a composite's result is, or the recorded tensor where that is unknown."""
        if isinstance(value, TraceTensor):
            handle = self.identities.find(value)
            return handle if handle is not None and id(handle) in known else value
        if isinstance(value, list):
            return [self._output(item, known) for item in value]
        return value

    def _defined(self, value: Any, node: Node) -> Any:
        if isinstance(value, TraceTensor):
            return self.identities.define(value, list(tensors_in(node.inputs)))
        if isinstance(value, list):
            return [self._defined(item, node) for item in value]
        return value

    def _device(self, node: Node, schema: Schema, call: Call) -> Call:
        """Lower a call that reaches the device; what it called in turn is its own affair."""
        record = self.records.get(node.id)
        if record is not None:
            exact, _ = known_schema(record.schema) or (schema, True)
            inputs = self._exact(record.inputs, node.inputs, define=False)
            fill(call, exact, inputs, self.identities.device)
            same = {id(h): h for h in handles_in(inputs)}
            outputs = self._exact_results(exact, record, node.outputs, inputs)
            set_results(call, exact, list(same.values()), outputs)
            return call
        inputs = [self._used(value) for value in node.inputs]
        fill(call, schema, inputs, self.identities.device)
        outputs = self._results(node, schema, inputs)
        set_results(call, schema, inputs, outputs)
        return call

    def _used(self, value: Any) -> Any:
        if isinstance(value, TraceTensor):
            return self.identities.use(value)
        return [self._used(item) for item in value] if isinstance(value, list) else value

    def _results(self, node: Node, schema: Schema, inputs: Sequence[Any]) -> list[Any]:
        """Return a device call's results by a trace alone: operands, views or new tensors."""
        given = {t.id: t for t in tensors_in(node.inputs)}
        sources = list(given.values())

        def result(value: Any) -> Any:
            if isinstance(value, list):
                return [result(item) for item in value]
            if not isinstance(value, TraceTensor):
                return value
            if given.get(value.id) == value:
                return self.identities.use(value)
            strides = view_strides(schema.name, inputs, value.shape)
            if value.strides is None and strides is None and _may_stride(schema):
                self.counts[f"results of {schema.name} taken to be contiguous"] += 1
            return self.identities.define(value, sources, strides)

        return [result(value) for value in node.outputs]

    def _exact(self, values: Any, described: Any, define: bool) -> list[Any]:
        open_ = self.identities.define_exact if define else self.identities.use_exact
        found = []
        for i, value in enumerate(values):
            word = described[i] if isinstance(described, list) and i < len(described) else None
            if isinstance(value, (list, tuple)):
                found.append(self._exact(value, word, define))
            else:
                found.append(open_(value, word) if hasattr(value, "impl") else value)
        return found

    def _exact_results(
        self, schema: Schema, record: Record, described: Any, inputs: Sequence[Any]
    ) -> list[Any]:
        given = {item.impl: item for item in _exacts(record.inputs)}

        def result(value: Any, word: Any) -> Any:
            if isinstance(value, (list, tuple)):
                words = word if isinstance(word, list) else []
                words = [*words, *[None] * (len(value) - len(words))]
                return [result(item, w) for item, w in zip(value, words, strict=False)]
            if not hasattr(value, "impl"):
                return value
            same = given.get(value.impl)
            if same is not None and replace(same, hint=value.hint) == value:
                return self.identities.use_exact(value, word)
            return self.identities.define_exact(value, word)

        return list(result(record.outputs, described))


MODULE = "irgraph.module#"


def _module(name: str) -> str:
    return name[len(MODULE) :]


def _may_stride(schema: Schema) -> bool:
    """Tell whether a result is a view that is not a plain reshape of its operand."""
    aliased = any(r.alias and not r.written for r in schema.returns)
    return aliased and schema.name not in ("aten.view", "aten.reshape", "aten.to", "aten.flatten")


def _exacts(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _exacts(value)
        elif hasattr(value, "impl"):
            yield value


def tensors_in(values: Any) -> Iterator[TraceTensor]:
    """Yield the recorded tensors among values, lists opened."""
    for value in values:
        if isinstance(value, TraceTensor):
            yield value
        elif isinstance(value, list):
            yield from tensors_in(value)


def set_results(call: Call, schema: Schema, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Set a call's results: the tensors that are none of its operands."""
    held = {id(handle) for handle in handles_in(inputs)}
    for i, output in enumerate(outputs):
        declared = schema.returns[i].type if i < len(schema.returns) else "Tensor"
        if isinstance(output, Handle):
            if id(output) not in held:
                call.results.append(output)
        elif isinstance(output, (list, tuple)) and declared.startswith("Tensor"):
            if not all(id(handle) in held for handle in handles_in(output)):
                call.results.append(tuple(h for h in output if isinstance(h, Handle)))
        elif output is None and declared.startswith("Tensor"):
            call.results.append(None)
    while call.results and call.results[-1] is None and len(outputs) == 1:
        call.results.pop()


def autograd_name(name: str) -> str:
    """Return the IR's name of an autograd node: ``autograd.AddmmBackward0``."""
    return "autograd." + name.removeprefix(EVALUATE).removeprefix("torch::autograd::")


def label(name: str) -> str:
    """Return an annotation's words, marked where they could be taken for a call's name."""
    return f"label {name}" if is_call_name(name) or name.startswith("autograd.") else name
