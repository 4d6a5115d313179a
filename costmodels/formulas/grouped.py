"""Grouped convolutions whose channels are last: cuDNN has fast kernels for few of their shapes."""

from __future__ import annotations

import math

from costmodels.formulas.elements import channels_last
from costmodels.formulas.intervals import ROUGH, UNKNOWN
from costmodels.formulas.machine import Machine
from irgraph.ir.tensor import Tensor

SLOW = (
    "grouped, channels last: cuDNN 8 has no kernel on matrix units for it, and its "
    "grouped_direct kernels take many times as long"
)
MAYBE_SLOW = (
    "grouped, channels last: cuDNN 8 takes many times as long for its gradients; those of "
    "newer releases were not measured"
)

AMPERE = ("ampere", "ada", "hopper", "blackwell")
"""Architectures that may run slow kernels. Volta does not: NVIDIA's ResNeXt-101 32x4d gains 3.9 to
4.0 times by mixed precision with channels last on a V100, as if none of its kernels was slow."""

FITTED = "sm_86"
"""Target of the card to whose steps the figures below were fitted (RTX 3090)."""

BLOCK, WIDTHS, MIN_GROUPS, STEP = 32, (4, 8, 16, 32), 24, 8
"""Channels that one fast kernel joins; channels of a group, and numbers of groups (from
``MIN_GROUPS``, a multiple of ``STEP``), with a fast kernel. Networks with 32 groups gain from
channels last (timm's ResNeXt 32x4d, RTX 3090: 1.3 to 1.5 times), with 2 to 16 groups of as many
channels they lose (``resnext26ts``: 0.79), with 24 to 72 of them little (``regnetz_c16``: 0.90)."""

FORWARD_SHARE = 0.3
"""Share of the plain cores' peak of forward passes over groups whose channels are no power of two:
timm's RegNet-X 12GF (112 channels a group), inference on an RTX 3090 in torch 1.13, compared with
torch 2.4. Others have forward kernels on matrix units."""

BASE, PER_CHANNEL, MIN_WIDTH = 6.8, 490.0, 16
"""Constants of the gradients of data and weight together: the ratio of the plain cores' peak to
their rate is ``BASE + EACH / channels of a group``, with at least ``MIN_WIDTH`` channels. Fitted to
training steps of six networks that ``irgraph evaluate`` does not compare (timm, RTX 3090, AMP, 16
to 256 channels a group), each within a fifth; docs/costs.md has others. On a V100 with cuDNN 7.6
the gradient of a weight with 64 reaches a ninth of that (97 ms, ``wgrad2d_grouped_direct_kernel``,
pytorch/pytorch#34977)."""


def has_fast_kernel(data: Tensor, weight: Tensor, machine: Machine) -> bool:
    """Return whether cuDNN has a fast kernel for a grouped convolution with channels last."""
    width, groups = _groups(data, weight)
    ampere = machine.sheet.architecture in AMPERE
    equal = int(weight.shape[0]) == width * groups
    many = groups >= MIN_GROUPS and groups % STEP == 0
    return (
        ampere and equal and width in WIDTHS and many and channels_last(data) and _is_narrow(data)
    )


def slow_time(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine
) -> float | None:
    """Return microseconds on the slow kernels; ``None`` if software or shape has faster ones."""
    if (
        not machine.software.slow_grouped_last
        or machine.paper
        or not _has_slow_kernel(data, weight, machine)
    ):
        return None
    width = _groups(data, weight)[0]
    share = 1.0 / (BASE + PER_CHANNEL / max(width, MIN_WIDTH))
    if "gradient" not in name:
        if width & (width - 1) == 0:
            return None
        share = FORWARD_SHARE
    flop = 2.0 * result.numel * math.prod(weight.shape[1:])
    return flop / machine.sheet.peak("f32")[0] / share / 1e3


def slow_kernel_spread(machine: Machine) -> float:
    """Return half the width of the slow kernels' 90 % interval, as a share of the time."""
    return ROUGH if machine.sheet.target == FITTED else UNKNOWN


def may_be_slow(data: Tensor, weight: Tensor, name: str, machine: Machine) -> bool:
    """Return whether a grouped convolution may have slow kernels alone."""
    return "gradient" in name and not machine.paper and _has_slow_kernel(data, weight, machine)


def _has_slow_kernel(data: Tensor, weight: Tensor, machine: Machine) -> bool:
    may = machine.sheet.architecture in AMPERE and channels_last(data) and _is_narrow(data)
    return may and not has_fast_kernel(data, weight, machine)


def _is_narrow(data: Tensor) -> bool:
    return data.dtype in ("f16", "bf16")


def _groups(data: Tensor, weight: Tensor) -> tuple[int, int]:
    """Return the number of channels of a group, and the number of groups."""
    width = max(int(weight.shape[1]), 1)
    return width, int(data.shape[1]) // width
