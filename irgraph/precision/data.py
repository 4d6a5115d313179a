"""Parameters and batches for executions: from a file, from a function, or random."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from irgraph.diagnostics import SourceSpan, fail, suggestion
from irgraph.ir.dim import Dim, evaluate
from irgraph.ir.graph import Declared, Graph
from irgraph.precision.values import check_kind, tensor_of

FORMAT_HINT = (
    'a dictionary with "parameters" (by label or name), "batches" (a list, by input), "labels"'
)
KEYS = ("parameters", "batches", "labels")
RANDOM_SOURCE = "drawn from seeds, not the program's own: errors of real parameters differ"


class Data(Struct, frozen=True):
    """Values for executions of a model.

    Attributes:
        batches: values by tensor name for each batch, with the parameters.
        dims: sizes of the model's dimensions in the batches.
        labels: labels of each batch, empty if there are none.
        source: source of the values, for messages.
    """

    batches: Sequence[Mapping[str, Any]]
    dims: Mapping[str, int]
    labels: Sequence[Any]
    source: str


def random_batch(graph: Graph) -> Data:
    """Return one batch whose values the executor draws at random."""
    return Data([{}], dict(graph.dims), [], RANDOM_SOURCE)


def read_data(text: str, graph: Graph) -> Data:
    """Return the data of ``FILE.pt`` (``torch.save``) or ``FILE.py:FUNCTION``, checked for a model.

    Raises:
        IrgraphError: it cannot be read, or tensors of the model are missing or misnamed (exit
            code 2).
    """
    content = _load(text)
    if not isinstance(content, Mapping) or not isinstance(content.get("batches"), list | tuple):
        raise fail("not the data of a model", SourceSpan(text), hint=FORMAT_HINT, exit_code=2)
    for name in (name for name in content if name not in KEYS):
        message = f"no part of the data is called {name!r}{suggestion(str(name), KEYS)}"
        raise fail(message, SourceSpan(text), hint=FORMAT_HINT, exit_code=2)
    parameters = _parameters(content.get("parameters"), graph, text)
    if not content["batches"]:
        raise fail("there is no batch", SourceSpan(text), hint=FORMAT_HINT, exit_code=2)
    batches, sizes = [], []
    for number, batch in enumerate(content["batches"], 1):
        span = SourceSpan(f"{text}: batch {number}")
        batches.append({**parameters, **_inputs(batch, graph, span)})
        sizes.append(_dims(batches[-1], graph, span))
    if any(size != sizes[0] for size in sizes):
        raise fail("batches differ in size", SourceSpan(text), exit_code=2)
    return Data(batches, sizes[0], _labels(content.get("labels"), len(batches), text), text)


def _labels(labels: Any, batches: int, text: str) -> list[Any]:  # noqa: ANN401
    """Return the labels of each batch as tensors, an empty list if there are none."""
    if labels is None:
        return []
    if not isinstance(labels, list | tuple):
        raise fail(
            "labels are not a list with a tensor for each batch", SourceSpan(text), exit_code=2
        )
    if labels and len(labels) != batches:
        raise fail(f"{len(labels)} labels for {batches} batches", SourceSpan(text), exit_code=2)
    spans = (SourceSpan(f"{text}: batch {number}") for number in range(1, batches + 1))
    return [
        tensor_of(batch_labels, "labels", span)
        for batch_labels, span in zip(labels, spans, strict=False)
    ]


def _load(text: str) -> Any:  # noqa: ANN401  (any content of a file)
    if ".py:" in text:
        from irgraph.capture.live.target import load_file, user_error

        path, _, name = text.rpartition(":")
        function = getattr(load_file(path), name, None)
        if not callable(function):
            raise fail(
                f"there is no function {name}", SourceSpan(path), hint=FORMAT_HINT, exit_code=2
            )
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
        raise fail(message, SourceSpan(text), hint=FORMAT_HINT, exit_code=2) from None


def _parameters(values: Any, graph: Graph, text: str) -> dict[str, Any]:  # noqa: ANN401
    """Return parameters by tensor name; raise ``IrgraphError`` if one is missing."""
    values = {} if values is None else values
    if not isinstance(values, Mapping):
        message = "parameters are not a dictionary like a state_dict"
        raise fail(message, SourceSpan(text), hint=FORMAT_HINT, exit_code=2)
    params = [d for d in graph.tensors if d.role != "input" and d.value is None]
    tensors = {}
    for declared in params:
        key = next((k for k in (declared.label, declared.tensor.name) if k and k in values), None)
        if key is None:
            name = declared.label or f"%{declared.tensor.name}"
            raise fail(
                f"there is no value of {name}", SourceSpan(text), hint=FORMAT_HINT, exit_code=2
            )
        tensors[declared.tensor.name] = _checked_tensor(values[key], declared, SourceSpan(text))
    return tensors


def _checked_tensor(value: Any, declared: Declared, span: SourceSpan) -> Any:  # noqa: ANN401  (a tensor)
    name = declared.label or declared.tensor.name
    tensor = tensor_of(value, name, span)
    shape = tuple(map(int, declared.tensor.shape))
    if tuple(tensor.shape) != shape:
        raise fail(f"{name} is {list(tensor.shape)}, not {list(shape)}", span, exit_code=2)
    check_kind(tensor, declared.tensor.dtype, name, span)
    return tensor


def _inputs(batch: Any, graph: Graph, span: SourceSpan) -> dict[str, Any]:  # noqa: ANN401
    names = [d.tensor.name for d in graph.tensors if d.role == "input" and d.value is None]
    if not isinstance(batch, Mapping):
        raise fail("a batch is not a dictionary of inputs", span, hint=FORMAT_HINT, exit_code=2)
    hint = f"inputs: {', '.join(names) or 'none'}"
    for name in batch:
        if name not in names:
            message = f"no input is called {name!r}{suggestion(str(name), names)}"
            raise fail(message, span, hint=hint, exit_code=2)
    for name in names:
        if name not in batch:
            raise fail(f"a batch lacks %{name}", span, hint=hint, exit_code=2)
    return {name: tensor_of(value, f"%{name}", span) for name, value in batch.items()}


def _dims(batch: Mapping[str, Any], graph: Graph, span: SourceSpan) -> dict[str, int]:
    """Return the sizes of the model's dimensions in a batch."""
    sizes = dict(graph.dims)
    for declared in (
        d.tensor for d in graph.tensors if d.role == "input" and d.tensor.name in batch
    ):
        tensor = batch[declared.name]
        if tensor.dim() != declared.rank:
            message = f"%{declared.name} has {tensor.dim()} axes, not {declared.rank}"
            raise fail(message, span, exit_code=2)
        axis_sizes = {
            str(dim): int(size)
            for dim, size in zip(declared.shape, tensor.shape, strict=True)
            if isinstance(dim, Dim) and str(dim) in sizes
        }
        if 0 in axis_sizes.values():
            message = f"%{declared.name} is {list(tensor.shape)}: the batch is empty"
            raise fail(message, span, exit_code=2)
        sizes |= axis_sizes
    _check_sizes(batch, graph, sizes, span)
    return sizes


def _check_sizes(
    batch: Mapping[str, Any], graph: Graph, dims: Mapping[str, int], span: SourceSpan
) -> None:
    """Raise ``IrgraphError`` for inputs of wrong sizes, or with fractions for an integer input."""
    for declared in (
        d.tensor for d in graph.tensors if d.role == "input" and d.tensor.name in batch
    ):
        tensor = batch[declared.name]
        shape = [_evaluate_size(size, dims) for size in declared.shape]
        if list(tensor.shape) != shape:
            dims_text = ", ".join(f"{name} = {size}" for name, size in dims.items())
            message = f"%{declared.name} is {list(tensor.shape)}, not {shape}"
            raise fail(message, span, hint=f"with {dims_text}" if dims_text else "", exit_code=2)
        check_kind(tensor, declared.dtype, f"%{declared.name}", span)


def _evaluate_size(size: int, dims: Mapping[str, int]) -> int:
    return evaluate(size.terms, dims) if isinstance(size, Dim) else int(size)
