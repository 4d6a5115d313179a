"""Shrinks a model as long as it still shows a failure (delta debugging)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.language import Pricer
from irgraph.manage.run import run_stages
from irgraph.manage.stage import Stage
from irgraph.ops.verify import verify

Interesting = Callable[[Graph], bool]
"""Returns whether a graph still shows the failure."""

MAX_TRIES = 2000
USAGE = 2
"""Exit code of usage errors, which are not failures to look for."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """The smallest graph found, its number of ops and that of the first graph, and the tries."""

    graph: Graph
    ops: int
    ops_before: int
    tries: int


def failure_of(
    graph: Graph,
    pipeline: Sequence[Stage],
    pass_path: Sequence[str] = (),
    pricer: Pricer | None = None,
) -> str:
    """Return the failure of a pipeline on a graph, without names; ``""`` if it does not fail.

    Two failures are the same if their first messages are, except for names of tensors and buffers
    and numbers.
    """
    try:
        run_stages(graph, pipeline, pass_path=pass_path, pricer=pricer)
    except IrgraphError as error:
        if error.exit_code == USAGE:
            raise
        return _without_names(error.diagnostics[0].message)
    except Exception as error:
        return f"{type(error).__name__}: {_without_names(str(error))}"
    return ""


def _without_names(message: str) -> str:
    return re.sub(r"[%$]\w+|\b\d+\b", "_", message)


def same_failure_predicate(
    graph: Graph,
    pipeline: Sequence[Stage],
    pass_path: Sequence[str] = (),
    pricer: Pricer | None = None,
) -> Interesting | None:
    """Return a predicate of graphs on which a pipeline fails in the same way as on this graph.

    ``None`` if it does not fail on this graph.
    """
    failure = failure_of(graph, pipeline, pass_path, pricer)
    if not failure:
        return None
    return lambda other: failure_of(other, pipeline, pass_path, pricer) == failure


def broken_result_predicate(
    graph: Graph,
    pipeline: Sequence[Stage],
    broken: Callable[[Graph], str],
    pass_path: Sequence[str] = (),
    pricer: Pricer | None = None,
) -> Interesting | None:
    """Return a predicate of graphs for which a pipeline's result is broken.

    ``None`` if this graph's result is not. A graph on which the pipeline fails is not broken.
    """

    def interesting(candidate: Graph) -> bool:
        try:
            done = run_stages(candidate, pipeline, pass_path=pass_path, pricer=pricer)
            return bool(broken(done.graph))
        except IrgraphError:
            return False

    return interesting if interesting(graph) else None


def reduce(
    graph: Graph,
    interesting: Interesting,
    *,
    max_tries: int = MAX_TRIES,
) -> Reduction:
    """Remove ops, outer before inner, as long as the graph stays sound and interesting.

    The search removes halves, then quarters, and so on down to single ops (delta debugging).
    Tensors that the remaining ops still use become inputs. Then scopes are replaced by their
    bodies, and unused tensors are removed. At most ``max_tries`` graphs are tried.
    """
    search = _Search(graph, interesting, max_tries)
    depth = 0
    while depth <= _depth(search.graph):
        before = search.size
        search.remove_at_depth(depth)
        depth = depth + 1 if search.size == before else depth
    search.open_scopes()
    search.attempt(_without_unused(search.graph))
    before = sum(1 for _ in graph.walk())
    return Reduction(search.graph, search.size, before, search.tries)


@dataclass
class _Search:
    """Search for the smallest graph; holds the smallest so far."""

    graph: Graph
    interesting: Interesting
    max_tries: int
    tries: int = 0

    @property
    def size(self) -> int:
        return sum(1 for _ in self.graph.walk())

    def attempt(self, candidate: Graph) -> bool:
        """Accept a candidate if it is sound and interesting."""
        if self.tries >= self.max_tries or verify(candidate):
            return False
        self.tries += 1
        if not self.interesting(candidate):
            return False
        self.graph = candidate
        return True

    def open_scopes(self) -> None:
        """Replace scopes by their bodies where possible."""
        for _ in range(self.size):
            for scope in [op for op in self.graph.walk() if op.body]:
                ops = tuple(new for op in self.graph.ops for new in _inline_scope(op, scope))
                if self.attempt(replace(self.graph, ops=ops)):
                    break
            else:
                return

    def remove_at_depth(self, depth: int) -> None:
        """Remove ops of one depth, in groups of decreasing size."""
        count = len(_ops_at_depth(self.graph.ops, depth))
        size = (count + 1) // 2
        while size:
            start = 0
            while start < len(ops := _ops_at_depth(self.graph.ops, depth)):
                removed = set(ops[start : start + size])
                if not self.attempt(_without_ops(self.graph, removed)):
                    start += size
            size //= 2


def _inline_scope(op: Op, scope: Op) -> list[Op]:
    """Return an op with a scope replaced by its body."""
    if op is scope:
        return list(op.body)
    body = tuple(new for child in op.body for new in _inline_scope(child, scope))
    same = len(body) == len(op.body) and all(a is b for a, b in zip(body, op.body, strict=True))
    return [op if same else replace(op, body=body)]


def _ops_at_depth(ops: Sequence[Op], depth: int) -> list[Op]:
    """Return the ops of one depth, in launch order."""
    if not depth:
        return list(ops)
    return [inner for op in ops for inner in _ops_at_depth(op.body, depth - 1)]


def _depth(graph: Graph) -> int:
    def deep(op: Op) -> int:
        return 1 + max(map(deep, op.body), default=0)

    return max(map(deep, graph.ops), default=0) - 1


def _without_ops(graph: Graph, removed: set[Op]) -> Graph:
    """Return a graph without some ops; their results that other ops use are declared as inputs."""
    ops = tuple(remaining for op in graph.ops for remaining in _remaining_ops(op, removed))
    declared = {d.tensor.name for d in graph.tensors}
    missing: dict[str, Tensor] = {}
    for op in ops:
        _collect_missing(op, declared, missing)
    inputs = tuple(Declared("input", tensor) for tensor in missing.values())
    return _without_missing_returns(replace(graph, tensors=(*graph.tensors, *inputs), ops=ops))


def _without_missing_returns(graph: Graph) -> Graph:
    """Return a graph whose returned tensors all exist."""
    if graph.returned is None:
        return graph
    by_name = graph.by_name
    return replace(graph, returned=tuple(t for t in graph.returned if t.name in by_name))


def _remaining_ops(op: Op, removed: set[Op]) -> list[Op]:
    if op in removed:
        return []
    if not op.body:
        return [op]
    body = tuple(remaining for child in op.body for remaining in _remaining_ops(child, removed))
    if len(body) == len(op.body) and all(a is b for a, b in zip(body, op.body, strict=True)):
        return [op]
    results = {tensor.name for child in body for tensor in child.outputs}
    available = results | {tensor.name for tensor in op.inputs}
    if op.is_annotation or op.is_autograd or all(t.name in available for t in op.outputs):
        return [replace(op, body=body)] if body else []
    return list(body)


def _collect_missing(op: Op, defined: set[str], missing: dict[str, Tensor]) -> None:
    for tensor in op.inputs:
        if tensor.name not in defined:
            defined.add(tensor.name)
            missing[tensor.name] = tensor
    for child in op.body:
        _collect_missing(child, defined, missing)
    defined.update(tensor.name for tensor in op.outputs)


def _without_unused(graph: Graph) -> Graph:
    used = {tensor.name for op in graph.walk() for tensor in op.inputs}
    used.update(tensor.name for tensor in graph.returned or ())
    return replace(graph, tensors=tuple(d for d in graph.tensors if d.tensor.name in used))
