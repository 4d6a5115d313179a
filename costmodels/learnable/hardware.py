"""The properties of a device that learned models see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.devices.sheet import DeviceSheet, Figure

Floats = NDArray[np.float32]
"""One value a row, or one for all rows."""

TRAINING_CARDS = ("V100-PCIE-32GB", "A100-PCIE-40GB", "P100-PCIE-16GB", "T4")
"""Training devices of the shipped models, in the order of their indicator inputs."""

THROTTLED = ("T4",)
"""Devices whose times are determined by their power limit rather than by their chip: nothing is
concluded from them for unmeasured devices."""

SIBLINGS = {
    "V100-PCIE-16GB": "V100-PCIE-32GB",
    "V100-SXM2-16GB": "V100-PCIE-32GB",
    "V100-SXM2-32GB": "V100-PCIE-32GB",
    "A100-SXM4-40GB": "A100-PCIE-40GB",
}
"""Variants with the same chip: the same kernels run at other clocks and bandwidths."""


GENERATIONS = ("pascal", "volta", "turing", "ampere")
"""Generations of cards with separate kernels; newer cards run the kernels of the last one."""

CORES = {
    "sm_60": 0, "sm_61": 0, "sm_70": 1, "sm_75": 2, "sm_80": 3, "sm_86": 4, "sm_89": 4,
    "sm_90": 5, "sm_100": 6, "sm_103": 6, "sm_120": 7,
}  # fmt: skip
"""Kinds of matrix units, by compilation target; 0 is none."""

L2_BYTES = 0.16
"""L2 bytes per FLOP of an unmeasured card: the mean of P100, V100 and A100
(0.17, 0.20, 0.12)."""


class Hardware(Struct, frozen=True):
    """Device properties, one value a row or one for all rows.

    Attributes:
        peak: float32 peak of the plain cores, GFLOP/s.
        bandwidth: reachable DRAM bandwidth, GB/s.
        sms: streaming multiprocessors.
        l2: second-level cache, bytes.
        l2_bandwidth: of the second-level cache, GB/s.
        dual: 1 if integer and float32 instructions issue in parallel, as on all cards since
            Volta (NVIDIA, Tesla V100 architecture whitepaper, 2017), else 0.
        generation: index in ``GENERATIONS`` of the kernels that the card runs.
        units, units8, units32: dense peak of the matrix units in 16 bits, in fp8 and in tf32,
            GFLOP/s; the peak of the plain cores if a card has none.
        core: kind of its matrix units in ``CORES``.
        indicators: indicator of each training card of the campaign, all zero for another device;
            each an array like the others.
    """

    peak: Floats
    bandwidth: Floats
    sms: Floats
    l2: Floats
    l2_bandwidth: Floats
    dual: Floats
    generation: Floats
    units: Floats
    units8: Floats
    units32: Floats
    core: Floats
    indicators: tuple[Floats, ...]

    @property
    def card(self) -> NDArray[np.intp]:
        """Index of each row's device among the training cards, their number for another device."""
        flags = np.stack(self.indicators)
        return np.where(flags.any(0), flags.argmax(0), len(flags))

    def rows(self, index: NDArray[np.intp]) -> Hardware:
        """Return the properties of device ``index[i]`` in row ``i``."""
        indicators = tuple(flag[index] for flag in self.indicators)
        return Hardware(
            self.peak[index],
            self.bandwidth[index],
            self.sms[index],
            self.l2[index],
            self.l2_bandwidth[index],
            self.dual[index],
            self.generation[index],
            self.units[index],
            self.units8[index],
            self.units32[index],
            self.core[index],
            indicators,
        )


def hardware(
    *sheets: DeviceSheet,
    unseen: bool = False,
    cards: Sequence[str] = TRAINING_CARDS,
    siblings: Mapping[str, str] = SIBLINGS,
) -> Hardware:
    """Return the properties of devices, one row for each sheet; a single sheet serves all rows.

    ``cards`` names the training cards, ``siblings`` the variants that count as one of them.
    With ``unseen`` no device is recognised: models predict from the properties alone.
    """

    def column(values: list[float]) -> Floats:
        return np.asarray(values, dtype=np.float32)

    names = [siblings.get(sheet.card, sheet.card) for sheet in sheets]
    flags = tuple(column([float(n == k and not unseen) for n in names]) for k in cards)
    return Hardware(
        column([sheet.peak("f32")[0] for sheet in sheets]),
        column([sheet.bandwidth for sheet in sheets]),
        column([float(sheet.sms) for sheet in sheets]),
        column([float(sheet.l2_bytes) for sheet in sheets]),
        column([sheet.l2_gbs.value or L2_BYTES * sheet.peak("f32")[0] for sheet in sheets]),
        column([float(sheet.architecture != "pascal") for sheet in sheets]),
        column([_generation(sheet) for sheet in sheets]),
        column([sheet.peak("f16")[0] for sheet in sheets]),
        column([sheet.peak("f8e4m3")[0] for sheet in sheets]),
        column([sheet.peak("tf32")[0] for sheet in sheets]),
        column([CORES.get(sheet.target, _generation(sheet)) for sheet in sheets]),
        flags,
    )


def _generation(sheet: DeviceSheet) -> int:
    """Return the generation whose kernels a card runs: the last one for newer cards."""
    is_listed = sheet.architecture in GENERATIONS
    return GENERATIONS.index(sheet.architecture) if is_listed else len(GENERATIONS) - 1


def figures(sheet: DeviceSheet) -> dict[str, float]:
    """Return the figures of a sheet that models depend on, to detect changes."""
    return {
        "fp32_gflops": round(sheet.peak("f32")[0], 3),
        "dram_gbs": round(sheet.bandwidth, 3),
        "sms": sheet.sms,
        "l2_bytes": sheet.l2_bytes,
        "l2_gbs": round(sheet.l2_gbs.value or 0.0, 3),
        "fp16_gflops": round(sheet.peak("f16")[0], 3),
        "fp8_gflops": round(sheet.peak("f8e4m3")[0], 3),
    }


def datasheet_only(sheet: DeviceSheet) -> DeviceSheet:
    """Return the sheet with the datasheet's figures alone, like an unmeasured card's."""
    figures = {
        field.name: msgspec.structs.replace(value, measured=None)
        for field in msgspec.structs.fields(DeviceSheet)
        if isinstance(value := getattr(sheet, field.name), Figure) and value.datasheet is not None
    }
    return msgspec.structs.replace(sheet, **figures)
