"""The parameter space of a pass on a graph: legal values with distinct results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product

from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Graph, check_graph
from irgraph.ir.op import Value
from irgraph.ir.quantity import Quantity
from irgraph.ir.tensor import DeviceRef, DType
from irgraph.language import Pass, Script, check_script, load_pass, run
from irgraph.language.clauses import Call, Parameter
from irgraph.language.expressions.nodes import Literal
from irgraph.language.statements.apply import Apply
from irgraph.predict.options import PredictOptions
from irgraph.predict.target import target
from irgraph.text.printer import print_graph

MAX_INSTANCES = 256
"""Maximum number of instances of a pass to try."""

UNCHANGED_REASON = "changes nothing"
"""Reason why a legal call is not an instance."""

INTEGERS = (*range(1, 9), *(2**k for k in range(4, 15)))

CANDIDATES: Mapping[str, tuple[Value | Quantity, ...]] = {
    "int": INTEGERS,
    "bool": (False, True),
    "float": (0.25, 0.5, 1.0, 2.0, 4.0),
    "fraction": tuple(Quantity(n, "%") for n in (1, 5, 10, 25, 50, 100)),
    "time": tuple(Quantity(n, "us") for n in (1, 2, 5, 10, 20, 50, 100, 1000)),
    "bytes": tuple(Quantity(4**n, "KiB") for n in range(11)),
    "dtype": tuple(map(DType, ("f32", "tf32", "f16", "bf16"))),
}
"""Values to try for a parameter by its type, in addition to its default."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A pass with arguments; ``str`` gives the call, as in ``fuse-embedding(least = 4)``.

    Attributes:
        name: of the pass.
        arguments: value of every parameter.
        graph: the transformed graph.
    """

    name: str
    arguments: Mapping[str, Value | Quantity]
    graph: Graph

    @property
    def call(self) -> Call:
        """The call as an object, for scripts built in Python."""
        return call_of(self.name, self.arguments)

    def __str__(self) -> str:
        return str(self.call)


@dataclass(frozen=True, slots=True)
class Space:
    """All instances of a pass that change a graph, with distinct results.

    Attributes:
        instances: in the order in which they were tried.
        dropped: calls that were tried and are not among them, each with the reason.
    """

    instances: tuple[Instance, ...]
    dropped: tuple[tuple[str, str], ...] = ()

    @property
    def values(self) -> dict[str, tuple[Value | Quantity, ...]]:
        """Legal values by parameter, in the order in which they were tried."""
        values_by_name: dict[str, list[Value | Quantity]] = {}
        for instance in self.instances:
            for name, value in instance.arguments.items():
                distinct = values_by_name.setdefault(name, [])
                if value not in distinct:
                    distinct.append(value)
        return {name: tuple(values) for name, values in values_by_name.items()}


def call_of(name: str, arguments: Mapping[str, Value | Quantity]) -> Call:
    """Return the call of a pass with these arguments."""
    return Call(name, tuple((key, Literal(value)) for key, value in arguments.items()))


def space(
    called: str | Pass,
    graph: Graph,
    *,
    values: Mapping[str, Sequence[Value | Quantity]] | None = None,
    device: str | PredictOptions | None = None,
    pass_path: Sequence[str] = (),
    most: int = MAX_INSTANCES,
) -> Space:
    """Return the parameter space of a pass on a graph: every legal instance with a distinct result.

    The values of a parameter are its default and the candidates of its type (``CANDIDATES``, the
    graph's devices and modules), or those in ``values``. At most ``most`` instances are tried, and
    dropped if they fail, change nothing or repeat another's result. ``device`` is the device of
    ``op.time``, as for ``rewrite``.

    Raises ``IrgraphError`` if the pass is unknown or unsound.
    """
    check_graph(graph)
    declared = load_pass(called, pass_path) if isinstance(called, str) else called
    passes = () if isinstance(called, str) else (declared,)
    pricer = None if device is None else target(device)
    check_script(Script((declared,)), graph, pass_path)
    choices = [
        tuple((values or {}).get(parameter.name) or _candidates(parameter, graph))
        for parameter in declared.parameters
    ]
    names = [parameter.name for parameter in declared.parameters]
    instance_by_text: dict[str, Instance] = {}
    dropped: list[tuple[str, str]] = []
    unchanged = print_graph(graph)
    for combination in islice(product(*choices), most):
        arguments = dict(zip(names, combination, strict=True))
        call = call_of(declared.name, arguments)
        try:
            rewritten = run(
                Script(passes, (Apply(call),)), graph, pricer=pricer, paths=pass_path
            ).graph
        except IrgraphError as error:
            dropped.append((str(call), error.diagnostics[0].message))
            continue
        text = unchanged if rewritten is graph else print_graph(rewritten)
        if text == unchanged:
            dropped.append((str(call), UNCHANGED_REASON))
        elif text in instance_by_text:
            dropped.append((str(call), f"the same as {instance_by_text[text]}"))
        else:
            instance_by_text[text] = Instance(declared.name, arguments, rewritten)
    return Space(tuple(instance_by_text.values()), tuple(dropped))


def _candidates(parameter: Parameter, graph: Graph) -> Iterator[Value | Quantity]:
    """Yield a parameter's default, then the values that suit its type."""
    default = parameter.default
    if isinstance(default, Literal):
        yield default.value
    candidates: Sequence[Value | Quantity] = CANDIDATES.get(parameter.type, ())
    if parameter.type == "device":
        candidates = [DeviceRef(device.name) for device in graph.devices]
    elif parameter.type == "string" and default is None:
        candidates = sorted({op.module for op in graph.walk() if op.module})
    for value in candidates:
        if not isinstance(default, Literal) or value != default.value:
            yield value
