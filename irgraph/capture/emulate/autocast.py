"""``torch.autocast`` on meta tensors, as it works for a CUDA device.

Torch's own autocast kernels cast CUDA tensors only. Here the operators that they cover cast meta
tensors, by torch's lists for CUDA (``ATen/autocast_mode.h`` of PyTorch 2.13), and nest calls like
torch's kernels: ``linear`` around its casts and the ``linear`` of the cast tensors.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from unittest import mock

from irgraph.capture.common.torch_object import Torch

LOWER = """
_convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d
conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum
mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot
_cudnn_rnn _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
_scaled_dot_product_flash_attention scaled_dot_product_attention
"""
"""Operators that run in the lower precision."""

SINGLE = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm
frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss
cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss
huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
_upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
_upsample_bicubic2d_aa
"""
"""Operators that run in f32."""

SINGLE_RESULT = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
"""Operators that do not cast their operand and return f32, unless another type is specified."""

WIDEST = """
addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
"""
"""Operators whose operands are all cast to the widest type among them."""


@contextlib.contextmanager
def autocast_on_meta() -> Iterator[None]:
    """Enable ``torch.autocast`` for ``cuda`` and ``meta`` on meta tensors within the context."""
    import torch
    from torch.amp import autocast_mode
    from torch.cuda.amp import common

    casts = _Casts()
    original_init, clear_cache = autocast_mode.autocast.__init__, torch.clear_autocast_cache

    def init(self: Torch, device_type: Torch, *args: Torch, **kwargs: Torch) -> None:
        original_init(self, "cuda" if device_type == "meta" else device_type, *args, **kwargs)

    def clear_casts() -> None:
        casts.cast_by_parameter.clear()
        clear_cache()

    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (torch, "is_autocast_enabled", _with_cuda_for_meta(torch.is_autocast_enabled)),
            (torch, "get_autocast_dtype", _with_cuda_for_meta(torch.get_autocast_dtype)),
            (
                torch.amp,
                "is_autocast_available",
                _with_cuda_for_meta(torch.amp.is_autocast_available),
            ),
            (autocast_mode.autocast, "__init__", init),
            (torch, "clear_autocast_cache", clear_casts),
            (common, "amp_definitely_not_available", lambda: False),
            (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        stack.callback(_register(casts)._destroy)
        stack.enter_context(torch._C._IncludeDispatchKeyGuard(casts.key))
        yield


def _with_cuda_for_meta(function: Callable[..., Torch]) -> Callable[..., Torch]:
    """Return a function of a device type that returns for ``meta`` the result for ``cuda``."""

    def answer(*args: Torch) -> Torch:
        return function(*("cuda" if arg == "meta" else arg for arg in args))

    return answer


class _Casts:
    """The casts of one capture's autocast regions.

    Attributes:
        cast_by_parameter: the cast of each parameter, which a region makes once.
        busy: whether an operator's own calls are running, whose arguments are not cast.
        key: torch's dispatch key of the kernels that cast.
    """

    def __init__(self) -> None:
        import torch

        self.cast_by_parameter: dict[Torch, Torch] = {}
        self.busy = False
        self.key = torch._C.DispatchKey.AutocastCUDA

    def cast(self, value: Torch, dtype: Torch) -> Torch:
        """Return an argument with its floating-point meta tensors cast to ``dtype``."""
        import torch

        if isinstance(value, (list, tuple)):
            return type(value)(self.cast(item, dtype) for item in value)
        if not _is_eligible(value) or value.dtype == dtype:
            return value
        is_cacheable = (
            dtype == torch.get_autocast_dtype("cuda")
            and torch.is_autocast_cache_enabled()
            and value.requires_grad
            and not value._is_view()
            and value.is_leaf
        )
        if not is_cacheable:
            return value.to(dtype)
        if value not in self.cast_by_parameter:
            self.cast_by_parameter[value] = value.to(dtype)
        return self.cast_by_parameter[value]

    @contextlib.contextmanager
    def operator_call(self) -> Iterator[bool]:
        """Enter an operator; yield whether its arguments are to be cast."""
        import torch

        outer, self.busy = self.busy, True
        try:
            with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(self.key)):
                yield not outer
        finally:
            self.busy = outer


def _is_eligible(value: Torch) -> bool:
    import torch

    if not isinstance(value, torch.Tensor) or value.device.type != "meta":
        return False
    return bool(value.is_floating_point() and value.dtype != torch.float64)


def _register(casts: _Casts) -> Torch:
    """Return a library with a casting kernel for every operator of the lists."""
    from torch.library import Library

    library = Library("aten", "IMPL")
    lists = (
        (LOWER, _lower_dtype),
        (SINGLE, _single_dtype),
        (SINGLE_RESULT, _single_dtype),
        (WIDEST, _widest_dtype),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that its own kernels are replaced
        for names, dtype_for in lists:
            for name, operator in _operators(names):
                kernel = _kernel(operator, dtype_for, casts, names is SINGLE_RESULT)
                library.impl(name, kernel, "AutocastCUDA")
    return library


def _operators(names: str) -> Iterator[tuple[str, Torch]]:
    """Yield the names of a list whose operators this torch has, with the operators."""
    import torch

    for name in names.split():
        base, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, base, None)
        operator = getattr(packet, overload or "default", None)
        if operator is not None:
            yield name, operator


def _kernel(
    operator: Torch, dtype_for: Callable[[Torch], Torch], casts: _Casts, single_result: bool
) -> Callable[..., Torch]:
    """Return the kernel that runs instead of an operator while autocast is on."""

    def kernel(*args: Torch, **kwargs: Torch) -> Torch:
        with casts.operator_call() as is_outermost:
            if is_outermost and single_result and args and _is_eligible(args[0]):
                return _call_in_single(operator, args, kwargs)
            if is_outermost:
                dtype = dtype_for(args)
                args = casts.cast(args, dtype)
                kwargs = {name: casts.cast(value, dtype) for name, value in kwargs.items()}
            return operator(*args, **kwargs)

    return kernel


def _call_in_single(operator: Torch, args: Torch, kwargs: Torch) -> Torch:
    """Call an operator that has its result's type as an argument: f32, unless one is given."""
    import torch

    if any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values())):
        return operator(*args, **kwargs)
    if args[0].dtype == torch.float16 and operator in _softmax_kernels():
        return _softmax_kernels()[operator](*args[:2], True)
    return operator(*args, **kwargs, dtype=torch.float32)


def _softmax_kernels() -> dict[Torch, Torch]:
    """Return the ops that CUDA runs instead of a softmax of f16 with a result of f32."""
    import torch

    ops = torch.ops.aten
    return {ops.softmax.int: ops._softmax, ops.log_softmax.int: ops._log_softmax}


def _lower_dtype(args: Torch) -> Torch:
    import torch

    return torch.get_autocast_dtype("cuda")


def _single_dtype(args: Torch) -> Torch:
    import torch

    return torch.float32


def _widest_dtype(args: Torch) -> Torch:
    """Return the widest of the autocast type and the operands' types."""
    import torch

    values = [item for arg in args for item in (arg if isinstance(arg, (list, tuple)) else [arg])]
    single = any(_is_eligible(value) and value.dtype == torch.float32 for value in values)
    return torch.float32 if single else torch.get_autocast_dtype("cuda")
