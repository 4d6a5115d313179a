"""Parameters and batches on which numerics are executed: from a file, from a function, or drawn."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from irgraph.diagnostics import Place, fail, near
from irgraph.ir.dim import Dim, evaluate
from irgraph.ir.graph import Declared, Graph

SHAPE = 'a dictionary with "parameters" (by label or name), "batches" (a list, by input), "labels"'
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


def drawn(graph: Graph) -> Data:
    """Return one batch of values that the executor draws."""
    return Data([{}], dict(graph.dims), [], DRAWN)


def read_data(text: str, graph: Graph) -> Data:
    """Return the data of ``FILE.pt`` (``torch.save``) or ``FILE.py:FUNCTION``, fit to a model.

    Raises:
        IrgraphError: it cannot be read, or lacks or misnames a tensor of the model (exit code 2).
    """
    found = _loaded(text)
    if not isinstance(found, Mapping) or not isinstance(found.get("batches"), Sequence):
        raise fail("not the data of a model", Place(text), hint=SHAPE, exit_code=2)
    parameters = _parameters(found.get("parameters") or {}, graph, text)
    batches = [{**parameters, **_inputs(batch, graph, text)} for batch in found["batches"]]
    if not batches:
        raise fail("there is no batch", Place(text), hint=SHAPE, exit_code=2)
    labels = list(found.get("labels") or [])
    if labels and len(labels) != len(batches):
        raise fail(f"{len(labels)} labels for {len(batches)} batches", Place(text), exit_code=2)
    sizes = [_dims(batch, graph, text) for batch in batches]
    if any(size != sizes[0] for size in sizes):
        raise fail("batches differ in size", Place(text), exit_code=2)
    return Data(batches, sizes[0], labels, text)


def _loaded(text: str) -> Any:  # noqa: ANN401  (whatever the file holds)
    if ".py:" in text:
        from irgraph.capture.live.target import load_file, user_error

        path, _, name = text.rpartition(":")
        function = getattr(load_file(path), name, None)
        if not callable(function):
            raise fail(f"there is no function {name}", Place(path), hint=SHAPE, exit_code=2)
        try:
            return function()
        except Exception as error:
            raise user_error(f"{name} failed", error, path) from error
    import torch

    try:
        return torch.load(text, weights_only=True, map_location="cpu")
    except OSError as error:
        raise fail(f"cannot be read: {error.strerror}", Place(text), exit_code=2) from None
    except (RuntimeError, EOFError, pickle.UnpicklingError, ValueError, LookupError):
        message = "not a file of plain tensors that torch.save wrote"
        raise fail(message, Place(text), hint=SHAPE, exit_code=2) from None


def _parameters(given: Mapping[str, Any], graph: Graph, text: str) -> dict[str, Any]:
    """Return parameters by tensor name; all must be there."""
    params = [d for d in graph.tensors if d.role != "input" and d.value is None]
    found = {}
    for one in params:
        key = next((k for k in (one.label, one.tensor.name) if k and k in given), None)
        if key is None:
            name = one.label or f"%{one.tensor.name}"
            raise fail(f"there is no value of {name}", Place(text), hint=SHAPE, exit_code=2)
        found[one.tensor.name] = _fitting(given[key], one, text)
    return found


def _fitting(value: Any, one: Declared, text: str) -> Any:  # noqa: ANN401  (a tensor)
    import torch

    held = torch.as_tensor(value)
    wanted = tuple(map(int, one.tensor.shape))
    if tuple(held.shape) != wanted:
        message = f"{one.label or one.tensor.name} is {list(held.shape)}, not {list(wanted)}"
        raise fail(message, Place(text), exit_code=2)
    return held.detach()


def _inputs(batch: Any, graph: Graph, text: str) -> dict[str, Any]:  # noqa: ANN401
    names = [d.tensor.name for d in graph.tensors if d.role == "input" and d.value is None]
    if not isinstance(batch, Mapping):
        raise fail("a batch is no dictionary of inputs", Place(text), hint=SHAPE, exit_code=2)
    hint = f"inputs: {', '.join(names) or 'none'}"
    for name in batch:
        if name not in names:
            raise fail(f"no input is called {name!r}{near(str(name), names)}", Place(text),
                       hint=hint, exit_code=2)  # fmt: skip
    for name in names:
        if name not in batch:
            raise fail(f"a batch lacks %{name}", Place(text), hint=hint, exit_code=2)
    return dict(batch)


def _dims(batch: Mapping[str, Any], graph: Graph, text: str) -> dict[str, int]:
    """Return the sizes that the inputs give to the model's dimensions."""
    import torch

    found = dict(graph.dims)
    for declared in graph.tensors:
        if declared.tensor.name not in batch or declared.role != "input":
            continue
        held = torch.as_tensor(batch[declared.tensor.name])
        if held.dim() != declared.tensor.rank:
            raise fail(f"%{declared.tensor.name} has {held.dim()} axes, not {declared.tensor.rank}",
                       Place(text), exit_code=2)  # fmt: skip
        for said, real in zip(declared.tensor.shape, held.shape, strict=True):
            if isinstance(said, Dim) and str(said) in found:
                found[str(said)] = int(real)
    _check_sizes(batch, graph, found, text)
    return found


def _check_sizes(
    batch: Mapping[str, Any], graph: Graph, dims: Mapping[str, int], text: str
) -> None:
    """Refuse inputs of other sizes than the model's, or fractions where it takes whole numbers."""
    import torch

    for one in (d.tensor for d in graph.tensors if d.role == "input" and d.tensor.name in batch):
        held = torch.as_tensor(batch[one.name])
        wanted = [_sized(size, dims) for size in one.shape]
        if list(held.shape) != wanted:
            said = ", ".join(f"{name} = {size}" for name, size in dims.items())
            message = f"%{one.name} is {list(held.shape)}, not {wanted}"
            raise fail(message, Place(text), hint=f"with {said}" if said else "", exit_code=2)
        if held.is_floating_point() and one.dtype.startswith(("i", "u", "bool")):
            message = f"%{one.name} has fractions, and the model takes {one.dtype}"
            raise fail(message, Place(text), exit_code=2)


def _sized(size: int, dims: Mapping[str, int]) -> int:
    return evaluate(size.terms, dims) if isinstance(size, Dim) else int(size)
