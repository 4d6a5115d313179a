"""Software profiles: facts on the kernels of ops that differ between releases, by name."""

from __future__ import annotations

from msgspec import Struct

from irgraph.diagnostics import fail, suggestion


class Software(Struct, frozen=True):
    """A release of PyTorch with the libraries it was built against.

    Attributes:
        name: name on the command line.
        bias_in_gemm: ``addmm`` adds a bias vector in the product's epilogue (cublasLt, since
            PyTorch 1.12 with CUDA 11.4). Before, a kernel first copies the bias into every row of
            the result: each ``aten::linear`` of the 2021 traces shows ``unrolled_elementwise``
            before its ``sgemm``.
        split_k_freely: cuBLAS 12 splits the summed dimension whenever that balances the
            multiprocessors: its times grow with the work, not with the rounds. cuBLAS 11 splits
            only grids of at least one tile for each multiprocessor whose summed side is the
            longest, and splits with a second kernel if four fifths would idle (traced: 4 and 16
            tiles split, 32 and 64 did not).
        loss_fills: the backward of a loss first fills its result with zeros, and the mean of a
            loss is copied to its result (traces of 2021).
        counts_on_host: the dense gradient of an embedding table copies the numbers of distinct rows
            and of partial sums to the host and waits for them (torch up to 1.11; the first in all
            builds with CUDA 11, whose thrust waits: pytorch/pytorch#70943, #164637).
        norm_by_columns: the gradients of layer norm's weight and bias are summed by one block for
            32 columns and all rows: with few columns most multiprocessors idle. Since PyTorch 2.8
            more than 65,536 rows are split (pytorch/pytorch#150773).
        caches_large_channels: cuDNN's batch norm of images caches channels of up to half of the
            shared memory, by kernels that move 16 bits in pairs (kernel names in steps of torch
            2.11 with cuDNN 9.19; the first such release is unknown).
        plain_converted_share: share of convolutions on matrix units with windows of one element,
            channels first and at least 64 of them, whose images cuDNN converts to channels last and
            back. 0 by two profiles of a ResNet-50 on A100; 0.8 fits eight networks of timm best,
            trained on an RTX 3090 with CUDA 11.3: their steps with channels last are predicted
            correctly, the others were short by the time of all conversions (docs/costs.md).
        slow_grouped_last: channels-last grouped convolutions have kernels on matrix units for few
            shapes only (cuDNN 8.3; pytorch/pytorch#70954).
        gathers_rows: blocks copy the aligned rows of lookups (since PyTorch 2.8, by
            pytorch/pytorch#151715 and #151917). Before, the offset of each element was computed.
        cudnn_attention: fused attention in 16 bits prefers cuDNN to FlashAttention-2 on Hopper and
            B200 (torch with cuDNN 9.16 or newer, seen in 2.11; ``check_prefer_cudnn_attention``).
        first_flash_attention: fused attention is the first version of FlashAttention (torch 2.0 and
            2.1; the second is about twice as fast by the release notes of PyTorch 2.2).
    """

    name: str
    bias_in_gemm: bool
    split_k_freely: bool
    loss_fills: bool
    counts_on_host: bool
    norm_by_columns: bool
    caches_large_channels: bool
    plain_converted_share: float
    slow_grouped_last: bool
    gathers_rows: bool = False
    cudnn_attention: bool = False
    first_flash_attention: bool = False


PROFILES = (
    Software(
        "torch-2", bias_in_gemm=True, split_k_freely=True, loss_fills=False, counts_on_host=False,
        norm_by_columns=False, caches_large_channels=True, plain_converted_share=0.0,
        slow_grouped_last=False, gathers_rows=True, cudnn_attention=True,
    ),
    Software(
        "torch-2.7", bias_in_gemm=True, split_k_freely=True, loss_fills=False,
        counts_on_host=False, norm_by_columns=True, caches_large_channels=False,
        plain_converted_share=0.0, slow_grouped_last=False,
    ),
    Software(
        "torch-2.1", bias_in_gemm=True, split_k_freely=True, loss_fills=False,
        counts_on_host=False, norm_by_columns=True, caches_large_channels=False,
        plain_converted_share=0.0, slow_grouped_last=False, first_flash_attention=True,
    ),
    Software(
        "torch-1.12-cuda-11.3", bias_in_gemm=False, split_k_freely=False, loss_fills=False,
        counts_on_host=False, norm_by_columns=True, caches_large_channels=False,
        plain_converted_share=0.8, slow_grouped_last=True,
    ),
    Software(
        "torch-1.10-cuda-11.3", bias_in_gemm=False, split_k_freely=False, loss_fills=True,
        counts_on_host=True, norm_by_columns=True, caches_large_channels=False,
        plain_converted_share=0.8, slow_grouped_last=True,
    ),
)  # fmt: skip
"""Profiles, the newest first: ``torch-2`` is 2.8 and later, ``torch-2.7`` 2.2 to 2.7, ``torch-2.1``
2.0 and 2.1."""


def software_profile(name: str) -> Software:
    """Return a profile by name. Raises ``IrgraphError`` for an unknown one."""
    names = [profile.name for profile in PROFILES]
    for profile in PROFILES:
        if profile.name == name:
            return profile
    name_list = ", ".join(names)
    raise fail(
        f"no software profile named {name!r}{suggestion(name, names)}",
        hint=f"known profiles: {name_list}",
        exit_code=2,
    )
