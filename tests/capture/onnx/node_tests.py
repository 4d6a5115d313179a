"""Lowers onnx's own node tests, executes what comes out, and compares it with what onnx expects.

``python tests/capture/onnx/node_tests.py [WORD]`` prints what did not match and the table, of all
tests or of those whose name holds the word.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np

from irgraph.capture.onnx.lower import lower_onnx
from irgraph.diagnostics import IrgraphError
from irgraph.execute import execute
from irgraph.ir.graph import Graph

SHORT = {"float16": 2**-8, "bfloat16": 2**-5}
"""Tolerance of types whose roundings add up over the steps of an operator: four units of them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one test.

    Attributes:
        name: the test's.
        op: what it tests.
        domain: of the op.
        state: ``matched``, ``different``, ``failed`` (it was not executed), ``opaque`` (lowered
            with an op ``onnx.NAME``), or ``refused``.
        reason: why it did not match.
        baked: whether inputs that decide sizes were given as constants.
    """

    name: str
    op: str
    domain: str
    state: str
    reason: str = ""
    baked: bool = False


def cases() -> list[Any]:
    """Return onnx's node tests."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(load_model_tests(kind="node"))


def outcome(case: Any) -> Outcome:
    """Return what became of a test."""
    nodes = case.model.graph.node
    domains = {opset.domain for opset in case.model.opset_import} - {""}
    known = {n.domain for n in nodes} & domains
    op = re.sub(r"_expanded.*", "", case.name) if len(nodes) > 1 else nodes[0].op_type
    what = case.name, op, next(iter(sorted(known)), "")
    inputs, expected = case.data_sets[0]
    baked: list[str] = []
    while True:
        try:
            graph, strangers = lowered(case.model, inputs, baked)
        except IrgraphError as error:
            reason, hint = error.diagnostics[0].message, error.diagnostics[0].hint
            graph, strangers = None, (f"{reason} ({hint})",)
        missing = [n for n in unknown_constants(strangers, case.model) if n not in baked]
        if not missing:
            break
        baked += missing
    if graph is None:
        return Outcome(*what, "refused", strangers[0], bool(baked))
    if any(op.name.startswith("onnx.") for op in graph.walk()):
        return Outcome(*what, "opaque", strangers[0], bool(baked))
    return Outcome(*what, *compared(graph, case, inputs, expected), bool(baked))


def lowered(model: Any, inputs: list[Any], baked: list[str]) -> tuple[Graph, tuple[str, ...]]:
    """Return the graph of a test, some of whose inputs became constants, and what it notes."""
    from onnx import ModelProto, numpy_helper

    made = ModelProto()
    made.CopyFrom(model)
    for value, given in zip(model.graph.input, inputs, strict=False):
        shape = value.type.tensor_type.shape
        if value.name in baked:
            made.graph.initializer.append(numpy_helper.from_array(np.asarray(given), value.name))
        elif value.type.HasField("tensor_type") and len(shape.dim) == len(shape_of(given)):
            place = next(v for v in made.graph.input if v.name == value.name)
            for dim, size in zip(place.type.tensor_type.shape.dim, shape_of(given), strict=True):
                dim.dim_value = size
    with NamedTemporaryFile(suffix=".onnx") as file:
        file.write(made.SerializeToString())
        file.flush()
        captured = lower_onnx(file.name, name="test")
    return captured.graph, captured.notes


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of an array of a test."""
    return tuple(value.dims) if hasattr(value, "dims") else np.shape(value)


def unknown_constants(reasons: tuple[str, ...], model: Any) -> Iterator[str]:
    """Yield the inputs of a model that would have to be constants."""
    known = {value.name: value.type.tensor_type for value in model.graph.input}
    for reason in reasons:
        names = re.findall(r"'([^']*)', is not a constant", reason)
        whole = [n for n, typed in known.items() if len(typed.shape.dim) < 2]
        yield from [name for name in names if name in known] or (whole if names else ())


def compared(graph: Graph, case: Any, inputs: list[Any], expected: list[Any]) -> tuple[str, str]:
    """Execute a graph and compare what it returns; return a state and a reason."""
    names = [value.name for value in case.model.graph.input]
    places = {d.label or d.tensor.name: d.tensor.name for d in graph.tensors}
    given = {
        places[name]: as_tensor(value)
        for name, value in zip(names, inputs, strict=False)
        if name in places and not value_of(graph, places[name])
    }
    try:
        result = execute(graph, given)
    except (IrgraphError, TypeError) as error:
        return "failed", str(error).splitlines()[0]
    for tensor, wanted in zip(graph.returned or (), expected, strict=True):
        found = result[tensor.name]
        want = as_tensor(wanted)
        if found.shape != want.shape or found.dtype != want.dtype:
            return (
                "different",
                f"{found.dtype}{list(found.shape)}, not {want.dtype}{list(want.shape)}",
            )
        share = SHORT.get(str(found.dtype).removeprefix("torch."), 0.0)
        a, b = plain(found), plain(want)
        rtol, atol = max(case.rtol, share), max(case.atol, 1e-6, share)
        if not np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True):
            return "different", f"values differ by up to {np.nanmax(np.abs(a - b)):.3g}"
    return "matched", ""


def value_of(graph: Graph, name: str) -> bool:
    """Tell whether a tensor is a constant of the model."""
    return any(d.tensor.name == name and d.value is not None for d in graph.tensors)


def as_tensor(value: Any) -> Any:
    """Return an array of a test as a tensor."""
    from onnx import numpy_helper

    from irgraph.capture.onnx.model import tensor_of

    proto = value if hasattr(value, "data_type") else numpy_helper.from_array(np.asarray(value))
    return tensor_of(proto)


def plain(tensor: Any) -> Any:
    """Return a tensor as an array that numpy can compare."""
    import torch

    tensor = tensor.detach()
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128).numpy()
    return tensor.to(torch.float64).numpy()


def table(outcomes: list[Outcome]) -> str:
    """Return the table of what became of all tests."""
    lines = []
    for title, some in (
        ("all", outcomes),
        ("default domain", [o for o in outcomes if not o.domain]),
    ):
        states = Counter(o.state for o in some)
        whole = states["matched"] + states["different"] + states["failed"]
        lowered, right = whole + states["opaque"], states["matched"]
        lines += [
            f"{title}: {len(some)}",
            f"  lowered                  {lowered:5} {lowered / len(some):6.1%}",
            f"    without onnx.* ops     {whole:5} {whole / len(some):6.1%}",
            f"      executed             {whole - states['failed']:5}",
            f"      as expected          {right:5} {right / max(whole, 1):6.1%}",
            f"    with sizes as constants {sum(o.baked and o.state != 'refused' for o in some):4}",
            f"  refused by name          {states['refused']:5}",
        ]
    return "\n".join(lines)


def main() -> None:
    """Print the table and what did not match."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    found = [outcome(case) for case in cases() if word in case.name]
    for state in ("failed", "different", "opaque", "refused"):
        for one in found:
            if one.state == state:
                sys.stdout.write(f"{state:10} {one.name}: {one.reason[:230]}\n")
    sys.stdout.write(table(found) + "\n")


if __name__ == "__main__":
    main()
