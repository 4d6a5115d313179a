"""What the ops of a software era launch: the facts that differ between releases, by name."""

from __future__ import annotations

from msgspec import Struct

from irgraph.diagnostics import fail, near


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
    """

    name: str
    bias_in_gemm: bool
    split_k_freely: bool
    loss_fills: bool
    counts_on_host: bool


PROFILES = (
    Software(
        "torch-2", bias_in_gemm=True, split_k_freely=True, loss_fills=False, counts_on_host=False
    ),
    Software(
        "torch-1.10-cuda-11.3", bias_in_gemm=False, split_k_freely=False, loss_fills=True,
        counts_on_host=True,
    ),
)  # fmt: skip
"""Known releases, the newest first."""


def software_profile(name: str) -> Software:
    """Return a profile by name. Raises ``IrgraphError`` for an unknown one."""
    names = [profile.name for profile in PROFILES]
    for profile in PROFILES:
        if profile.name == name:
            return profile
    known = ", ".join(names)
    raise fail(
        f"no software profile named {name!r}{near(name, names)}",
        hint=f"known profiles: {known}",
        exit_code=2,
    )
