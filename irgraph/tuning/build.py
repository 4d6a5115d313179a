"""Construction of a search space from the legal instances of passes and from user input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from irgraph.backend import backend
from irgraph.diagnostics import IrgraphError, argument_items, check_sizes, fail, suggestion
from irgraph.ir.dim import BATCH
from irgraph.ir.graph import Graph, check_graph
from irgraph.ir.op import Value
from irgraph.ir.quantity import Quantity
from irgraph.ir.ranks import with_ranks
from irgraph.language import Script, load_pass, parse_pipeline
from irgraph.language.expressions.nodes import Literal
from irgraph.language.statements.apply import Apply
from irgraph.manage.space import Instance, Space, space
from irgraph.overheads.default_host import host_of_step
from irgraph.predict.options import PredictOptions, resized
from irgraph.tuning.axes import OFF, ON, Axis, Choice, sort_axes
from irgraph.tuning.limits import FIGURES, limit
from irgraph.tuning.space import SearchSpace

USER_INPUT = "given"
"""Source of choices that the user gave."""


def search_space(
    graph: Graph,
    *,
    passes: Sequence[str] = (),
    dims: Mapping[str, Iterable[int]] | None = None,
    devices: Sequence[str] = ("v100",),
    hosts: Sequence[str] = ("default",),
    ranks: Sequence[int | str] = (),
    values: Mapping[str, Mapping[str, Sequence[Any]]] | None = None,
    when: Mapping[str, Mapping[str, Sequence[Choice]]] | None = None,
    limits: Mapping[str, object] | None = None,
    prices: Mapping[str, float] | None = None,
    samples: str | None = None,
    pass_path: Sequence[str] = (),
    options: PredictOptions | None = None,
) -> SearchSpace:
    """Return the search space of a step's variants: legal calls of passes, sizes, devices.

    ``space`` returns the calls of one pass with distinct results; this function combines the calls
    of several passes with sizes, devices, hosts and ranks. A pass without legal calls is omitted,
    and listed in ``left_out``.

    Args:
        graph: the step.
        passes: names of passes in the order of their application; each is optional in a variant.
        dims: sizes of dimensions.
        devices: names or files; the first one is the default.
        hosts: names, files or records of a database; the first one is the default.
        ranks: numbers of ranks in collectives, or machines times ranks per machine (``2x8``).
        values: values to try by pass and parameter, instead of the values of ``space``.
        when: conditions by axis: allowed choices of other axes, all of which must match.
        limits: limits by figure: ``{"memory.peak": "16GiB"}`` or ``"device"``,
            ``{"step.time": "20ms"}``, ``{"throughput": 1e5}`` (a minimum).
        prices: price of each device in USD per hour, for the figure ``price``.
        samples: the dimension that counts samples (default: ``B``, if there is one).
        pass_path: further folders of passes.
        options: options of predictions; device, host, sizes and ranks are set by points.

    Raises:
        IrgraphError: an unknown name, an invalid size, limit or condition (exit code 2), or an
            invalid pass.
    """
    base_options = _options(options)
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
    environment_axes = list(_environment_axes(graph, devices, hosts, ranks))
    pass_axes, left_out = _pass_axes(graph, passes, values or {}, pass_path)
    lists = {name: argument_items(f"dims: {name}", sizes, "sizes") for name, sizes in dims.items()}
    all_axes = [
        *environment_axes,
        *pass_axes,
        *(_size(graph, name, sizes) for name, sizes in lists.items()),
    ]
    return SearchSpace(
        graph,
        _with_conditions(all_axes, when or {}),
        {name: limit(name, bound) for name, bound in (limits or {}).items()},
        _prices(prices or {}, devices, limits or {}),
        _samples(graph, samples),
        base_options,
        tuple(name for name in dict.fromkeys(passes) if name not in left_out),
        tuple(pass_path),
        left_out,
    )


def _options(options: PredictOptions | None) -> PredictOptions:
    """Return the options of all predictions; raise ``IrgraphError`` if they set an axis."""
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
    """Return the axes of passes, and the reasons by name for passes without any."""
    all_axes: list[Axis] = []
    left_out: dict[str, str] = {}
    for name in dict.fromkeys(passes):
        pass_values = _values(name, values.get(name, {}), pass_path)
        axes_of_pass, reason = _axes_of_pass(
            name, space(name, graph, values=pass_values, pass_path=pass_path)
        )
        all_axes += axes_of_pass
        left_out.update({name: reason} if not axes_of_pass else {})
    _check_names(values, passes, "values")
    return all_axes, left_out


def _with_conditions(
    axes: Sequence[Axis], when: Mapping[str, Mapping[str, Sequence[Choice]]]
) -> tuple[Axis, ...]:
    """Return the axes with their conditions."""
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise fail(f"two axes would have the name {name!r}", exit_code=2)
    _check_names(when, names, "when")
    with_conditions = []
    for axis in axes:
        conditions = {name: tuple(v) for name, v in when.get(axis.name, {}).items()}
        duplicates = set(conditions) & set(axis.when)
        if duplicates:
            raise fail(f"when.{axis.name}: {duplicates.pop()} is a condition already", exit_code=2)
        conditional_axis = Axis(
            axis.name, axis.kind, axis.choices, {**axis.when, **conditions}, axis.why, axis.calls
        )
        with_conditions.append(conditional_axis)
    return sort_axes(with_conditions)


def _check_names(names: Iterable[str], allowed: Sequence[str], context: str) -> None:
    for name in names:
        if name not in allowed:
            hint = f"there are: {', '.join(allowed) or 'none'}"
            message = f"{context}: there is no {name!r} here{suggestion(name, allowed)}"
            raise fail(message, hint=hint, exit_code=2)


def _values(
    name: str, value_lists: Mapping[str, Sequence[Any]], pass_path: Sequence[str]
) -> dict[str, tuple[Value | Quantity, ...]]:
    """Return values of a pass's parameters; texts are parsed as in a pipeline."""
    types = {parameter.name: parameter.type for parameter in load_pass(name, pass_path).parameters}
    _check_names(value_lists, list(types), f"values.{name}")
    return {
        parameter: tuple(_value(name, parameter, types[parameter], value) for value in values)
        for parameter, values in value_lists.items()
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


def _axes_of_pass(name: str, pass_space: Space) -> tuple[list[Axis], str]:
    """Return the axes of a pass: the pass itself, and its parameters if they vary independently.

    The second result is the reason if there are none.
    """
    call_count = len(pass_space.instances) + len(pass_space.dropped)
    if not pass_space.instances:
        call, reason = (
            pass_space.dropped[0] if pass_space.dropped else (name, "there is nothing to try")
        )
        return [], f"none of {call_count} calls tried changes this step: {call}: {reason}"
    distinct = len(pass_space.instances)
    origin = f"{distinct} of {call_count} calls tried give results of their own on this step"
    free_values = {p: values for p, values in pass_space.values.items() if len(values) > 1}
    if len(free_values) <= 1:
        calls = dict(_label_calls(pass_space.instances, next(iter(free_values), "")))
        return [Axis(name, "pass", (OFF, *calls), why=origin, calls=calls)], ""
    count = 1
    for values in free_values.values():
        count *= len(values)
    if count > len(pass_space.instances):
        calls = {str(instance): str(instance) for instance in pass_space.instances}
        return [Axis(name, "pass", (OFF, *calls), why=origin, calls=calls)], ""
    axes = [Axis(name, "pass", (OFF, ON), why=origin, calls={ON: name})]
    for parameter, values in pass_space.values.items():
        texts = {_label(value): str(Literal(value)) for value in values}
        source = f"values of {parameter} that differ in what they give"
        label = f"{name}.{parameter}"
        axes.append(Axis(label, "parameter", tuple(texts), {name: (ON,)}, source, texts))
    return axes, ""


def _label_calls(instances: Sequence[Instance], parameter: str) -> Iterator[tuple[str, str]]:
    """Yield the choices of a pass with their calls, labelled by the only parameter that varies."""
    for instance in instances:
        label = _label(instance.arguments[parameter]) if parameter else ON
        yield label if label != OFF else f"{parameter} = {OFF}", str(instance)


def _label(value: Value | Quantity) -> str:
    return value if isinstance(value, str) and type(value) is str else str(Literal(value))


def _environment_axes(
    graph: Graph, devices: Sequence[str], hosts: Sequence[str], ranks: Sequence[int | str]
) -> Iterator[Axis]:
    """Yield the axes of devices, hosts and ranks."""
    for kind, names in (("device", devices), ("host", hosts)):
        if not names:
            raise fail(f"{kind}s: give a list of names", exit_code=2)
        _check_distinct(f"{kind}s", names)
    _check_cards(devices)
    for name in hosts:
        host_of_step(name, graph, "")
    yield Axis("device", "device", tuple(devices), why=USER_INPUT)
    yield Axis("host", "host", tuple(hosts), why=USER_INPUT)
    if ranks:
        texts = tuple(map(str, ranks))
        _check_distinct("ranks", texts)
        for text in texts:
            with_ranks(graph, text, None)
        yield Axis("ranks", "ranks", texts, why=USER_INPUT)


def _check_cards(devices: Sequence[str]) -> None:
    """Raise ``IrgraphError`` (exit code 2) for an unknown device, or one with two names."""
    sheets = [backend().device(name) for name in devices]
    for index, sheet in enumerate(sheets):
        if sheet in sheets[:index]:
            first = devices[sheets.index(sheet)]
            message = f"devices: {first!r} and {devices[index]!r} are one device, {sheet.name}"
            raise fail(message, hint="give each once", exit_code=2)


def _size(graph: Graph, name: str, sizes: tuple[int, ...]) -> Axis:
    if not sizes:
        raise fail(f"dims: give sizes of {name}", exit_code=2)
    _check_distinct(f"dims: {name}", sizes)
    for size in (min(sizes), max(sizes)) if all(isinstance(n, int) for n in sizes) else sizes:
        resized(graph, {name: size})
    return Axis(
        name, "size", tuple(map(int, sizes)), why=f"{USER_INPUT}; {graph.dims[name]} as captured"
    )


def _check_distinct(context: str, values: Sequence[object]) -> None:
    if len(set(values)) < len(values):
        raise fail(f"{context}: one is given twice", exit_code=2)


def _prices(
    prices: Mapping[str, float], devices: Sequence[str], limits: Mapping[str, object]
) -> dict[str, float]:
    _check_names(prices, list(devices), "prices")
    for name, price in prices.items():
        limit("price", price)  # a number above 0
        if isinstance(price, str):
            raise fail(f"prices: {name}: give a number, USD an hour", exit_code=2)
    missing = [name for name in devices if name not in prices]
    if (prices or "price" in limits) and missing:
        message = f"prices: there is none of {', '.join(missing)}"
        raise fail(message, hint="give USD an hour of every device", exit_code=2)
    return {name: float(price) for name, price in prices.items()}


def _samples(graph: Graph, samples: str | None) -> str:
    if samples is None:
        return BATCH if BATCH in graph.dims else ""
    _check_names([samples], list(graph.dims), "samples")
    return samples


def objective(space: SearchSpace, name: str) -> str:
    """Return a valid objective; raise ``IrgraphError`` (exit code 2) for any other."""
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
