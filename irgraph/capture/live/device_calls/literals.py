"""Literal values in the text of a program: ``torch.tensor([1.0, 2.0])``.

Torch allocates memory for them and fills it without a dispatched call, so a recording has
``aten.empty``. Here this becomes ``aten.full``, or a copy of a constant in the model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from irgraph.capture.common.calls import CapturedCall, handles_in
from irgraph.capture.common.identity import Exact, Handle, Identities
from irgraph.capture.common.torch_object import Torch

MAX_ELEMENTS = 1024
"""Maximum number of elements of a literal whose values a model stores."""

COMPLEX = ("c64", "c128")
"""Element types whose values a model cannot store."""


def literal_values(tensor: Torch) -> tuple[Any, ...] | None:
    """Return the elements of a host tensor, ``None`` if a model cannot store them."""
    if tensor.device.type != "cpu" or not 0 < tensor.numel() <= MAX_ELEMENTS or tensor.is_complex():
        return None
    return tuple(tensor.detach().reshape(-1).tolist())


def with_literals(
    calls: Sequence[CapturedCall],
    literals: Sequence[tuple[Exact, tuple[Any, ...] | None]],
    identities: Identities,
) -> list[str]:
    """Add the values of literals to calls; return a sentence for each kind of omitted literal."""
    values_by_buffer = {
        handle.buffer: values for handle, values in _literal_handles(literals, identities)
    }
    for call in (inner for outer in calls for inner in outer.walk()):
        result = next(handles_in(call.results), None)
        if call.name == "aten.empty" and result is not None and values_by_buffer.get(result.buffer):
            _fill(call, result, values_by_buffer, identities)
    omitted = Counter(
        f"literals of more than {MAX_ELEMENTS} elements"
        if math.prod(exact.shape) > MAX_ELEMENTS
        else "complex literals"
        if exact.dtype in COMPLEX
        else "literals made of tensors on the device"
        for exact, values in literals
        if values is None and 0 not in exact.shape
    )
    return [f"{label} ({count}): not kept" for label, count in omitted.items()]


def _literal_handles(
    literals: Sequence[tuple[Exact, tuple[Any, ...] | None]], identities: Identities
) -> list[tuple[Handle, tuple[Any, ...] | None]]:
    pairs = ((identities.find_exact(exact), values) for exact, values in literals)
    return [(handle, values) for handle, values in pairs if handle is not None]


def _fill(
    call: CapturedCall,
    result: Handle,
    values_by_buffer: Mapping[int, tuple[Any, ...] | None],
    identities: Identities,
) -> None:
    values = values_by_buffer[result.buffer] or ()
    if len({repr(value) for value in values}) == 1:
        rest = {key: value for key, value in call.attributes.items() if key != "size"}
        call.name = "aten.full"
        call.attributes = {"size": result.shape, "fill_value": values[0], **rest}
        return
    identities.buffers += 1
    constant = Handle(result.dtype, result.shape, None, identities.buffers, 0, "cpu", value=values)
    call.name, call.operands, call.attributes = "aten.lift_fresh_copy", [constant], {}
