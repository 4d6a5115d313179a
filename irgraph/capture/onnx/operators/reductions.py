"""Operators that reduce or accumulate along axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.onnx.bind import Convert, Ints, Number, UnsupportedError
from irgraph.capture.onnx.operators.elementwise import as_int64

Reduce = Callable[[Torch, tuple[int, ...], bool], Torch]


def _reduction(
    function: Reduce,
    before: Callable[[Torch], Torch] = lambda x: x,
    after: Callable[[Torch], Torch] = lambda x: x,
) -> Convert:
    """Return a converter that applies ``before``, reduces and applies ``after``."""

    def convert(
        x: Torch, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Torch:
        if not axes and noop_with_empty_axes:
            return after(before(x))
        dims = tuple(axis % max(x.ndim, 1) for axis in axes or range(x.ndim))
        return after(function(before(x), dims, bool(keepdims)))

    return convert


def _sum(x: Torch, dims: tuple[int, ...], keep: bool) -> Torch:
    return torch.sum(x, dims, keep, dtype=None if x.is_floating_point() else x.dtype)


def _extreme(function: Callable[..., Torch], largest: bool) -> Reduce:
    def reduce(x: Torch, dims: tuple[int, ...], keep: bool) -> Torch:
        if x.numel():
            return function(x, dims, keep)
        info = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
        end = info.min if largest else info.max
        end = float("-inf" if largest else "inf") if x.is_floating_point() else end
        return torch.full(_shape(x, dims, keep), end, dtype=x.dtype)

    return reduce


def _shape(x: Torch, dims: tuple[int, ...], keep: bool) -> list[int]:
    sizes = [1 if i in dims else n for i, n in enumerate(x.shape)]
    return sizes if keep else [n for i, n in enumerate(x.shape) if i not in dims]


def _prod(x: Torch, dims: tuple[int, ...], keep: bool) -> Torch:
    for dim in sorted(dims, reverse=True):
        x = torch.prod(x, dim, keep, dtype=x.dtype)
    return x


def _log_sum_exp(x: Torch, dims: tuple[int, ...], keep: bool) -> Torch:
    return torch.logsumexp(x, dims, keep)


def _norm(x: Torch, dims: tuple[int, ...], keep: bool) -> Torch:
    return torch.linalg.vector_norm(x, 2, dims, keep)


def _arg(function: Callable[..., Torch]) -> Convert:
    def convert(x: Torch, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Torch:
        if not select_last_index:
            return function(x, axis, bool(keepdims))
        return x.shape[axis] - 1 - function(x.flip(axis), axis, bool(keepdims))

    return convert


def _cumulative(function: Callable[..., Torch], neutral: int) -> Convert:
    def convert(x: Torch, axis: Number, *, exclusive: int = 0, reverse: int = 0) -> Torch:
        axis = int(axis)
        x = x.flip(axis) if reverse else x
        if exclusive:
            first = torch.full_like(x.narrow(axis, 0, 1), neutral)
            x = torch.cat([first, x.narrow(axis, 0, x.shape[axis] - 1)], axis)
        totals = function(x, axis, dtype=x.dtype)
        return totals.flip(axis) if reverse else totals

    return convert


def softmax(x: Torch, *, axis: int = -1) -> Torch:
    """``Softmax`` along one axis."""
    return torch.softmax(x, axis)


def log_softmax(x: Torch, *, axis: int = -1) -> Torch:
    """``LogSoftmax`` along one axis."""
    return torch.log_softmax(x, axis)


def hardmax(x: Torch, *, axis: int = -1) -> Torch:
    """``Hardmax``: one at the first maximum, zero elsewhere."""
    return torch.zeros_like(x).scatter(axis, x.argmax(axis, keepdim=True), 1.0)


def top_k(
    x: Torch, k: Number, *, axis: int = -1, largest: int = 1, sorted_: int = 1
) -> tuple[Torch, Torch]:
    """``TopK``."""
    values, indices = torch.topk(x, int(k), axis, bool(largest), bool(sorted_))
    return values, indices


def trilu(x: Torch, k: Number = 0, *, upper: int = 1) -> Torch:
    """``Trilu``: the upper or lower triangle."""
    return torch.triu(x, int(k)) if upper else torch.tril(x, int(k))


def lp_normalization(x: Torch, *, axis: int = -1, p: int = 2) -> Torch:
    """``LpNormalization``."""
    return torch.nn.functional.normalize(x, float(p), axis)


def nll_loss(
    x: Torch,
    target: Torch,
    weight: Torch = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Torch:
    """``NegativeLogLikelihoodLoss``."""
    target = as_int64(target)
    return torch.nn.functional.nll_loss(
        x, target, weight, ignore_index=ignore_index, reduction=reduction
    )


def cross_entropy(
    scores: Torch,
    target: Torch,
    weight: Torch = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> tuple[Torch, Torch]:
    """``SoftmaxCrossEntropyLoss`` and its log-probabilities."""
    logs = torch.log_softmax(scores, 1)
    loss = nll_loss(logs, target, weight, ignore_index=ignore_index, reduction=reduction)
    return loss, logs


def dft(
    x: Torch,
    dft_length: Number | None = None,
    axis: Number = -2,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Torch:
    """``DFT`` of numbers whose last axis is the real part, or both parts."""
    axis = int(axis) % x.ndim
    if axis == x.ndim - 1:
        raise UnsupportedError("its axis is the one of real and imaginary parts")
    size = None if dft_length is None else int(dft_length)
    if onesided and inverse:
        return torch.fft.irfft(torch.view_as_complex(x), size, axis).unsqueeze(-1)
    if onesided:
        return torch.view_as_real(torch.fft.rfft(x.squeeze(-1), size, axis))
    values = x.squeeze(-1) if x.shape[-1] == 1 else torch.view_as_complex(x.contiguous())
    function = torch.fft.ifft if inverse else torch.fft.fft
    return torch.view_as_real(function(values, size, axis))


REDUCTIONS: Mapping[str, Convert] = {
    "ReduceSum": _reduction(_sum),
    "ReduceMean": _reduction(torch.mean),
    "ReduceMax": _reduction(_extreme(torch.amax, True)),
    "ReduceMin": _reduction(_extreme(torch.amin, False)),
    "ReduceProd": _reduction(_prod),
    "ReduceL1": _reduction(_sum, before=torch.abs),
    "ReduceL2": _reduction(_norm, before=lambda x: x),
    "ReduceSumSquare": _reduction(_sum, before=torch.square),
    "ReduceLogSum": _reduction(_sum, after=torch.log),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
    "CumSum": _cumulative(torch.cumsum, 0),
    "CumProd": _cumulative(torch.cumprod, 1),
    "Softmax": softmax,
    "LogSoftmax": log_softmax,
    "Hardmax": hardmax,
    "TopK": top_k,
    "Trilu": trilu,
    "LpNormalization": lp_normalization,
    "NegativeLogLikelihoodLoss": nll_loss,
    "SoftmaxCrossEntropyLoss": cross_entropy,
    "DFT": dft,
}
