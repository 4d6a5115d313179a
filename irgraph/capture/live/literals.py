"""Values that the program itself writes down: ``torch.tensor([1.0, 2.0])``.

Torch makes memory for them and fills it unseen, so that a recording shows ``aten.empty``. Here that
becomes ``aten.full``, or a copy of a constant that the model holds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from irgraph.capture.common.calls import CapturedCall, handles_in
from irgraph.capture.common.identity import Exact, Handle, Identities
from irgraph.capture.common.torch_object import Torch

MOST = 1024
"""Elements of the largest literal whose values a model holds."""

COMPLEX = ("c64", "c128")
"""Element types whose values a model cannot hold."""


def literal_values(tensor: Torch) -> tuple[Any, ...] | None:
    """Return the elements of a tensor on the host, ``None`` of one too large to be written down."""
    if tensor.device.type != "cpu" or not 0 < tensor.numel() <= MOST or tensor.is_complex():
        return None
    return tuple(tensor.detach().reshape(-1).tolist())


def with_literals(
    calls: Sequence[CapturedCall],
    literals: Sequence[tuple[Exact, tuple[Any, ...] | None]],
    identities: Identities,
) -> list[str]:
    """Give the memory of literals its values; return a sentence for those that are lost."""
    known = {handle.buffer: values for handle, values in _known(literals, identities)}
    for call in (inner for outer in calls for inner in outer.walk()):
        made = next(handles_in(call.results), None)
        if call.name == "aten.empty" and made is not None and known.get(made.buffer):
            _fill(call, made, known, identities)
    lost = Counter(
        f"literals of more than {MOST} elements"
        if math.prod(exact.shape) > MOST
        else "complex literals"
        if exact.dtype in COMPLEX
        else "literals made of tensors on the device"
        for exact, values in literals
        if values is None and 0 not in exact.shape
    )
    return [f"{what} ({count}): not kept" for what, count in lost.items()]


def _known(
    literals: Sequence[tuple[Exact, tuple[Any, ...] | None]], identities: Identities
) -> list[tuple[Handle, tuple[Any, ...] | None]]:
    found = ((identities.find_exact(exact), values) for exact, values in literals)
    return [(handle, values) for handle, values in found if handle is not None]


def _fill(
    call: CapturedCall,
    made: Handle,
    known: Mapping[int, tuple[Any, ...] | None],
    identities: Identities,
) -> None:
    values = known[made.buffer] or ()
    if len({repr(value) for value in values}) == 1:
        rest = {key: value for key, value in call.attributes.items() if key != "size"}
        call.name = "aten.full"
        call.attributes = {"size": made.shape, "fill_value": values[0], **rest}
        return
    identities.buffers += 1
    held = Handle(made.dtype, made.shape, None, identities.buffers, 0, "cpu", value=values)
    call.name, call.operands, call.attributes = "aten.lift_fresh_copy", [held], {}
