"""Builds the ops of a template for one match, and the results that the pattern does not name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from msgspec.structs import replace as changed

from irgraph.ir.dtypes import DIGITS
from irgraph.ir.edit import free_name, map_value
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Result, Value, tensors_in
from irgraph.ir.schema import schemas_of
from irgraph.ir.tensor import Tensor
from irgraph.language.expressions.attributes import shape_text
from irgraph.language.expressions.evaluate import Scope
from irgraph.language.expressions.values import format_count, spell
from irgraph.language.patterns.match import Match
from irgraph.language.patterns.nodes import Bound, ListTemplate, NewOp, Part, flatten_lists
from irgraph.language.templates.fill import BuildError, Filler
from irgraph.ops.inference import ShapeError, infer
from irgraph.ops.rules.call_errors import call_error

NO_TORCH = "inferring the types of new tensors needs torch, which is not installed"


def make_ops(
    new_ops: Sequence[NewOp],
    scope: Scope,
    match: Match,
    graph: Graph,
    used_names: set[str],
    *,
    checks_sharing: bool = True,
) -> tuple[list[Op], dict[str, Value]]:
    """Return the ops of a template in launch order, and the values of its names.

    Results that the pattern binds are the bound tensors. Other results are new tensors: torch
    infers their types, and their names are those of the template, made unique in ``used_names``.
    With ``checks_sharing``, results must share bytes with operands as before. Raises
    ``BuildError``.
    """
    values = dict(scope.values)
    ops: list[Op] = []
    for new in new_ops:
        filler = Filler([replace(scope, values=values)], [match.pairs[0].alignment.hidden])
        op = filler.make(replace(new, results=()), graph.schemas)
        types = _result_types(op, graph, needed=any(_unbound_flags(new, values)))
        _check_written(op, graph)
        op = changed(op, results=_results(new.results, types, values, used_names, new.op))
        if problem := call_error(op):
            raise BuildError(f"{op.name} {problem}")
        if checks_sharing:
            _check_sharing(op, types)
        ops.append(op)
    return ops, values


def _unbound_flags(new: NewOp, values: dict[str, Value]) -> Iterator[bool]:
    for part in flatten_lists(new.results):
        yield isinstance(part, Bound) and part.name not in values


def _result_types(op: Op, graph: Graph, needed: bool) -> Sequence[Result]:
    """Return the types of an op's results; ``()`` if they are unknown and not needed."""
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
    used_names: set[str],
    name: str,
) -> tuple[Result, ...]:
    results: list[Result] = []
    for i, part in enumerate(parts):
        inferred = types[i] if i < len(types) else None
        if isinstance(part, ListTemplate):
            inner = inferred if isinstance(inferred, tuple) else ()
            if types:
                _check_count(part, inferred, name)
            list_results = _results(part.items, inner, values, used_names, name)
            results.append(tuple(tensors_in(list_results)))
        elif isinstance(part, Bound):
            results.append(_result(part.name, inferred, values, used_names, name))
    return tuple(results)


def _check_count(part: ListTemplate, inferred: Result, name: str) -> None:
    """Refuse a list with a name too many or too few for the tensors that an op returns."""
    if isinstance(inferred, tuple) and len(part.items) != len(inferred):
        names = [str(item) for item in part.items]
        count = format_count(len(inferred), "tensor")
        message = f"{name} returns a list of {count}, and [{', '.join(names)}] names {len(names)}"
        first = next(iter(names), "%y")
        raise BuildError(f"{message}: write {first} = {name}(...) for the whole list")


def _result(
    part: str, inferred: Result, values: dict[str, Value], used_names: set[str], name: str
) -> Result:
    if part not in values and inferred is not None:
        values[part] = map_value(inferred, lambda tensor: _with_free_name(tensor, part, used_names))
    bound = values.get(part)
    if isinstance(bound, Tensor):
        _check_type(bound, inferred)
        return bound
    tensors = tuple(tensors_in((bound,)))
    types = tensors if inferred is None else tuple(tensors_in((inferred,)))
    if not isinstance(bound, tuple) or len(types) != len(tensors):
        raise BuildError(f"{name}: its result %{part} is no tensor, nor a list of as many")
    for tensor, inferred_type in zip(tensors, types, strict=True):
        _check_type(tensor, inferred_type)
    return tensors


def _with_free_name(inferred: Tensor, part: str, used_names: set[str]) -> Tensor:
    """Return a new tensor, with the template's name or a similar one."""
    new_name = free_name(part, used_names)
    used_names.add(new_name)
    return changed(inferred, name=new_name, buffer=inferred.buffer or new_name)


def _check_type(bound: Tensor, inferred: Result) -> None:
    """Refuse a result whose type differs from the type of the bound tensor."""
    if not isinstance(inferred, Tensor):
        return
    for attribute in ("dtype", "shape", "device"):
        before, after = getattr(bound, attribute), getattr(inferred, attribute)
        if before != after:
            raise BuildError(
                f"%{bound.name} would have {attribute} {spell(after)}, not {spell(before)}"
            )


def _check_written(op: Op, graph: Graph) -> None:
    """Refuse a pointwise op in place whose result torch would not write to its operand."""
    out_of_place = changed(op, name=op.name.removesuffix("_"), written=frozenset())
    if not op.written or not any(schema.pointwise for schema in schemas_of(out_of_place.name)):
        return
    with suppress(ShapeError, ImportError):
        inferred = next(tensors_in(infer(out_of_place, graph.schemas, graph.dims, graph.device)))
        target = op.inputs[0]
        floats = inferred.dtype in DIGITS, target.dtype in DIGITS
        if inferred.shape != target.shape or floats == (True, False):
            message = f"{op.name} would write {shape_text(inferred)} to %{target.name}"
            raise BuildError(f"{message}, which is {shape_text(target)}")


def _check_sharing(op: Op, types: Sequence[Result]) -> None:
    """Refuse results that would be views of operands but were not, or vice versa."""
    operand_buffers = {tensor.buffer for tensor in op.inputs}
    for result, inferred in zip(tensors_in(op.results), tensors_in(types), strict=False):
        if inferred.buffer and inferred.buffer != result.buffer:
            raise BuildError(f"%{result.name} would share the bytes of an operand of {op.name}")
        if not inferred.buffer and result.buffer in operand_buffers:
            raise BuildError(f"%{result.name} would no longer share bytes with {op.name}'s operand")
