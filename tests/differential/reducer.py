"""The smallest graph and script for which something is still wrong in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ops.verify import verify

Try = Callable[[Graph, Sequence[str]], str]


def kind(outcome: str) -> str:
    """Return an outcome without the names that it mentions."""
    return re.sub(r"[%$]\w+|\d+", "", outcome)[:90]


def reduced(
    graph: Graph, statements: Sequence[str], attempt: Try
) -> tuple[Graph, Sequence[str], str]:
    """Return a smaller graph and script of which ``attempt`` says the same."""
    wanted = kind(attempt(graph, statements))

    def fails(small: Graph, told: Sequence[str]) -> bool:
        try:
            return not verify(small) and kind(attempt(small, told)) == wanted
        except Exception:
            return False

    going = True
    while going:
        going = False
        for shorter in _shorter(statements):
            if fails(graph, shorter):
                statements, going = shorter, True
                break
        for smaller in _smaller(graph):
            if fails(smaller, statements):
                graph, going = smaller, True
                break
    return graph, statements, attempt(graph, statements)


def _shorter(statements: Sequence[str]) -> Iterator[Sequence[str]]:
    if len(statements) > 1:
        for i in range(len(statements)):
            yield [*statements[:i], *statements[i + 1 :]]
    for i, statement in enumerate(statements):
        for word in (" within forward", " within backward", " where op.bytes > 30B", "many "):
            if word in statement:
                yield [*statements[:i], statement.replace(word, ""), *statements[i + 1 :]]


def _smaller(graph: Graph) -> Iterator[Graph]:
    """Yield graphs without some ops, with the body of one in its place, without declarations."""
    count = len(graph.ops)
    for size in (8, 2, 1):
        for i in reversed(range(0, count, size)):
            yield replace(graph, ops=(*graph.ops[:i], *graph.ops[i + size :]))
    for i in range(count):
        for other in _opened(graph.ops[i]):
            yield replace(graph, ops=(*graph.ops[:i], *other, *graph.ops[i + 1 :]))
    for i in range(len(graph.tensors)):
        yield replace(graph, tensors=(*graph.tensors[:i], *graph.tensors[i + 1 :]))


def _opened(op: Op) -> Iterator[tuple[Op, ...]]:
    if op.body:
        yield op.body
    if op.module or op.origin or op.phase != "forward" or op.thread != "main":
        plain = {"module": "", "origin": "", "phase": "forward", "thread": "main"}
        yield (replace(op, **plain, body=op.body),)  # type: ignore[arg-type]
