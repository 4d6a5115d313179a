"""Traces a Python function of one score to ``irgraph.ir.torch_schemas.score_functions``.

The function is called with scores of small sizes on meta, with one axis for each of sample, head,
query and key; a dispatch mode records its calls. Calls that are not element-wise are refused:
torch's ``vmap`` would apply them to each score, broadcasting would not.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

from irgraph.capture.common.torch_object import Torch
from irgraph.ir.dtypes import FROM_TORCH
from irgraph.ir.torch_schemas.score_functions import (
    NUMBER_MAKERS,
    SIZED_OPERATORS,
    index_tensors,
    is_elementwise,
)

ASIDE = "irgraph.aside"
"""Name of a range of calls that are not part of the step."""

SIZES = (2, 3, 5, 7)
"""Sizes of the traced scores: samples, heads, queries and keys."""

MESSAGE = "FlexAttention's {}: {}"


class UntraceableScoreError(NotImplementedError):
    """Raised for a function of FlexAttention that cannot be written as a function of one score."""


@contextlib.contextmanager
def without_recording() -> Iterator[None]:
    """Exclude the calls within the context from the recording."""
    from torch.autograd.profiler import record_function
    from torch.utils._python_dispatch import _disable_current_modes

    with record_function(ASIDE), _disable_current_modes():
        yield


def trace_function(
    function: Callable[..., Torch], score_dtype: Torch, buffers: list[Torch], device: Torch
) -> str:
    """Return a function's text; tensors that it reads are added to ``buffers``.

    ``score_dtype`` is the type of the score that is its first argument, ``None`` if it has none.

    Raises:
        UntraceableScoreError: the function has a call that the text cannot express.
    """
    import torch

    kind = "mask_mod" if score_dtype is None else "score_mod"
    with without_recording(), torch.no_grad():
        arguments = index_tensors(SIZES, device)
        if score_dtype is not None:
            arguments = {"s": torch.empty(SIZES, dtype=score_dtype, device=device), **arguments}
        text = _TracedCalls(kind, arguments, buffers, arguments["b"].device)
        try:
            with _tracing_mode(text):
                result = function(*arguments.values())
        except UntraceableScoreError:
            raise
        except Exception as error:
            raise UntraceableScoreError(MESSAGE.format(kind, _reason(error))) from error
        result_text = text.text_of(result)
        if getattr(result, "ndim", 0) not in (0, 4):
            raise UntraceableScoreError(
                MESSAGE.format(kind, "it returns more than one value for a score")
            )
    return "; ".join((*text.lines, result_text))


def _reason(error: Exception) -> str:
    message = (str(error).strip() or type(error).__name__).splitlines()[0]
    if "Boolean value" in message:
        return "it branches on a value: use torch.where"
    if "converted to" in message:
        return "it uses an index or a score as a Python number: keep lists in tensors"
    return message


def _tracing_mode(text: _TracedCalls) -> Torch:
    """Return a dispatch mode that records calls in ``text``."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class TracingMode(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Torch, types: Torch, args: Torch = (), kwargs: Torch = None
        ) -> Torch:
            return text.call(func, args, kwargs or {})

    return TracingMode()


class _TracedCalls:
    """The text of the calls so far.

    ``tensor_by_name`` has the function's arguments, ``buffers`` the other tensors that it reads, in
    order.
    """

    def __init__(
        self, kind: str, tensor_by_name: dict[str, Torch], buffers: list[Torch], device: Torch
    ) -> None:
        self.kind, self.buffers, self.device = kind, buffers, device
        self.lines: list[str] = []
        self.name_by_tensor = {tensor: name for name, tensor in tensor_by_name.items()}
        self.name_by_tensor |= {tensor: f"b{i}" for i, tensor in enumerate(buffers)}
        self.results: list[Torch] = []
        self.elements = set(tensor_by_name.values())

    def call(self, func: Torch, args: Torch, kwargs: Torch) -> Torch:
        """Run a call, add a line for it, and return its result."""
        keywords = {k: v for k, v in kwargs.items() if k not in PLACEMENT_ARGUMENTS}
        operator = func.name().partition("::")[2]
        operator = operator if "." in operator else f"{operator}.default"
        self._refuse(func, operator, args, keywords)
        words = [self.text_of(value) for value in args]
        words += [f"{key}={self.text_of(value)}" for key, value in keywords.items()]
        result = func(*args, **kwargs)
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name} = aten.{operator}({', '.join(words)})")
        self.name_by_tensor[result] = name
        self.results.append(result)
        if any(tensor in self.elements for tensor in _tensors(args)):
            self.elements.add(result)
        return result

    def _refuse(self, func: Torch, operator: str, args: Torch, keywords: Torch) -> None:
        """Raise ``UntraceableScoreError`` for a call that is not element-wise."""
        tensors = list(_tensors([*args, *keywords.values()]))
        sizes = [v for v in (*args[:2], keywords.get("size")) if isinstance(v, (list, tuple))]
        has_sizes = operator in SIZED_OPERATORS and any(map(len, sizes))
        if not is_elementwise(func) or has_sizes:
            reason = REASONS.get(operator, f"it calls {func.name()}, which does more")
            raise self._error(f"{reason} than compute one score")
        if operator == "index.Tensor":
            self._refuse_lookup(args)
        elif operator not in NUMBER_MAKERS:
            unindexed = [t for t in tensors if t not in self.elements and t.dim()]
            if unindexed and any(t in self.elements for t in tensors):
                raise self._error(
                    f"it takes a tensor of {list(unindexed[0].shape)} whole for each score"
                )
            if operator in ("select.int", "slice.Tensor") and args[0] in self.elements:
                raise self._error("it picks among scores")

    def _refuse_lookup(self, args: Torch) -> None:
        source, indices = args[0], list(args[1])
        has_elements = any(t is not None and t in self.elements for t in indices)
        is_complete = len(indices) == source.dim() and all(t is not None for t in indices)
        if source in self.elements or (has_elements and not is_complete):
            raise self._error("it indexes only some axes of a tensor: index all of them at once")

    def _error(self, reason: str) -> UntraceableScoreError:
        return UntraceableScoreError(MESSAGE.format(self.kind, reason))

    def text_of(self, value: Torch) -> str:
        """Return the text of a value."""
        import torch

        if isinstance(value, torch.Tensor):
            return self._tensor_name(value)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self.text_of, value))}]"
        if isinstance(value, torch.dtype):
            return FROM_TORCH.get(str(value).removeprefix("torch."), "f32")
        if isinstance(value, float) and not math.isfinite(value):
            return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        return repr(value)

    def _tensor_name(self, tensor: Torch) -> str:
        if tensor not in self.name_by_tensor:
            if tensor.device != self.device and not tensor.dim():
                return self.text_of(tensor.item())
            self.name_by_tensor[tensor] = f"b{len(self.buffers)}"
            self.buffers.append(tensor)
        return self.name_by_tensor[tensor]


PLACEMENT_ARGUMENTS = ("device", "pin_memory", "layout", "memory_format", "non_blocking")
"""Arguments that specify the device or the layout of a result."""

REASONS = {
    "_local_scalar_dense.default": "it branches on a value, or reads it on the host, which is more",
    "lift_fresh.default": "it makes a tensor of a number on the device (write the number): more",
}


def _tensors(values: Sequence[Torch]) -> Iterator[Torch]:
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
