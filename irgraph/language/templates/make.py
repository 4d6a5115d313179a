"""Makes the ops of a template for one match, results that the pattern does not name included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from msgspec.structs import replace as changed

from irgraph.ir.calls import call_error
from irgraph.ir.dtypes import DIGITS
from irgraph.ir.edit import free_name
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Result, Value, tensors_in
from irgraph.ir.schema import schemas_of
from irgraph.ir.tensor import Tensor
from irgraph.language.expressions.attributes import shape_text
from irgraph.language.expressions.evaluate import Scope
from irgraph.language.expressions.values import spell
from irgraph.language.patterns.match import Match
from irgraph.language.patterns.nodes import Bound, ListTemplate, NewOp, Part, flatten_lists
from irgraph.language.templates.fill import BuildError, Filler
from irgraph.shapes import ShapeError, infer

NO_TORCH = "inferring the types of new tensors needs torch, which is not installed"


def make_ops(
    news: Sequence[NewOp],
    scope: Scope,
    match: Match,
    graph: Graph,
    taken: set[str],
    *,
    alone: bool = True,
) -> tuple[list[Op], dict[str, Value]]:
    """Return the ops of a template in launch order, and what its names stand for.

    Results that the pattern binds are those tensors; others are new, typed as torch says, and named
    as in the template, or alike where that is in ``taken``. Results share bytes as those that they
    stand for did, unless that is checked elsewhere (not ``alone``). Raises ``BuildError``.
    """
    values = dict(scope.values)
    made: list[Op] = []
    for new in news:
        filler = Filler([replace(scope, values=values)], [match.pairs[0].alignment.hidden])
        op = filler.make(replace(new, results=()), graph.schemas)
        types = _types(op, graph, needed=any(_unbound(new, values)))
        _check_written(op, graph)
        op = changed(op, results=_results(new.results, types, values, taken, new.op))
        if problem := call_error(op):
            raise BuildError(f"{op.name} {problem}")
        if alone:
            _check_bytes(op, types)
        made.append(op)
    return made, values


def _unbound(new: NewOp, values: dict[str, Value]) -> Iterator[bool]:
    for part in flatten_lists(new.results):
        yield isinstance(part, Bound) and part.name not in values


def _types(op: Op, graph: Graph, needed: bool) -> Sequence[Result]:
    """Return the types of an op's results; nothing where unknown and not needed."""
    try:
        return infer(op, graph.schemas, graph.dims, graph.device)
    except ShapeError as error:
        if needed or not str(error).startswith("torch has no"):
            raise BuildError(f"{op.name}: {error}") from None
    except ImportError:
        if needed:
            raise BuildError(f"{op.name}: {NO_TORCH}") from None
    return ()


def _results(
    parts: Iterable[Part],
    types: Sequence[Result],
    values: dict[str, Value],
    taken: set[str],
    name: str,
) -> tuple[Result, ...]:
    results: list[Result] = []
    for i, part in enumerate(parts):
        inferred = types[i] if i < len(types) else None
        if isinstance(part, ListTemplate):
            inner = inferred if isinstance(inferred, tuple) else ()
            listed = _results(part.items, inner, values, taken, name)
            results.append(tuple(tensors_in(listed)))
        elif isinstance(part, Bound):
            results.append(_result(part.name, inferred, values, taken, name))
    return tuple(results)


def _result(
    part: str, inferred: Result, values: dict[str, Value], taken: set[str], name: str
) -> Tensor:
    known = values.get(part)
    if isinstance(known, Tensor):
        _check_type(known, inferred)
        return known
    if part in values or not isinstance(inferred, Tensor):
        raise BuildError(f"{name}: its result %{part} is not a single tensor")
    fresh = free_name(part, taken)
    taken.add(fresh)
    made = changed(inferred, name=fresh, buffer=inferred.buffer or fresh)
    values[part] = made
    return made


def _check_type(known: Tensor, inferred: Result) -> None:
    """Refuse a result that would not be what the name stands for."""
    if not isinstance(inferred, Tensor):
        return
    for what in ("dtype", "shape", "device"):
        before, after = getattr(known, what), getattr(inferred, what)
        if before != after:
            raise BuildError(f"%{known.name} would have {what} {spell(after)}, not {spell(before)}")


def _check_written(op: Op, graph: Graph) -> None:
    """Refuse a pointwise op in place whose result torch would not write to its operand."""
    twin = changed(op, name=op.name.removesuffix("_"), written=frozenset())
    if not op.written or not any(schema.pointwise for schema in schemas_of(twin.name)):
        return
    with suppress(ShapeError, ImportError):
        inferred = next(tensors_in(infer(twin, graph.schemas, graph.dims, graph.device)))
        target = op.inputs[0]
        floats = inferred.dtype in DIGITS, target.dtype in DIGITS
        if inferred.shape != target.shape or floats == (True, False):
            wrong = f"{op.name} would write {shape_text(inferred)} to %{target.name}"
            raise BuildError(f"{wrong}, which is {shape_text(target)}")


def _check_bytes(op: Op, types: Sequence[Result]) -> None:
    """Refuse results that would be views where they were none, or the other way round."""
    held = {tensor.buffer for tensor in op.inputs}
    for made, inferred in zip(tensors_in(op.results), tensors_in(types), strict=False):
        if inferred.buffer and inferred.buffer != made.buffer:
            raise BuildError(f"%{made.name} would share the bytes of an operand of {op.name}")
        if not inferred.buffer and made.buffer in held:
            raise BuildError(f"%{made.name} would no longer share bytes with {op.name}'s operand")
