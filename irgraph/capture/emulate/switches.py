"""Settings of torch that change the choice of kernels: reads them, and restores them at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from irgraph.ir.op import Value
from irgraph.ir.tf32 import CONVOLUTIONS, PRODUCTS

V = TypeVar("V")

PRECISION_KEYS = (
    ("generic", "all"), ("cuda", "all"), ("mkldnn", "all"), ("cuda", "matmul"), ("cuda", "conv"),
    ("cuda", "rnn"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"),
)  # fmt: skip
"""Keys of ``fp32_precision`` in torch since 2.9; later ones can inherit from earlier ones."""


def float32_settings() -> dict[str, Value]:
    """Return the precision settings of float32 products and convolutions that are not defaults.

    By default, torch multiplies in float32, and cuDNN rounds to tf32; a program can change this
    (``torch.backends.cuda.matmul.allow_tf32``, ``torch.set_float32_matmul_precision``,
    ``torch.backends.fp32_precision``, ``torch.backends.cudnn.allow_tf32``).
    """
    products, convolutions = _tf32_flags()
    settings: dict[str, Value] = {PRODUCTS: True} if products else {}
    return settings if convolutions else {**settings, CONVOLUTIONS: False}


def _tf32_flags() -> tuple[bool, bool]:
    import torch

    getter = getattr(torch._C, "_get_fp32_precision_getter", None)
    if getter is None:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    return getter("cuda", "matmul") == "tf32", getter("cuda", "conv") == "tf32"


DETERMINISTIC = (
    "the program asks for deterministic kernels, which can take longer; the usual ones are priced"
)


def deterministic_note() -> list[str]:
    """Return a note if the program requires deterministic algorithms."""
    import torch

    is_deterministic = (
        torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic
    )
    return [DETERMINISTIC] if is_deterministic else []


@contextlib.contextmanager
def restored_switches() -> Iterator[None]:
    """Restore torch's rounding and choice of algorithms at the end of the context."""
    import torch

    cudnn = torch.backends.cudnn
    strict, warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    flags = cudnn.deterministic, cudnn.benchmark
    try:
        with _restored_float32():
            yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warns)
        cudnn.deterministic, cudnn.benchmark = flags


@contextlib.contextmanager
def _restored_float32() -> Iterator[None]:
    import torch

    getter = getattr(torch._C, "_get_fp32_precision_getter", None)
    settings = {place: getter(*place) for place in PRECISION_KEYS} if getter is not None else {}
    precision, by_cudnn = _legacy_settings()
    try:
        yield
    finally:
        current = _legacy_settings()
        if precision is not None and current[0] != precision:
            torch.set_float32_matmul_precision(precision)
        if by_cudnn is not None and current[1] != by_cudnn:
            torch.backends.cudnn.allow_tf32 = by_cudnn
        if getter is not None and any(
            getter(*place) != setting for place, setting in settings.items()
        ):
            for place, setting in settings.items():
                torch._C._set_fp32_precision_setter(*place, setting)


def _legacy_settings() -> tuple[str | None, bool | None]:
    """Return the precision of products and cuDNN's tf32 flag by torch's older functions.

    A setting is ``None`` if its function raises, because the program also used the newer ones.
    """
    import torch

    return _value_or_none(torch.get_float32_matmul_precision), _value_or_none(
        lambda: torch.backends.cudnn.allow_tf32
    )


def _value_or_none(getter: Callable[[], V]) -> V | None:
    try:
        return getter()
    except RuntimeError:
        return None
