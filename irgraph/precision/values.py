"""Values that somebody gave, as tensors: an odd one is refused with its name and place."""

from __future__ import annotations

from typing import Any

from irgraph.diagnostics import SourceSpan, fail
from irgraph.precision.metrics import single


def tensor_of(value: Any, name: str, where: SourceSpan) -> Any:  # noqa: ANN401  (a tensor)
    """Return a value as a tensor that holds a real number for each element.

    Raises:
        IrgraphError: it is no such tensor, nor a list of numbers (exit code 2).
    """
    import torch

    try:
        held = torch.as_tensor(value).detach()
    except (RuntimeError, TypeError, ValueError) as error:
        why = (str(error).splitlines() or [""])[0]
        message = f"{name} ({type(value).__name__}) cannot become a tensor: {why}"
        raise fail(message, where, exit_code=2) from None
    odd = "sparse" if held.layout != torch.strided else "complex" if held.is_complex() else ""
    odd = "quantized" if held.is_quantized else "meta" if held.is_meta else odd
    odd = "nested" if held.is_nested else odd
    if odd:
        message = f"{name} is a {odd} tensor: a dense one of real numbers is taken"
        raise fail(message, where, exit_code=2)
    return held


def check_kind(held: Any, dtype: str, name: str, where: SourceSpan) -> None:  # noqa: ANN401
    """Refuse fractions, or truth values, where a model takes whole numbers."""
    import torch

    whole = dtype.startswith(("i", "u"))
    if held.is_floating_point() and (whole or dtype == "bool"):
        raise fail(f"{name} has fractions, and the model takes {dtype}", where, exit_code=2)
    if held.dtype == torch.bool and whole:
        raise fail(f"{name} has truth values, and the model takes {dtype}", where, exit_code=2)


def check_labels(labels: Any, logits: Any, where: SourceSpan) -> None:  # noqa: ANN401
    """Refuse labels that are none of the predictions that logits make.

    Of one event each (logits [N] or [N, 1]) a label is a chance from 0 to 1, of C classes
    ([..., C]) the number of a class.
    """
    events = single(logits)
    count = logits.numel() if events else logits.numel() // int(logits.shape[-1])
    if labels.numel() != count:
        message = f"{labels.numel()} labels for {count} predictions"
        raise fail(message, where, exit_code=2)
    most = 1 if events else int(logits.shape[-1]) - 1
    held = labels.double()
    if events:
        fine, what = (held >= 0) & (held <= most), "a label is a chance from 0 to 1"
    else:
        fine = (held >= 0) & (held <= most) & (held == held.round())
        what = f"a label is the number of a class, 0 to {most}"
    if not bool(fine.all()):
        raise fail(f"labels hold {float(held[~fine][0]):g}, and {what}", where, exit_code=2)
