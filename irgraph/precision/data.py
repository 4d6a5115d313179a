"""Parameters and batches on which numerics are executed: from a file, from a function, or drawn."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from irgraph.diagnostics import SourceSpan, fail, suggestion
from irgraph.ir.dim import Dim, evaluate
from irgraph.ir.graph import Declared, Graph
from irgraph.precision.values import check_kind, tensor_of

SHAPE = 'a dictionary with "parameters" (by label or name), "batches" (a list, by input), "labels"'
PARTS = ("parameters", "batches", "labels")
DRAWN = "drawn from seeds, not the program's own: errors of real parameters differ"


class Data(Struct, frozen=True):
    """What a model is executed on.

    Attributes:
        batches: values by tensor name, parameters among them, for each batch.
        dims: sizes of the model's dimensions that the batches have.
        labels: clicks of each batch, if they are known.
        source: where all of it comes from.
    """

    batches: Sequence[Mapping[str, Any]]
    dims: Mapping[str, int]
    labels: Sequence[Any]
    source: str


def random_batch(graph: Graph) -> Data:
    """Return one batch of values that the executor draws."""
    return Data([{}], dict(graph.dims), [], DRAWN)


def read_data(text: str, graph: Graph) -> Data:
    """Return the data of ``FILE.pt`` (``torch.save``) or ``FILE.py:FUNCTION``, fit to a model.

    Raises:
        IrgraphError: it cannot be read, or lacks or misnames a tensor of the model (exit code 2).
    """
    found = _loaded(text)
    if not isinstance(found, Mapping) or not isinstance(found.get("batches"), list | tuple):
        raise fail("not the data of a model", SourceSpan(text), hint=SHAPE, exit_code=2)
    for name in (name for name in found if name not in PARTS):
        message = f"no part of the data is called {name!r}{suggestion(str(name), PARTS)}"
        raise fail(message, SourceSpan(text), hint=SHAPE, exit_code=2)
    parameters = _parameters(found.get("parameters"), graph, text)
    if not found["batches"]:
        raise fail("there is no batch", SourceSpan(text), hint=SHAPE, exit_code=2)
    batches, sizes = [], []
    for number, batch in enumerate(found["batches"], 1):
        where = SourceSpan(f"{text}: batch {number}")
        batches.append({**parameters, **_inputs(batch, graph, where)})
        sizes.append(_dims(batches[-1], graph, where))
    if any(size != sizes[0] for size in sizes):
        raise fail("batches differ in size", SourceSpan(text), exit_code=2)
    return Data(batches, sizes[0], _labels(found.get("labels"), len(batches), text), text)


def _labels(given: Any, batches: int, text: str) -> list[Any]:  # noqa: ANN401
    """Return the labels of each batch as tensors; none if there are none."""
    if given is None:
        return []
    if not isinstance(given, list | tuple):
        raise fail(
            "labels are not a list with a tensor for each batch", SourceSpan(text), exit_code=2
        )
    if given and len(given) != batches:
        raise fail(f"{len(given)} labels for {batches} batches", SourceSpan(text), exit_code=2)
    places = (SourceSpan(f"{text}: batch {number}") for number in range(1, batches + 1))
    return [tensor_of(one, "labels", where) for one, where in zip(given, places, strict=False)]


def _loaded(text: str) -> Any:  # noqa: ANN401  (whatever the file holds)
    if ".py:" in text:
        from irgraph.capture.live.target import load_file, user_error

        path, _, name = text.rpartition(":")
        function = getattr(load_file(path), name, None)
        if not callable(function):
            raise fail(f"there is no function {name}", SourceSpan(path), hint=SHAPE, exit_code=2)
        try:
            return function()
        except Exception as error:
            raise user_error(f"{name} failed", error, path) from error
    import torch

    try:
        return torch.load(text, weights_only=True, map_location="cpu")
    except OSError as error:
        raise fail(f"cannot be read: {error.strerror}", SourceSpan(text), exit_code=2) from None
    except (RuntimeError, EOFError, pickle.UnpicklingError, ValueError, LookupError):
        message = "not a file of plain tensors that torch.save wrote"
        raise fail(message, SourceSpan(text), hint=SHAPE, exit_code=2) from None


def _parameters(given: Any, graph: Graph, text: str) -> dict[str, Any]:  # noqa: ANN401
    """Return parameters by tensor name; all must be there."""
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        message = "parameters are not a dictionary like a state_dict"
        raise fail(message, SourceSpan(text), hint=SHAPE, exit_code=2)
    params = [d for d in graph.tensors if d.role != "input" and d.value is None]
    found = {}
    for one in params:
        key = next((k for k in (one.label, one.tensor.name) if k and k in given), None)
        if key is None:
            name = one.label or f"%{one.tensor.name}"
            raise fail(f"there is no value of {name}", SourceSpan(text), hint=SHAPE, exit_code=2)
        found[one.tensor.name] = _fitting(given[key], one, SourceSpan(text))
    return found


def _fitting(value: Any, one: Declared, where: SourceSpan) -> Any:  # noqa: ANN401  (a tensor)
    name = one.label or one.tensor.name
    held = tensor_of(value, name, where)
    wanted = tuple(map(int, one.tensor.shape))
    if tuple(held.shape) != wanted:
        raise fail(f"{name} is {list(held.shape)}, not {list(wanted)}", where, exit_code=2)
    check_kind(held, one.tensor.dtype, name, where)
    return held


def _inputs(batch: Any, graph: Graph, where: SourceSpan) -> dict[str, Any]:  # noqa: ANN401
    names = [d.tensor.name for d in graph.tensors if d.role == "input" and d.value is None]
    if not isinstance(batch, Mapping):
        raise fail("a batch is not a dictionary of inputs", where, hint=SHAPE, exit_code=2)
    hint = f"inputs: {', '.join(names) or 'none'}"
    for name in batch:
        if name not in names:
            message = f"no input is called {name!r}{suggestion(str(name), names)}"
            raise fail(message, where, hint=hint, exit_code=2)
    for name in names:
        if name not in batch:
            raise fail(f"a batch lacks %{name}", where, hint=hint, exit_code=2)
    return {name: tensor_of(value, f"%{name}", where) for name, value in batch.items()}


def _dims(batch: Mapping[str, Any], graph: Graph, where: SourceSpan) -> dict[str, int]:
    """Return the sizes that the inputs give to the model's dimensions."""
    found = dict(graph.dims)
    for one in (d.tensor for d in graph.tensors if d.role == "input" and d.tensor.name in batch):
        held = batch[one.name]
        if held.dim() != one.rank:
            message = f"%{one.name} has {held.dim()} axes, not {one.rank}"
            raise fail(message, where, exit_code=2)
        given = {
            str(said): int(real)
            for said, real in zip(one.shape, held.shape, strict=True)
            if isinstance(said, Dim) and str(said) in found
        }
        if 0 in given.values():
            message = f"%{one.name} is {list(held.shape)}: the batch is empty"
            raise fail(message, where, exit_code=2)
        found |= given
    _check_sizes(batch, graph, found, where)
    return found


def _check_sizes(
    batch: Mapping[str, Any], graph: Graph, dims: Mapping[str, int], where: SourceSpan
) -> None:
    """Refuse inputs of other sizes than the model's, or fractions where it takes whole numbers."""
    for one in (d.tensor for d in graph.tensors if d.role == "input" and d.tensor.name in batch):
        held = batch[one.name]
        wanted = [_sized(size, dims) for size in one.shape]
        if list(held.shape) != wanted:
            said = ", ".join(f"{name} = {size}" for name, size in dims.items())
            message = f"%{one.name} is {list(held.shape)}, not {wanted}"
            raise fail(message, where, hint=f"with {said}" if said else "", exit_code=2)
        check_kind(held, one.dtype, f"%{one.name}", where)


def _sized(size: int, dims: Mapping[str, int]) -> int:
    return evaluate(size.terms, dims) if isinstance(size, Dim) else int(size)
