"""Which names of kernels and operators are those of public libraries, and hashes for the rest."""

from __future__ import annotations

import hashlib
import hmac
import re
from functools import cache

from irgraph.ir.schema import known_ops

NAMESPACES = frozenset((
    "aten", "prim", "prims", "torch", "torchvision", "autograd", "c10d", "c10d_functional",
    "_c10d_functional", "nccl", "quantized", "fbgemm", "sync", "irgraph", "profiler",
))  # fmt: skip
"""First words of operators that do not identify the program."""

_KERNEL_NAMESPACES = re.compile(
    r"at|at_cuda_detail|c10|std|const|cub|thrust|cuda|caffe2|cutlass\w*|cudnn\w*|cublas\w*|cusparse|"
    r"cufft|cask\w*|nccl|rocblas|miopen|ck|hip|rocprim|fbgemm_gpu|epilogue"
)
_KERNELS = re.compile(
    r"(?:void )?(?:(?:ampere|volta|turing|maxwell|hopper|sm\d+|gemmSN|gemv|dot|asum|scal|splitK|"
    r"cutlass|cudnn|cublas|nccl|Cijk|convolve|winograd|implicit|scudnn|hcudnn|dgrad|wgrad|fft|"
    r"xmma|nchw|nhwc|Memcpy|Memset|pointwise|bn_|cunn_|softmax|layer_norm|elementwise|reduce|"
    r"vectorized|indexing|gemm|split_embedding|dense_embedding|bounds_check_indices|"
    r"linearize_index|explicit_convolve|kernel(?:Pointwise|Reduce))\w*)"
)
_MANGLED = re.compile(r"_ZN(?:7cutlass|19cutlass_cudnn|2at|3c10)\w*")
_ROOT = re.compile(r"(?<![\w:])([A-Za-z_]\w*)::")
_BACKWARD = re.compile(r"(\w+?)Backward\d*")
_NODES = frozenset(("AccumulateGrad", "GraphRoot", "CopyBackwards", "CopySlices"))


def is_public_kernel(name: str) -> bool:
    """Return whether a kernel is of a public library, with all its template arguments."""
    name = name.replace("(anonymous namespace)::", "")
    roots = _ROOT.findall(name)
    if any(_KERNEL_NAMESPACES.fullmatch(root) is None for root in roots):
        return False
    outermost = name.removeprefix("void ").partition("::")[0]
    if _KERNEL_NAMESPACES.fullmatch(outermost):
        return True
    return any(known.match(name) is not None for known in (_KERNELS, _MANGLED))


def is_public_operator(name: str) -> bool:
    """Return whether an operator (``aten::add``, ``aten.add``) or autograd node is torch's own."""
    root, separator, rest = name.replace("::", ".").partition(".")
    last = rest.rpartition(".")[2] if separator else root
    node = _BACKWARD.fullmatch(last)
    if separator and root not in NAMESPACES:
        return False
    if node is None:
        return bool(separator) or last in _NODES
    return _squeezed(node.group(1)) in _operators()


@cache
def _operators() -> frozenset[str]:
    return frozenset(_squeezed(name.partition(".")[2]) for name in known_ops())


def _squeezed(name: str) -> str:
    return name.replace("_", "").lower()


def hashed(name: str, key: str) -> str:
    """Return twelve digits that stand for a name; the same only under the same key."""
    return hmac.new(key.encode(), name.encode(), hashlib.sha256).hexdigest()[:12]
