"""Building a search space from the legal instances of passes, and from what is given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from irgraph.backend import backend
from irgraph.diagnostics import IrgraphError, argument_items, check_sizes, fail, suggestion
from irgraph.ir.graph import Graph, check_graph
from irgraph.ir.op import Value
from irgraph.ir.quantity import Quantity
from irgraph.ir.ranks import with_ranks
from irgraph.language import Script, load_pass, parse_pipeline
from irgraph.language.expressions.nodes import Literal
from irgraph.language.statements.apply import Apply
from irgraph.manage.space import Instance, Space, space
from irgraph.overheads import load_host
from irgraph.predict.options import PredictOptions, resized
from irgraph.tuning.axes import OFF, ON, Axis, Choice, ordered
from irgraph.tuning.limits import FIGURES, limit
from irgraph.tuning.space import SearchSpace

BATCH = "B"
"""The dimension that counts samples unless another one is named."""

GIVEN = "given"


def search_space(
    graph: Graph,
    *,
    passes: Sequence[str] = (),
    dims: Mapping[str, Iterable[int]] | None = None,
    devices: Sequence[str] = ("v100",),
    hosts: Sequence[str] = ("v100",),
    ranks: Sequence[int | str] = (),
    values: Mapping[str, Mapping[str, Sequence[Any]]] | None = None,
    when: Mapping[str, Mapping[str, Sequence[Choice]]] | None = None,
    limits: Mapping[str, object] | None = None,
    prices: Mapping[str, float] | None = None,
    samples: str | None = None,
    pass_path: Sequence[str] = (),
    options: PredictOptions | None = None,
) -> SearchSpace:
    """Return the space of a step's variants: passes as they are legal on it, sizes and places.

    Of one pass, ``space`` tells the calls with results of their own; this joins those of several
    with sizes, devices, hosts and ranks. A pass without any is left out, which the space tells.

    Args:
        graph: the step.
        passes: names, in the order in which they are applied; each may be left out.
        dims: sizes of dimensions.
        devices: names or files; a point that chooses none is on the first.
        hosts: names, files or records of a database; the same.
        ranks: how many ranks take part in collectives, or machines times ranks on each (``2x8``).
        values: by pass and parameter, the values to try in place of those of ``space``.
        when: by axis, choices of others with which it takes part; all must hold.
        limits: by figure, what a variant must keep to: ``{"memory.peak": "16GiB"}`` or
            ``"device"``, ``{"step.time": "20ms"}``, ``{"throughput": 1e5}`` (at least).
        prices: USD an hour of each device, for the figure ``price``.
        samples: the dimension that counts samples (default: ``B``, if there is one).
        pass_path: further folders of passes.
        options: of predictions; device, host, sizes and ranks are those of points.

    Raises:
        IrgraphError: an unknown name, a size, limit or condition that cannot be (exit code 2), or
            an unsound pass.
    """
    chosen = _options(options)
    check_graph(graph)
    dims = {} if dims is None else dims
    check_sizes("dims", dims)
    passes, ranks = (
        argument_items("passes", passes, "names"),
        argument_items("ranks", ranks, "numbers of ranks"),
    )
    devices, hosts = (
        argument_items("devices", devices, "names"),
        argument_items("hosts", hosts, "names"),
    )
    places = list(_places(graph, devices, hosts, ranks))
    axes, left_out = _pass_axes(graph, passes, values or {}, pass_path)
    lists = {name: argument_items(f"dims: {name}", sizes, "sizes") for name, sizes in dims.items()}
    found = [*places, *axes, *(_size(graph, name, sizes) for name, sizes in lists.items())]
    return SearchSpace(
        graph,
        _ordered(found, when or {}),
        {name: limit(name, bound) for name, bound in (limits or {}).items()},
        _prices(prices or {}, devices, limits or {}),
        _samples(graph, samples),
        chosen,
        tuple(name for name in dict.fromkeys(passes) if name not in left_out),
        tuple(pass_path),
        left_out,
    )


def _options(options: PredictOptions | None) -> PredictOptions:
    """Return the options of all predictions; refuse what is an axis of its own."""
    chosen = options or PredictOptions()
    if chosen.device is not None or chosen.dims or chosen.ranks is not None:
        message = "options: device, dims and ranks are axes: give devices, dims, ranks"
        raise fail(message, exit_code=2)
    return chosen


def _pass_axes(
    graph: Graph,
    passes: Sequence[str],
    values: Mapping[str, Mapping[str, Sequence[Any]]],
    pass_path: Sequence[str],
) -> tuple[list[Axis], dict[str, str]]:
    """Return the axes of passes, and why passes without any are left out."""
    found: list[Axis] = []
    left_out: dict[str, str] = {}
    for name in dict.fromkeys(passes):
        given = _values(name, values.get(name, {}), pass_path)
        axes, why = _of_pass(name, space(name, graph, values=given, pass_path=pass_path))
        found += axes
        left_out.update({name: why} if not axes else {})
    _check_named(values, passes, "values")
    return found, left_out


def _ordered(
    axes: Sequence[Axis], when: Mapping[str, Mapping[str, Sequence[Choice]]]
) -> tuple[Axis, ...]:
    """Return the axes with their conditions."""
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise fail(f"two axes would have the name {name!r}", exit_code=2)
    _check_named(when, names, "when")
    with_conditions = []
    for axis in axes:
        given = {name: tuple(v) for name, v in when.get(axis.name, {}).items()}
        both = set(given) & set(axis.when)
        if both:
            raise fail(f"when.{axis.name}: {both.pop()} is a condition already", exit_code=2)
        changed = Axis(
            axis.name, axis.kind, axis.choices, {**axis.when, **given}, axis.why, axis.calls
        )
        with_conditions.append(changed)
    return ordered(with_conditions)


def _check_named(given: Iterable[str], known: Sequence[str], where: str) -> None:
    for name in given:
        if name not in known:
            hint = f"there are: {', '.join(known) or 'none'}"
            message = f"{where}: there is no {name!r} here{suggestion(name, known)}"
            raise fail(message, hint=hint, exit_code=2)


def _values(
    name: str, given: Mapping[str, Sequence[Any]], pass_path: Sequence[str]
) -> dict[str, tuple[Value | Quantity, ...]]:
    """Return values of a pass's parameters; texts are read as a pipeline has them."""
    types = {parameter.name: parameter.type for parameter in load_pass(name, pass_path).parameters}
    _check_named(given, list(types), f"values.{name}")
    return {
        parameter: tuple(_value(name, parameter, types[parameter], value) for value in values)
        for parameter, values in given.items()
    }


def _value(name: str, parameter: str, kind: str, value: Any) -> Value | Quantity:  # noqa: ANN401
    if not isinstance(value, str) or kind == "string":
        return value  # type: ignore[no-any-return]
    try:
        script = parse_pipeline(f"{name}({parameter} = {value})")
    except IrgraphError:
        script = Script(())
    for statement in script.body:
        assert isinstance(statement, Apply)
        for _, node in statement.call.arguments:
            if isinstance(node, Literal):
                return node.value
    message = f"values.{name}: {parameter} is of type {kind}, not {value!r}"
    raise fail(message, exit_code=2)


def _of_pass(name: str, found: Space) -> tuple[list[Axis], str]:
    """Return the axes of a pass: itself, and its parameters where they vary freely."""
    tried = len(found.instances) + len(found.dropped)
    if not found.instances:
        call, reason = found.dropped[0] if found.dropped else (name, "there is nothing to try")
        return [], f"none of {tried} calls tried changes this step: {call}: {reason}"
    why = f"{len(found.instances)} of {tried} calls tried give results of their own on this step"
    varied = {p: values for p, values in found.values.items() if len(values) > 1}
    if len(varied) <= 1:
        calls = dict(_labelled(found.instances, next(iter(varied), "")))
        return [Axis(name, "pass", (OFF, *calls), why=why, calls=calls)], ""
    count = 1
    for values in varied.values():
        count *= len(values)
    if count > len(found.instances):
        calls = {str(instance): str(instance) for instance in found.instances}
        return [Axis(name, "pass", (OFF, *calls), why=why, calls=calls)], ""
    axes = [Axis(name, "pass", (OFF, ON), why=why, calls={ON: name})]
    for parameter, values in found.values.items():
        texts = {_label(value): str(Literal(value)) for value in values}
        said = f"values of {parameter} that differ in what they give"
        label = f"{name}.{parameter}"
        axes.append(Axis(label, "parameter", tuple(texts), {name: (ON,)}, said, texts))
    return axes, ""


def _labelled(instances: Sequence[Instance], parameter: str) -> Iterator[tuple[str, str]]:
    """Yield the choices of a pass with their calls: named by the one parameter that varies."""
    for instance in instances:
        label = _label(instance.arguments[parameter]) if parameter else ON
        yield label if label != OFF else f"{parameter} = {OFF}", str(instance)


def _label(value: Value | Quantity) -> str:
    return value if isinstance(value, str) and type(value) is str else str(Literal(value))


def _places(
    graph: Graph, devices: Sequence[str], hosts: Sequence[str], ranks: Sequence[int | str]
) -> Iterator[Axis]:
    """Yield the axes of what a step runs on."""
    for kind, names in (("device", devices), ("host", hosts)):
        if not names:
            raise fail(f"{kind}s: give a list of names", exit_code=2)
        _check_distinct(f"{kind}s", names)
    _check_cards(devices)
    for name in hosts:
        load_host(name)
    yield Axis("device", "device", tuple(devices), why=GIVEN)
    yield Axis("host", "host", tuple(hosts), why=GIVEN)
    if ranks:
        texts = tuple(map(str, ranks))
        _check_distinct("ranks", texts)
        for text in texts:
            with_ranks(graph, text, None)
        yield Axis("ranks", "ranks", texts, why=GIVEN)


def _check_cards(devices: Sequence[str]) -> None:
    """Raise ``IrgraphError`` (exit code 2) for an unknown device, or one under two names."""
    sheets = [backend().device(name) for name in devices]
    for at, sheet in enumerate(sheets):
        if sheet in sheets[:at]:
            first = devices[sheets.index(sheet)]
            message = f"devices: {first!r} and {devices[at]!r} are one device, {sheet.name}"
            raise fail(message, hint="give each once", exit_code=2)


def _size(graph: Graph, name: str, sizes: tuple[int, ...]) -> Axis:
    if not sizes:
        raise fail(f"dims: give sizes of {name}", exit_code=2)
    _check_distinct(f"dims: {name}", sizes)
    for size in (min(sizes), max(sizes)) if all(isinstance(n, int) for n in sizes) else sizes:
        resized(graph, {name: size})
    return Axis(
        name, "size", tuple(map(int, sizes)), why=f"{GIVEN}; {graph.dims[name]} as captured"
    )


def _check_distinct(where: str, given: Sequence[object]) -> None:
    if len(set(given)) < len(given):
        raise fail(f"{where}: one is given twice", exit_code=2)


def _prices(
    prices: Mapping[str, float], devices: Sequence[str], limits: Mapping[str, object]
) -> dict[str, float]:
    _check_named(prices, list(devices), "prices")
    for name, price in prices.items():
        limit("price", price)  # a number above 0
        if isinstance(price, str):
            raise fail(f"prices: {name}: give a number, USD an hour", exit_code=2)
    lacking = [name for name in devices if name not in prices]
    if (prices or "price" in limits) and lacking:
        message = f"prices: there is none of {', '.join(lacking)}"
        raise fail(message, hint="give USD an hour of every device", exit_code=2)
    return {name: float(price) for name, price in prices.items()}


def _samples(graph: Graph, samples: str | None) -> str:
    if samples is None:
        return BATCH if BATCH in graph.dims else ""
    _check_named([samples], list(graph.dims), "samples")
    return samples


def objective(space: SearchSpace, name: str) -> str:
    """Return an objective that points have; raise ``IrgraphError`` (exit code 2) for another."""
    if name not in FIGURES:
        hint = f"figures: {', '.join(FIGURES)}"
        message = f"objective: unknown figure {name!r}{suggestion(name, FIGURES)}"
        raise fail(message, hint=hint, exit_code=2)
    if name in ("throughput", "price") and not space.samples:
        hint = "name the dimension that counts samples"
        raise fail(f"objective: {name} needs samples", hint=hint, exit_code=2)
    if name == "price" and not space.prices:
        hint = "give USD an hour of every device"
        raise fail("objective: price needs prices", hint=hint, exit_code=2)
    return name
