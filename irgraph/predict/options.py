"""Options of a prediction: one record for all functions about predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

from msgspec import field
from msgspec.structs import replace

from irgraph.backend import backend
from irgraph.diagnostics import check_sizes, describe, fail, suggestion
from irgraph.ir.cost import PriceOptions
from irgraph.ir.graph import Graph, check_graph
from irgraph.ir.loading import read_loading, with_loading
from irgraph.ir.ranks import check_fabric, with_ranks
from irgraph.ir.rarer_steps import with_period
from irgraph.ir.resize import with_dims
from irgraph.overheads.default_host import DEFAULT_HOST
from irgraph.schedule.accounting import Accounting, find_accounting

DEFAULTS = "None takes the card of the model's measured times or of its capture, or else v100"


class PredictOptions(PriceOptions, frozen=True, kw_only=True):
    """Device, host, cost models and scheduling rules of a prediction.

    Functions that predict take these options as one object, as keyword arguments, or both: the
    keyword arguments then replace fields of the object.

    Attributes:
        device: a shipped device sheet by name, or the path of one's own; ``None`` takes the card
            of the model's measured times, or of ``capture --card``, or else ``v100``.
        host: a shipped host table by name, or the path of one's own; ``default`` is the table of
            the step's release of torch (``irgraph.overheads.default_host``).
        dims: other sizes for some of the model's dimensions.
        accounting: rules of the schedule, or the name of a preset (``schedule.accounting``).
        ranks: how many ranks take part in collectives, or machines times ranks on each (``2x8``);
            ``None``: the model's.
        fabric: the platform whose links connect the ranks; ``None``: the model's, or else the
            device's.
        loader: the time in which the program's loader makes a batch of the predicted size, such as
            ``12ms``, or with its number of workers ``12ms/4``; ``None``: the model's.
        period: the number of steps of which one is the model's rarer step; ``None``: the model's.
    """

    device: str | None = None
    host: str = DEFAULT_HOST
    dims: Mapping[str, int] = field(default_factory=dict)
    accounting: str | Accounting = "blocking"
    ranks: int | str | None = None
    fabric: str | None = None
    loader: str | None = None
    period: int | None = None

    @property
    def rules(self) -> Accounting:
        """The rules of the schedule; raises ``IrgraphError`` for an unknown preset."""
        if isinstance(self.accounting, Accounting):
            return self.accounting
        return find_accounting(self.accounting)


class PredictFields(TypedDict, total=False):
    """The fields of ``PredictOptions`` as keyword arguments."""

    device: str | None
    host: str
    dims: Mapping[str, int]
    mode: str
    software: str
    accounting: str | Accounting
    pinned: bool | None
    indices: Sequence[str]
    weights: Sequence[str]
    measured: bool
    ranks: int | str | None
    fabric: str | None
    loader: str | None
    period: int | None


def predict_options(
    options: PredictOptions | str | None = None, **changes: Unpack[PredictFields]
) -> PredictOptions:
    """Return options with some fields changed; a text is the name of the device.

    Raises ``TypeError`` for an unknown field, ``IrgraphError`` (exit code 2) for an empty device,
    a host that is no text, and sizes that are not by name.
    """
    names = list(PredictOptions.__struct_fields__)
    for name in changes:
        if name not in names:
            raise TypeError(f"there is no option {name!r}{suggestion(name, names)}")
    base_options = (
        options if isinstance(options, PredictOptions) else PredictOptions(device=options)
    )
    merged_options = replace(base_options, **changes)
    if merged_options.device == "":
        raise fail("device: give the name of a device, not ''", hint=DEFAULTS, exit_code=2)
    if not isinstance(merged_options.host, str):
        raise fail(
            f"host: give the name of a host, not {describe(merged_options.host)}", exit_code=2
        )
    if merged_options.dims:
        check_sizes("dims", merged_options.dims)
    return merged_options


def apply_options(graph: Graph, options: PredictOptions) -> Graph:
    """Return a graph with the sizes, the loader and the ranks of the options.

    Raises ``IrgraphError`` (exit code 2) for an argument that is no graph, and for impossible
    sizes, ranks or fabrics.
    """
    check_graph(graph)
    if options.fabric is not None:
        check_fabric(options.fabric, backend().fabrics())
    graph_at_sizes = resized(graph, options.dims) if options.dims else graph
    if options.loader is not None:
        graph_at_sizes = with_loading(graph_at_sizes, read_loading(options.loader))
    if options.period is not None:
        graph_at_sizes = with_period(graph_at_sizes, options.period)
    return with_ranks(graph_at_sizes, options.ranks, options.fabric)


def resized(graph: Graph, dims: Mapping[str, int]) -> Graph:
    """Return a graph with new sizes of some dimensions; everything derived from them follows.

    Shapes, strides and attributes that are expressions over the dimensions change; plain numbers
    stay. Raises ``IrgraphError`` (exit code 2) for what is no graph, an unknown dimension or an
    impossible size.
    """
    check_graph(graph)
    check_sizes("dims", dims)
    for name in dims:
        if name not in graph.dims:
            hint = f"its dimensions: {', '.join(graph.dims) or 'none'}"
            message = f"dims: the model has no dimension {name!r}{suggestion(name, graph.dims)}"
            raise fail(message, hint=hint, exit_code=2)
    try:
        return with_dims(graph, dims)
    except ValueError as error:
        raise fail(f"dims: {error}", exit_code=2) from None
