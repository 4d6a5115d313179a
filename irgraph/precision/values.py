"""Conversion of user-supplied values to tensors, with errors that name the value."""

from __future__ import annotations

from typing import Any

from irgraph.diagnostics import SourceSpan, fail
from irgraph.precision.metrics import is_binary


def tensor_of(value: Any, name: str, span: SourceSpan) -> Any:  # noqa: ANN401  (a tensor)
    """Return a value as a dense tensor of real numbers.

    Raises:
        IrgraphError: it is neither such a tensor nor a list of numbers (exit code 2).
    """
    import torch

    try:
        tensor = torch.as_tensor(value).detach()
    except (RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [""])[0]
        message = f"{name} ({type(value).__name__}) cannot become a tensor: {reason}"
        raise fail(message, span, exit_code=2) from None
    unsupported = (
        "sparse" if tensor.layout != torch.strided else "complex" if tensor.is_complex() else ""
    )
    unsupported = "quantized" if tensor.is_quantized else "meta" if tensor.is_meta else unsupported
    unsupported = "nested" if tensor.is_nested else unsupported
    if unsupported:
        message = f"{name} is a {unsupported} tensor: a dense one of real numbers is taken"
        raise fail(message, span, exit_code=2)
    return tensor


def check_kind(tensor: Any, dtype: str, name: str, span: SourceSpan) -> None:  # noqa: ANN401
    """Raise ``IrgraphError`` for fractions or Booleans if the model expects integers."""
    import torch

    is_integer = dtype.startswith(("i", "u"))
    if tensor.is_floating_point() and (is_integer or dtype == "bool"):
        raise fail(f"{name} has fractions, and the model takes {dtype}", span, exit_code=2)
    if tensor.dtype == torch.bool and is_integer:
        raise fail(f"{name} has truth values, and the model takes {dtype}", span, exit_code=2)


def check_labels(labels: Any, logits: Any, span: SourceSpan) -> None:  # noqa: ANN401
    """Raise ``IrgraphError`` for labels that do not match the predictions of logits.

    For binary logits ([N] or [N, 1]) a label is a probability, for C classes ([..., C]) the index
    of a class.
    """
    is_event = is_binary(logits)
    count = logits.numel() if is_event else logits.numel() // int(logits.shape[-1])
    if labels.numel() != count:
        message = f"{labels.numel()} labels for {count} predictions"
        raise fail(message, span, exit_code=2)
    max_label = 1 if is_event else int(logits.shape[-1]) - 1
    values = labels.double()
    if is_event:
        valid, rule = (values >= 0) & (values <= max_label), "a label is a chance from 0 to 1"
    else:
        valid = (values >= 0) & (values <= max_label) & (values == values.round())
        rule = f"a label is the number of a class, 0 to {max_label}"
    if not bool(valid.all()):
        raise fail(f"labels hold {float(values[~valid][0]):g}, and {rule}", span, exit_code=2)
