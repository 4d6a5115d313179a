"""Lowers a tree of recorded nodes to calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from irgraph.capture.common.calls import CapturedCall, fill, handles_in, resolve_schema
from irgraph.capture.common.forest import BOOKKEEPING
from irgraph.capture.common.interrupted import EVALUATE
from irgraph.capture.common.nodes import RecordedNode, TraceTensor, saved_copies
from irgraph.capture.common.resolve import Record, Resolver, set_results, tensors_in
from irgraph.capture.common.streams import GRAPH, MARK, Streams
from irgraph.ir.graph import DOUBLE
from irgraph.ir.op import is_call_name
from irgraph.ir.schema import Schema

OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")
MODULE = "irgraph.module#"
"""Prefix of the ranges by which a live capture marks the calls of a submodule."""

ORIGIN = "irgraph.origin#"
"""Prefix of the ranges by which a front end specifies the origin of the calls in them."""

MODULES = (MODULE, "module::")
"""Prefixes of annotations that hold the path of a module."""


class EnclosingContext(Struct, frozen=True):
    """The properties that a call inherits from the ranges around it."""

    thread: str = "main"
    module: str = ""
    phase: str = "forward"
    origin: str = ""


@dataclass(slots=True)
class Lowering:
    """State of lowering one recording to calls.

    Attributes:
        source: prefix of origins, such as ``et.json``.
        resolver: resolves the recording's tensors.
        records: the program's own record of a device call, by node id.
        threads: the IR's thread names by the recording's number.
        renumber: whether origins count calls, because the recording's ids differ between runs.
        schemas: recorded schemas that the shipped list lacks.
        wrapping: whether tensors wrapped others, whose identity a recording does not show.
        links: pairs of origins, of a backward call and of its forward call.
        differentiates_gradients: whether the forward call of a backward call is itself a backward
            call.
    """

    source: str
    resolver: Resolver
    records: Mapping[int, Record] = field(default_factory=dict)
    threads: dict[int, str] = field(default_factory=dict)
    renumber: bool = False
    wrapping: bool = False
    schemas: dict[str, None] = field(default_factory=dict)
    links: list[tuple[str, str]] = field(default_factory=list)
    differentiates_gradients: bool = False
    streams: Streams = field(init=False)
    _forward: dict[int, CapturedCall] = field(default_factory=dict)
    _module: str = ""
    _stream: str = ""
    _count: int = 0

    def __post_init__(self) -> None:
        """Begin on the default stream."""
        self.streams = Streams(self.resolver.identities, self.resolver.counts)

    def calls(
        self, nodes: Sequence[RecordedNode], context: EnclosingContext | None = None
    ) -> list[CapturedCall]:
        """Return the calls of recorded nodes, in launch order."""
        context = context or EnclosingContext()
        return [call for node in nodes for call in self._lower_node(node, context)]

    def _lower_node(self, node: RecordedNode, context: EnclosingContext) -> list[CapturedCall]:
        if node.name.startswith(BOOKKEEPING):
            return self.calls(node.children, context)
        if node.name.startswith(EVALUATE) or node.backward:
            return self._lower_autograd(node)
        if _is_casting(node):
            return self.calls(node.children, context)
        if node.name.startswith(MODULES):
            return self.calls(node.children, replace(context, module=_module_path(node.name)))
        if node.name.startswith(ORIGIN):
            return self.calls(node.children, replace(context, origin=node.name[len(ORIGIN) :]))
        if node.name.startswith(MARK):
            return self.streams.calls(node.name[len(MARK) :], self._new_call(node, "", context))
        if node.name == GRAPH:
            launch = self._new_call(node, "cuda.graph_launch", context)
            launch.body = self.calls(node.children, context)
            return [launch]
        context = self._context_on_thread(node, context)
        node = call_below_autograd(node, self.records)
        resolved = resolve_schema(node.schema) if node.schema else None
        if resolved is None:
            if node.schema:
                self.resolver.counts["calls whose schema cannot be read: taken for labels"] += 1
            return [self._lower_range(node, context)]
        schema, shipped = resolved
        if len(node.inputs) != len(schema.arguments):
            self.resolver.counts["calls have more or fewer arguments than their schema"] += 1
        if not shipped:
            self.schemas[node.schema] = None
        recorded = node.id in self.records  # then its children are the copies made before it
        copies = self.calls(node.children if recorded else saved_copies(node), context)
        call = self._new_call(node, schema.name, context)
        if node.sequence >= 0:
            self._forward[node.sequence] = call
        if schema.composite and node.children and node.id not in self.records:
            return [self._lower_composite(node, schema, call, context)]
        call = self._lower_device_call(node, schema, call)
        record = self.records.get(node.id)
        if record is None:
            return [*copies, call]
        waits = self.streams.waits(record.waits, call)
        return [*copies, *waits, *self.streams.on_group_stream(call, record.issued)]

    def _context_on_thread(self, node: RecordedNode, context: EnclosingContext) -> EnclosingContext:
        if context.thread == "backward":
            return context
        thread = self.threads.setdefault(node.thread, f"thread{len(self.threads) + 1}")
        if thread == "backward":
            return EnclosingContext(thread, context.module, "backward")
        return replace(context, thread=thread)

    def _new_call(self, node: RecordedNode, name: str, context: EnclosingContext) -> CapturedCall:
        self._count += 1
        number = self._count if self.renumber else node.id
        call = CapturedCall(name, origin=context.origin or f"{self.source}#{number}")
        call.thread, call.module, call.phase = context.thread, context.module, context.phase
        call.stream = self.streams.current
        return call

    def _lower_range(self, node: RecordedNode, context: EnclosingContext) -> CapturedCall:
        """Lower a range that is no operator: a label, or a kernel that is named by its range."""
        closure: Sequence[RecordedNode] = ()
        inner_context = context
        if node.name.startswith(OPTIMIZER):
            closure, inner_context = (
                node.children[: _closure_length(node)],
                replace(context, phase="optimizer"),
            )
        call = self._new_call(node, label(node.name), inner_context)
        if node.name.startswith("triton") and not node.children:
            tensors = [value for value in node.inputs if isinstance(value, TraceTensor)]
            call.operands = [self.resolver.argument(tensor) for tensor in tensors]
            self.resolver.counts["compiled kernels without a schema: kept as opaque ops"] += 1
        call.body = self.calls(closure, context)
        call.body += self.calls(node.children[len(closure) :], inner_context)
        return call

    def _lower_autograd(self, node: RecordedNode) -> list[CapturedCall]:
        """Lower the engine's wrapper and the autograd node in it to one scope."""
        inner = node if node.backward else next((c for c in node.children if c.backward), None)
        if inner is None:
            return self.calls(node.children, EnclosingContext("backward", "", "backward"))
        forward = self._forward.get(inner.sequence)
        # a gradient is accumulated right after the node that computes it, on its stream
        self._module = forward.module if forward is not None else self._module
        context = EnclosingContext("backward", self._module, "backward")
        self._stream = forward.stream if forward is not None else self._stream
        with self.streams.run_on(self._stream):
            call = self._new_call(inner, autograd_name(inner.name), context)
            if forward is not None:
                self.links.append((call.origin, forward.origin))
                self.differentiates_gradients = (
                    self.differentiates_gradients or forward.phase == "backward"
                )
            early = [self.resolver.find(value) for value in inner.inputs]
            # hooks of the gradient run in the wrapper, before the node itself
            children = [node] if inner is node else node.children
            groups = [c.children if c is inner else [c] for c in children]
            call.body = [lowered for group in groups for lowered in self.calls(group, context)]
        inside = {handle for c in call.walk() for handle in handles_in(c.results)}
        late = [self.resolver.find(value) for value in inner.inputs]
        operands = [a or b for a, b in zip(early, late, strict=True)]
        if self.wrapping:
            used = {handle for c in call.walk() for handle in handles_in(c.operands)}
            operands = [h for h in operands if h in used]
        call.operands = [h for h in operands if h is not None and h not in inside]
        return [call]

    def _lower_composite(
        self, node: RecordedNode, schema: Schema, call: CapturedCall, context: EnclosingContext
    ) -> CapturedCall:
        """Lower a composite operator; its tensors are the ones that its body uses."""
        resolver = self.resolver
        early = [resolver.find(value) for value in tensors_in(node.inputs)]
        call.body = self.calls(node.children, context)
        inputs = resolver.composite_inputs(node, early)
        fill(call, schema, inputs, resolver.identities.device)
        visible = {h for inner in call.body for c in inner.walk() for h in handles_in(c.results)}
        visible.update(handles_in(inputs))
        outputs = resolver.composite_outputs(node, visible)
        if outputs is None:
            call.body = []
            resolver.counts["calls whose body does not show their result: body left out"] += 1
            outputs = resolver.opaque_outputs(node)
        set_results(call, schema, inputs, outputs)
        return call

    def _lower_device_call(
        self, node: RecordedNode, schema: Schema, call: CapturedCall
    ) -> CapturedCall:
        """Lower a call that reaches the device, without the calls inside it."""
        resolver = self.resolver
        record = self.records.get(node.id)
        if record is None:
            inputs = [resolver.argument(value) for value in node.inputs]
            outputs = resolver.results(node, schema, inputs)
        else:
            schema, _ = resolve_schema(record.schema) or (schema, True)
            inputs = resolver.exact_inputs(record, node)
            outputs = resolver.exact_outputs(record, node)
        fill(call, schema, inputs, resolver.identities.device)
        set_results(call, schema, inputs, outputs)
        return call


def call_below_autograd(node: RecordedNode, records: Mapping[int, Record]) -> RecordedNode:
    """Return the recorded call inside an operator whose autograd function is written in Python.

    Such an operator calls itself again, in a range that is named after its autograd function. The
    node itself is returned if there is no such call.
    """
    inner = node
    while node.schema and inner.id not in records:
        candidates = [child for child in inner.children if child.schema in ("", node.schema)]
        if not candidates:
            return node
        inner = candidates[0]
    unchanged = inner is node or inner.schema != node.schema
    return node if unchanged else dataclasses.replace(inner, sequence=node.sequence)


def _closure_length(node: RecordedNode) -> int:
    """Return the number of children of an optimizer's step that are calls of its closure.

    The closure runs the forward pass and then the backward pass, so it ends with the last backward
    call.
    """
    ends = [i for i, child in enumerate(node.children, 1) if _is_backward(child)]
    return max(ends, default=0)


def _is_backward(node: RecordedNode) -> bool:
    return node.backward or node.name.startswith(EVALUATE)


def _is_casting(node: RecordedNode) -> bool:
    """Return whether a call is autocast's, which casts operands and calls the operator again."""
    if not node.schema or not node.children or node.children[-1].schema != node.schema:
        return False
    return all(child.name == "aten::to" for child in node.children[:-1])


def _module_path(name: str) -> str:
    return next(name[len(prefix) :] for prefix in MODULES if name.startswith(prefix))


def autograd_name(name: str) -> str:
    """Return the IR's name of an autograd node: ``autograd.AddmmBackward0``."""
    return "autograd." + name.removeprefix(EVALUATE).removeprefix("torch::autograd::")


def label(name: str) -> str:
    """Return an annotation's text, with a prefix if it could be mistaken for a call's name."""
    return f"label {name}" if is_call_name(name) or name.startswith("autograd.") else name


def thread_names(nodes: Sequence[RecordedNode], main: int) -> dict[int, str]:
    """Return the threads' names: ``main``, and ``backward`` for threads that ran autograd nodes."""
    names = {node.thread: "backward" for node in nodes if node.backward and node.thread != main}
    return {main: "main", **names}


def double_backward_setting(differentiates_gradients: bool) -> Mapping[str, bool]:
    """Return the setting of a step that differentiates gradients, empty for other steps."""
    return {DOUBLE: True} if differentiates_gradients else {}
