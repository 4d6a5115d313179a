"""The interface of these cost models to irgraph (``irgraph.backend.Backend``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from costmodels.collectives.load import platforms
from costmodels.devices.library import list_devices, load_device, sheet_of_card
from costmodels.devices.sheet import DeviceSheet
from costmodels.families.tiers import TableLookup, bags_for
from costmodels.formulas.machine import Corrector, Predictor
from costmodels.hosts.library import host_files
from costmodels.learned.correctors import corrector
from costmodels.learned.predictors import predictors
from costmodels.learned.query_batch import BatchedModels
from costmodels.lookups.indices import indices_of, popularity_of
from costmodels.measure.rows import read_rows
from costmodels.pricing.calls import read_calls
from costmodels.pricing.context import fbgemm_lookups, sparse_values
from costmodels.pricing.measured import is_card as _is_card
from costmodels.pricing.points import price_calls
from costmodels.pricing.price import machine_of
from costmodels.pricing.price import price as price_graph
from irgraph.backend import Backend
from irgraph.ir.cost import Popularity, Priced, PriceOptions
from irgraph.ir.graph import OPERANDS, Graph
from irgraph.ir.measured_times import measured_card
from irgraph.ir.points.kernel_regimes import KernelRegime
from irgraph.ir.tensor import Tensor
from irgraph.tiers.bags import Bags

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def price(graph: Graph, device: str, options: PriceOptions) -> Priced:
    """Return a graph with the device work of its ops.

    Trained models price the kernels that they cover, formulas the rest.
    """
    sheet = load_device(device).with_settings(graph.settings)
    corrected = options.mode == "corrected"
    tables = [path for path in options.weights if path.endswith(".jsonl") or path.startswith("db:")]
    weights = [path for path in options.weights if path not in tables]
    learned, correct = _models(sheet, options, weights)
    return price_graph(
        graph,
        sheet,
        mode=options.mode,
        software=options.software,
        pinned=options.pinned,
        learned=learned,
        indices=indices_of(graph, options.indices),
        correct=correct,
        calls=read_calls(tables, sheet) if corrected and tables else {},
        measured=options.uses_measured and _is_card(sheet, measured_card(graph)),
        cache_prices=not weights,
    )


def _models(
    sheet: DeviceSheet, options: PriceOptions, weights: Sequence[str] = ()
) -> tuple[Mapping[str, Predictor], Corrector | None]:
    """Return the trained models of a device by family, and the correction of all prices.

    The paper's formulas are priced as printed, unless the user has models of the device.
    """
    corrected = options.mode == "corrected"
    learned = predictors(sheet, options.software) if corrected else {}
    batch = learned.batch if isinstance(learned, BatchedModels) else None
    software = options.software if corrected else ""
    return learned, corrector(weights, sheet, software, batch)


def popularity(graph: Graph, indices: Sequence[str]) -> Mapping[str, Popularity]:
    """Return how often the rows of each embedding table are looked up, by its name."""
    return popularity_of(graph, indices)


def bags(
    graph: Graph, indices: Sequence[str], index: Tensor, sizes: tuple[int, int, int], lists: str
) -> Bags:
    """Return the lists of a table's bags, as specified by ``Backend``."""
    return bags_for(TableLookup(index, *sizes), lists, indices_of(graph, indices))


def price_points(
    graph: Graph, device: str, options: PriceOptions, dims: Mapping[str, NDArray[np.int64]]
) -> Sequence[Sequence[KernelRegime] | None]:
    """Return, for each top-level call, its work at many sizes of ``dims``, without measured times.

    ``None`` marks a call that ``price`` must price at each point separately.
    """
    sheet = load_device(device).with_settings(graph.settings)
    if options.weights or sheet.is_host or fbgemm_lookups(graph):
        return [None for _ in graph.top_level()]
    learned, correct = _models(sheet, options)
    indices = indices_of(graph, options.indices)
    machine = machine_of(
        graph, sheet, options.mode, options.software, options.pinned, learned, indices, correct
    )
    return price_calls(graph, machine, sparse_values(graph), OPERANDS in graph.settings, dims)


def device(name: str, graph: Graph | None = None) -> DeviceSheet:
    """Return a device sheet by name, alias or path, with the settings of ``graph``'s program."""
    return load_device(name).with_settings(graph.settings if graph is not None else {})


def devices() -> Sequence[DeviceSheet]:
    """Return the shipped and installed device sheets, in order of their names."""
    return [load_device(name) for name in list_devices()]


def device_of_card(card: str) -> str:
    """Return the sheet of a card, or else of its model; ``""`` if none is known."""
    return sheet_of_card(card)


def is_card(device: str, card: str) -> bool:
    """Return whether a sheet represents a recorded card."""
    return _is_card(load_device(device), card)


def fabrics() -> Sequence[str]:
    """Return the platforms with measured collectives."""
    return platforms()


def hosts() -> Mapping[str, Traversable]:
    """Return the shipped and installed host tables, by name."""
    return host_files()


def measurements(path: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the head and the rows of a file of measurements."""
    return read_rows(path)


def words() -> frozenset[str]:
    """Return the names of shipped measured families, of their ops and sizes, and of evaluations."""
    from costmodels.evaluate import EVALUATIONS
    from costmodels.families import shipped_sweeps

    sweeps = shipped_sweeps()
    inside = (word for sweep in sweeps.values() for word in (*sweep.ops, *sweep.ranges))
    return frozenset((*EVALUATIONS, *sweeps, *inside))


if TYPE_CHECKING:  # the type checker then validates this module against the interface
    import costmodels.backend

    _OFFERED: Backend = costmodels.backend


def warm_up(devices: Sequence[str]) -> None:
    """Read all families, the shipped trained models, and the sheets of some devices."""
    from costmodels.families import learned_families
    from costmodels.learned.weights import load_shipped, shipped_models

    families = learned_families()
    for name in shipped_models():
        if name in families:
            load_shipped(name)
    for name in devices:
        load_device(name)
