"""What a program sets in torch that other kernels follow from, and how torch was set before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from irgraph.ir.op import Value
from irgraph.ir.tf32 import CONVOLUTIONS, PRODUCTS

V = TypeVar("V")

PLACES = (
    ("generic", "all"), ("cuda", "all"), ("mkldnn", "all"), ("cuda", "matmul"), ("cuda", "conv"),
    ("cuda", "rnn"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"),
)  # fmt: skip
"""Where torch since 2.9 holds ``fp32_precision``: later ones can inherit from earlier ones."""


def float32_settings() -> dict[str, Value]:
    """Return how products and convolutions of float32 compute, where torch's defaults differ.

    Torch multiplies in float32, and lets cuDNN round to tf32, unless a program says otherwise
    (``torch.backends.cuda.matmul.allow_tf32``, ``torch.set_float32_matmul_precision``,
    ``torch.backends.fp32_precision``, ``torch.backends.cudnn.allow_tf32``).
    """
    products, convolutions = _rounded()
    found: dict[str, Value] = {PRODUCTS: True} if products else {}
    return found if convolutions else {**found, CONVOLUTIONS: False}


def _rounded() -> tuple[bool, bool]:
    import torch

    getter = getattr(torch._C, "_get_fp32_precision_getter", None)
    if getter is None:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    return getter("cuda", "matmul") == "tf32", getter("cuda", "conv") == "tf32"


DETERMINISTIC = (
    "the program asks for deterministic kernels, which can take longer; the usual ones are priced"
)


def deterministic_note() -> list[str]:
    """Return what is to be said where a program wants deterministic algorithms."""
    import torch

    wanted = torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic
    return [DETERMINISTIC] if wanted else []


@contextlib.contextmanager
def restored_switches() -> Iterator[None]:
    """Set torch back, in the end, to how it rounded and chose algorithms before."""
    import torch

    cudnn = torch.backends.cudnn
    strict, warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    flags = cudnn.deterministic, cudnn.benchmark
    try:
        with _kept_float32():
            yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warns)
        cudnn.deterministic, cudnn.benchmark = flags


@contextlib.contextmanager
def _kept_float32() -> Iterator[None]:
    import torch

    getter = getattr(torch._C, "_get_fp32_precision_getter", None)
    before = {place: getter(*place) for place in PLACES} if getter is not None else {}
    precision, by_cudnn = _legacy()
    try:
        yield
    finally:
        now = _legacy()
        if precision is not None and now[0] != precision:
            torch.set_float32_matmul_precision(precision)
        if by_cudnn is not None and now[1] != by_cudnn:
            torch.backends.cudnn.allow_tf32 = by_cudnn
        if getter is not None and any(getter(*place) != said for place, said in before.items()):
            for place, said in before.items():
                torch._C._set_fp32_precision_setter(*place, said)


def _legacy() -> tuple[str | None, bool | None]:
    """Return what torch's older calls say of products and of cuDNN.

    They raise where a program used the newer ones as well: None stands for that.
    """
    import torch

    return _said(torch.get_float32_matmul_precision), _said(lambda: torch.backends.cudnn.allow_tf32)


def _said(ask: Callable[[], V]) -> V | None:
    try:
        return ask()
    except RuntimeError:
        return None
