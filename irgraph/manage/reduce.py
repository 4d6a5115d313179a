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
from irgraph.ir.verify import verify
from irgraph.language import Pricer
from irgraph.manage.run import run_stages
from irgraph.manage.stage import Stage

Interesting = Callable[[Graph], bool]
"""Returns whether a graph still shows the failure."""

MOST_TRIES = 2000
USAGE = 2
"""Exit code of usage errors, which are not failures to look for."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """The smallest graph that was found, how many ops it and the first one have, and the tries."""

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
        return _plain(error.diagnostics[0].message)
    except Exception as error:
        return f"{type(error).__name__}: {_plain(str(error))}"
    return ""


def _plain(message: str) -> str:
    return re.sub(r"[%$]\w+|\b\d+\b", "_", message)


def fails_alike(
    graph: Graph,
    pipeline: Sequence[Stage],
    pass_path: Sequence[str] = (),
    pricer: Pricer | None = None,
) -> Interesting | None:
    """Return the predicate of graphs on which a pipeline fails as on this one.

    ``None`` if it does not fail.
    """
    wanted = failure_of(graph, pipeline, pass_path, pricer)
    if not wanted:
        return None
    return lambda other: failure_of(other, pipeline, pass_path, pricer) == wanted


def stays_broken(
    graph: Graph,
    pipeline: Sequence[Stage],
    broken: Callable[[Graph], str],
    pass_path: Sequence[str] = (),
    pricer: Pricer | None = None,
) -> Interesting | None:
    """Return the predicate of graphs for which a pipeline's result is broken.

    ``None`` if this graph's is not. A graph that the pipeline fails on is not broken.
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
    most: int = MOST_TRIES,
) -> Reduction:
    """Remove ops, outer before inner, as long as the graph stays sound and interesting.

    Halves, then quarters, and so on down to single ops (delta debugging); what ops that stay
    still use becomes an input. Then scopes give
    way to their bodies, and last go tensors that nothing uses. At most ``most``
    graphs are tried.
    """
    search = _Search(graph, interesting, most)
    depth = 0
    while depth <= _depth(search.graph):
        before = search.size
        search.level(depth)
        depth = depth + 1 if search.size == before else depth
    search.open_scopes()
    search.attempt(_without_unused(search.graph))
    before = sum(1 for _ in graph.walk())
    return Reduction(search.graph, search.size, before, search.tries)


@dataclass
class _Search:
    """The smallest graph so far."""

    graph: Graph
    interesting: Interesting
    most: int
    tries: int = 0

    @property
    def size(self) -> int:
        return sum(1 for _ in self.graph.walk())

    def attempt(self, candidate: Graph) -> bool:
        """Accept a candidate if it is sound and interesting."""
        if self.tries >= self.most or verify(candidate):
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
                ops = tuple(new for op in self.graph.ops for new in _opened(op, scope))
                if self.attempt(replace(self.graph, ops=ops)):
                    break
            else:
                return

    def level(self, depth: int) -> None:
        """Remove ops of one depth, in ever smaller pieces."""
        count = len(_at(self.graph.ops, depth))
        piece = (count + 1) // 2
        while piece:
            start = 0
            while start < len(ops := _at(self.graph.ops, depth)):
                gone = {id(op) for op in ops[start : start + piece]}
                if not self.attempt(_without(self.graph, gone)):
                    start += piece
            piece //= 2


def _opened(op: Op, scope: Op) -> list[Op]:
    """Return an op with a scope replaced by its body."""
    if op is scope:
        return list(op.body)
    body = tuple(new for child in op.body for new in _opened(child, scope))
    same = len(body) == len(op.body) and all(a is b for a, b in zip(body, op.body, strict=True))
    return [op if same else replace(op, body=body)]


def _at(ops: Sequence[Op], depth: int) -> list[Op]:
    """Return the ops of one depth, in launch order."""
    if not depth:
        return list(ops)
    return [inner for op in ops for inner in _at(op.body, depth - 1)]


def _depth(graph: Graph) -> int:
    def deep(op: Op) -> int:
        return 1 + max(map(deep, op.body), default=0)

    return max(map(deep, graph.ops), default=0) - 1


def _without(graph: Graph, gone: set[int]) -> Graph:
    """Return a graph without some ops; what others use of them is declared as inputs."""
    ops = tuple(kept for op in graph.ops for kept in _kept(op, gone))
    known = {d.tensor.name for d in graph.tensors}
    missing: dict[str, Tensor] = {}
    for op in ops:
        _missing(op, known, missing)
    inputs = tuple(Declared("input", tensor) for tensor in missing.values())
    return _returning(replace(graph, tensors=(*graph.tensors, *inputs), ops=ops))


def _returning(graph: Graph) -> Graph:
    """Return a graph without missing tensors among what it returns."""
    if graph.returned is None:
        return graph
    known = graph.by_name
    return replace(graph, returned=tuple(t for t in graph.returned if t.name in known))


def _kept(op: Op, gone: set[int]) -> list[Op]:
    if id(op) in gone:
        return []
    if not op.body:
        return [op]
    body = tuple(kept for child in op.body for kept in _kept(child, gone))
    if len(body) == len(op.body) and all(a is b for a, b in zip(body, op.body, strict=True)):
        return [op]
    made = {tensor.name for child in body for tensor in child.outputs}
    held = made | {tensor.name for tensor in op.inputs}
    if op.is_annotation or op.is_autograd or all(t.name in held for t in op.outputs):
        return [replace(op, body=body)] if body else []
    return list(body)


def _missing(op: Op, known: set[str], missing: dict[str, Tensor]) -> None:
    for tensor in op.inputs:
        if tensor.name not in known:
            known.add(tensor.name)
            missing[tensor.name] = tensor
    for child in op.body:
        _missing(child, known, missing)
    known.update(tensor.name for tensor in op.outputs)


def _without_unused(graph: Graph) -> Graph:
    used = {tensor.name for op in graph.walk() for tensor in op.inputs}
    used.update(tensor.name for tensor in graph.returned or ())
    return replace(graph, tensors=tuple(d for d in graph.tensors if d.tensor.name in used))
