"""Families of kernels by their names."""

from __future__ import annotations

import re
from functools import cache

from irgraph.capture.kineto.reading.trace import Kind

COMMUNICATION = "communication"

_FAMILIES = (
    (COMMUNICATION, r"nccl|rccl|AllReduce|AllGather|ReduceScatter|SendRecv|all_?to_?all"),
    ("embedding", r"embedding|split_embedding|fbgemm|lookup"),
    ("convolution", r"conv|wgrad|dgrad|fprop|winograd|cudnn.*nchw|implicit"),
    ("gemm", r"gemm|cutlass|xmma|Cijk|matmul|cublas|dot_kernel|splitK"),
    ("attention", r"flash|fmha|attention"),
    ("normalization", r"batch_?norm|layer_?norm|bn_(?:fw|bw)|group_?norm|rms_?norm"),
    ("softmax", r"softmax"),
    ("optimizer", r"multi_tensor_apply|adam|sgd_|adagrad|foreach"),
    ("pooling", r"pool"),
    ("sort and scan", r"cub::|Scan|RadixSort|thrust|sort"),
    ("indexing", r"index|gather|scatter|Slice|CatArray|permute|transpose"),
    ("reduction", r"reduce"),
    ("elementwise", r"elementwise|vectorized|unrolled|fill|threshold|copy|FillFunctor|triton_poi"),
    ("random", r"random|philox|dropout|bernoulli"),
    ("compiled", r"triton"),
)
_PATTERNS = tuple((family, re.compile(pattern, re.IGNORECASE)) for family, pattern in _FAMILIES)


@cache
def family_of(name: str, kind: int) -> str:
    """Return the family of a device event by its name; copies and fills by their kind."""
    if kind == Kind.MEMCPY:
        return "copy"
    if kind == Kind.MEMSET:
        return "fill"
    return next((family for family, pattern in _PATTERNS if pattern.search(name)), "other")
