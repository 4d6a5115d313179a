"""Interface between irgraph and its cost models, and the import of a backend.

irgraph itself prices nothing. A backend is a package that does: its module ``backend`` has the
functions of ``Backend``, and a package ``commands`` in it may add commands to the command line.
``costmodels``, which ships with irgraph, is the default; ``IRGRAPH_BACKEND`` names another one.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set
    from importlib.resources.abc import Traversable

    from irgraph.ir.cost import Popularity, Priced, PriceOptions
    from irgraph.ir.graph import Graph
    from irgraph.ir.tensor import Tensor

DEFAULT = "costmodels"
"""The package of cost models that ships."""

VARIABLE = "IRGRAPH_BACKEND"
"""Environment variable that names another package."""


class DeviceFacts(Protocol):
    """Properties of a device that predictions read."""

    @property
    def name(self) -> str:
        """Name of its sheet, such as ``V100-SXM2-16GB``."""

    @property
    def architecture(self) -> str:
        """Its architecture, such as ``volta``."""

    @property
    def clock(self) -> float:
        """Clock of its multiprocessors in MHz: the boost clock, unless it is locked."""

    @property
    def target(self) -> str:
        """Compilation target of its kernels, such as ``sm_90``."""

    @property
    def sms(self) -> int:
        """Number of its multiprocessors."""

    @property
    def memory_bytes(self) -> int:
        """Its memory in bytes."""

    @property
    def bandwidth(self) -> float:
        """Measured bandwidth of its memory in GB/s, reads and writes together."""

    def peak(self, dtype: str) -> tuple[float, bool]:
        """Return peak GFLOP/s of products of an element type, and if matrix units reach it."""

    @property
    def convolution_dtype(self) -> str:
        """Element type in which float32 convolutions compute: ``tf32`` or ``f32``."""

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

        ``indices`` are as in ``PriceOptions``. Raises ``IrgraphError`` if one cannot be read.
        """

    def bags(
        self,
        graph: Graph,
        indices: Sequence[str],
        index: Tensor,
        sizes: tuple[int, int, int],
        lists: str,
    ) -> Any:  # noqa: ANN401  (``irgraph.tiers.bags.Bags``, a package above)
        """Return the index lists of a table's bags with their frequencies.

        ``sizes`` are the table's rows, the bags of a step, and the rows of the longest cached bag;
        ``lists`` as for ``place``, ``""`` if rows are drawn independently.
        """

    def device(self, name: str, graph: Graph | None = None) -> DeviceFacts:
        """Return a device with the settings of the program of ``graph``.

        Raises ``IrgraphError`` (exit code 2) if it does not exist.
        """

    def devices(self) -> Sequence[DeviceFacts]:
        """Return the devices that ship or are installed, by name."""

    def device_of_card(self, card: str) -> str:
        """Return the device for a card by the driver's name of it; ``""`` for none."""

    def is_card(self, device: str, card: str) -> bool:
        """Return whether measurements on a card are valid for a device."""

    def fabrics(self) -> Sequence[str]:
        """Return the platforms that have a model of the links between ranks."""

    def hosts(self) -> Mapping[str, Traversable]:
        """Return host tables by name, shipped and installed (``irgraph.overheads.format``)."""

    def measurements(
        self, path: str
    ) -> tuple[Mapping[str, object], Sequence[Mapping[str, object]]]:
        """Return the environment and the cases of a file of measured kernels.

        Raises ``IrgraphError`` for any other file.
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
    """Return the architecture of a card by the driver's name of it, ``""`` if it is unknown.

    Variants of a card share it: ``Tesla V100-DGXS-32GB`` is a V100.
    """
    cost_models = backend()
    name = cost_models.device_of_card(card)
    return cost_models.device(name).architecture if name else ""
