"""Cost models, as the rest of irgraph knows them: what a backend offers, and where it is found.

irgraph itself prices nothing. A backend is a package that does: its module ``backend`` has the
functions of ``Backend``, and a package ``commands`` in it may add commands to the command line.
``costmodels``, which ships with irgraph, is the default; ``IRGRAPH_BACKEND`` names another one.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set
    from importlib.resources.abc import Traversable

    from irgraph.ir.cost import Popularity, Priced, PriceOptions
    from irgraph.ir.graph import Graph
    from irgraph.ir.tensor import Tensor
    from irgraph.tiers.bags import Bags

DEFAULT = "costmodels"
"""The package of cost models that ships."""

VARIABLE = "IRGRAPH_BACKEND"
"""Environment variable that names another package."""


class DeviceFacts(Protocol):
    """What predictions read of a device."""

    @property
    def name(self) -> str:
        """Name of its sheet, such as ``V100-SXM2-16GB``."""

    @property
    def architecture(self) -> str:
        """Its architecture, such as ``volta``."""

    @property
    def clock(self) -> float:
        """MHz at which its multiprocessors run: the boost clock, unless it is locked."""

    @property
    def memory_bytes(self) -> int:
        """Its memory in bytes."""

    @property
    def bandwidth(self) -> float:
        """GB/s that its memory is known to reach, read and written."""

    def peak(self, dtype: str) -> tuple[float, bool]:
        """Return the peak of products of an element type in GFLOP/s, and whether units give it."""

    @property
    def convolution_dtype(self) -> str:
        """The type in which convolutions of float32 compute: ``tf32`` or ``f32``."""

    @property
    def tf32(self) -> bool:
        """Whether products of float32 use the matrix units' tf32."""

    @property
    def has_tf32(self) -> bool:
        """Whether it has matrix units for tf32."""


class Backend(Protocol):
    """A package of cost models. Devices are shipped names, or paths of a user's own files."""

    def price(self, graph: Graph, device: str, options: PriceOptions) -> Priced:
        """Return a graph with the device work of its ops.

        Raises ``IrgraphError`` for an unknown name, an unusable file or an impossible setting.
        """

    def popularity(self, graph: Graph, indices: Sequence[str]) -> Mapping[str, Popularity]:
        """Return how often the rows of each embedding table are looked up, by its name.

        ``indices`` are as in ``PriceOptions``. Raises ``IrgraphError`` where one cannot be read.
        """

    def bags(
        self,
        graph: Graph,
        indices: Sequence[str],
        index: Tensor,
        sizes: tuple[int, int, int],
        lists: str,
    ) -> Bags:
        """Return which lists of indices the bags of a table have, and how often each comes.

        ``sizes`` are the table's rows, the bags of a step, and the rows of the longest bag that is
        held; ``lists`` as ``place`` takes them, ``""`` where rows are drawn one by one.
        """

    def device(self, name: str, graph: Graph | None = None) -> DeviceFacts:
        """Return a device, as the program of ``graph`` sets it.

        Raises ``IrgraphError`` (exit code 2) where there is none.
        """

    def devices(self) -> Sequence[DeviceFacts]:
        """Return the devices that ship or are installed, by name."""

    def device_of_card(self, card: str) -> str:
        """Return the device that stands for a card, as its driver calls it; ``""`` for none."""

    def is_card(self, device: str, card: str) -> bool:
        """Return whether what was measured on a card holds for a device."""

    def fabrics(self) -> Sequence[str]:
        """Return the platforms whose links between ranks are known."""

    def hosts(self) -> Mapping[str, Traversable]:
        """Return host tables by name, shipped and installed (``irgraph.overheads.format``)."""

    def measurements(
        self, path: str
    ) -> tuple[Mapping[str, object], Sequence[Mapping[str, object]]]:
        """Return what a file of measured kernels was measured on, and its cases.

        Raises ``IrgraphError`` where it is none.
        """

    def words(self) -> Set[str]:
        """Return the public names of measured families, their ops and sizes, and of evaluations."""


def backend_name() -> str:
    """Return the name of the package of cost models."""
    return os.environ.get(VARIABLE) or DEFAULT


def backend() -> Backend:
    """Return the cost models."""
    return cast("Backend", import_module(f"{backend_name()}.backend"))


def architecture_of(card: str) -> str:
    """Return the architecture of a card by what its driver calls it, ``""`` if none is known.

    Variants of a card share it: ``Tesla V100-DGXS-32GB`` is a V100.
    """
    cost_models = backend()
    name = cost_models.device_of_card(card)
    return cost_models.device(name).architecture if name else ""
