"""What the ops of a software era launch: the facts that differ between releases, by name."""

from __future__ import annotations

from msgspec import Struct

from irgraph.diagnostics import fail, suggestion


class Software(Struct, frozen=True):
    """A release of PyTorch with the libraries it was built against.

    Attributes:
        name: as users give it.
        bias_in_gemm: ``addmm`` adds a bias vector in the product's epilogue (cublasLt, since
            PyTorch 1.12 with CUDA 11.4). Before, a kernel first copies the bias into every row of
            the result: each ``aten::linear`` of the 2021 traces shows ``unrolled_elementwise``
            before its ``sgemm``.
        split_k_freely: cuBLAS 12 splits the summed dimension wherever that balances the
            multiprocessors: its times grow with the work, not with the rounds. cuBLAS 11 repairs
            only grids of at least one tile a multiprocessor whose summed side is the longest, and
            splits with a second kernel where four fifths would idle (traced: 4 and 16 tiles
            split, 32 and 64 did not).
        loss_fills: the backward of a loss first fills its result with zeros, and the mean of a
            loss is copied to its place (traces of 2021).
        counts_on_host: the dense gradient of an embedding table copies to the host, and waits for,
            how many distinct rows and how many partial sums there are (torch up to 1.11; the
            first in all builds with CUDA 11, whose thrust waits: pytorch/pytorch#70943, #164637).
        norm_by_columns: the gradients of layer norm's weight and bias are summed by one block for
            32 columns, all rows each, however many: over few columns most multiprocessors idle.
            Since PyTorch 2.8 more than 65,536 rows are parted (pytorch/pytorch#150773).
        keeps_more: cuDNN's batch norm of images keeps channels of up to half of the shared memory,
            by kernels that move 16 bits in pairs (kernel names in steps of torch 2.11 with cuDNN
            9.19; since when is not known).
        plain_turned: share of convolutions on matrix units with windows of one element, channels
            first and at least 64 of them, whose images cuDNN turns to channels last and back.
            None by two profiles of a ResNet-50 on A100; 0.8 fits eight networks of timm best that
            were trained on an RTX 3090 with CUDA 11.3, where their steps with channels last come
            out right and the others were short by what turning all would add (docs/costs.md).
        slow_grouped_last: grouped convolutions whose channels are last have kernels on matrix units
            for few shapes alone (cuDNN 8.3; pytorch/pytorch#70954).
        cudnn_attention: fused attention in 16 bits asks cuDNN before FlashAttention-2 on Hopper and
            B200 (torch with cuDNN 9.16 or newer, seen in 2.11; ``check_prefer_cudnn_attention``).
    """

    name: str
    bias_in_gemm: bool
    split_k_freely: bool
    loss_fills: bool
    counts_on_host: bool
    norm_by_columns: bool
    keeps_more: bool
    plain_turned: float
    slow_grouped_last: bool
    cudnn_attention: bool = False


PROFILES = (
    Software(
        "torch-2", bias_in_gemm=True, split_k_freely=True, loss_fills=False, counts_on_host=False,
        norm_by_columns=False, keeps_more=True, plain_turned=0.0, slow_grouped_last=False,
        cudnn_attention=True,
    ),
    Software(
        "torch-2.7", bias_in_gemm=True, split_k_freely=True, loss_fills=False,
        counts_on_host=False, norm_by_columns=True, keeps_more=False,
        plain_turned=0.0, slow_grouped_last=False,
    ),
    Software(
        "torch-1.12-cuda-11.3", bias_in_gemm=False, split_k_freely=False, loss_fills=False,
        counts_on_host=False, norm_by_columns=True, keeps_more=False,
        plain_turned=0.8, slow_grouped_last=True,
    ),
    Software(
        "torch-1.10-cuda-11.3", bias_in_gemm=False, split_k_freely=False, loss_fills=True,
        counts_on_host=True, norm_by_columns=True, keeps_more=False,
        plain_turned=0.8, slow_grouped_last=True,
    ),
)  # fmt: skip
"""Known releases, the newest first: ``torch-2`` is 2.8 and later, ``torch-2.7`` 2.0 to 2.7."""


def software_profile(name: str) -> Software:
    """Return a profile by name. Raises ``IrgraphError`` for an unknown one."""
    names = [profile.name for profile in PROFILES]
    for profile in PROFILES:
        if profile.name == name:
            return profile
    known = ", ".join(names)
    raise fail(
        f"no software profile named {name!r}{suggestion(name, names)}",
        hint=f"known profiles: {known}",
        exit_code=2,
    )
