"""Families of kernels by their names."""

from __future__ import annotations

import re
from functools import cache

from irgraph.capture.kineto.reading.trace import EventKind

COMMUNICATION = "communication"

_FAMILIES = (
    (
        COMMUNICATION,
        r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|SendRecv|all_?to_?all|"
        r"multimem_|cross_device_reduce|nvshmem|deep_?ep::",
    ),
    ("fft", r"fft\d|regular_fft|vector_fft|cufft"),
    ("indexing", r"reshape_and_cache"),
    (
        "attention",
        r"flash(?!infer)|fmha|attention|attn_?(?:fwd|bwd)|_attn_|BatchPrefill|BatchDecode|"
        r"SinglePrefill|SingleDecode|merge_?attn|mla_(?:fwd|decode|splitkv)",
    ),
    ("normalization", r"batch_?norm|layer_?norm|bn_(?:fw|bw)|group_?norm|rms_?norm|rmsnorm|l2norm"),
    (
        "elementwise",
        r"rotary|rope_|_rope|act_and_mul|swiglu_kernel|convert_fp8|_quant_kernel|"
        r"quantize_kernel|scaled_fp8_quant|per_token_(?:group_)?quant",
    ),
    (
        "embedding",
        r"embedding|fbgemm_gpu::(?:permute|linearize)|lookup|bounds_check_indices|"
        r"linearize_index",
    ),
    ("layout", r"nchwToNhwc|nhwcToNchw|tensorTransform"),
    (
        "convolution",
        r"conv(?!ert)|wgrad|dgrad|fprop|winograd|cudnn.*nchw|implicit|scudnn|hcudnn|"
        r"im2col|miopenSp3Asm|igemm_(?:fwd|bwd|wrw)|cudnn::|Op2dTensor|cask_cudnn",
    ),
    (
        "gemm",
        r"gemm|gemv|cutlass|xmma|Cijk|matmul|cublas|dot_kernel|splitK|nvjet|(?<![a-z])bmm_|"
        r"marlin|machete|fused_moe_kernel|_scaled_mm|grouped_mm|(?<![a-z])mm_kernel|"
        r"triton_tem_fused_\w*mm",
    ),
    ("softmax", r"softmax"),
    ("optimizer", r"multi_tensor_apply|adam|sgd_|adagrad|foreach"),
    ("loss", r"nll_?loss|ClassNLLCriterion|cross_?entropy"),
    ("pooling", r"pool"),
    ("sort and scan", r"cub::|Scan|RadixSort|thrust|sort|top_?k"),
    ("indexing", r"index|gather|scatter|Slice|CatArray|permute|transpose"),
    ("reduction", r"reduce"),
    ("elementwise", r"elementwise|vectorized|unrolled|fill|threshold|copy|FillFunctor|triton_poi"),
    ("random", r"random|philox|dropout|bernoulli"),
    ("compiled", r"triton"),
)
"""Families and patterns of their kernels' names, in the order in which they are tried; from the
names in public traces of PyTorch, cuDNN, cuBLAS, NCCL, ROCm, vLLM, SGLang and FlashInfer."""

_PATTERNS = tuple((family, re.compile(words, re.IGNORECASE)) for family, words in _FAMILIES)

SIGN = {
    family: pattern.partition("|")[0].replace("?", "").replace("_", "")
    for family, pattern in _FAMILIES
}
"""For each family a word that assigns a kernel with it in its name to the family."""


@cache
def family_of(name: str, kind: int) -> str:
    """Return the family of a device event by its name; copies and fills by their kind."""
    if kind == EventKind.MEMCPY:
        return "copy"
    if kind == EventKind.MEMSET:
        return "fill"
    return next((family for family, pattern in _PATTERNS if pattern.search(name)), "other")
