"""Lower a program of torch.export: its forward pass, op by op as torch would run it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from irgraph.capture.common.result import Capture
from irgraph.capture.common.sized import with_named_dim
from irgraph.capture.common.source import Source
from irgraph.capture.export.archive import read_program
from irgraph.capture.export.vetted import UntrustedError
from irgraph.capture.live.warned import without_stderr
from irgraph.diagnostics import IrgraphError, Place, fail, near


def lower_export(
    program: Any,  # noqa: ANN401  (torch.export.ExportedProgram, or a file of one)
    *,
    dims: Mapping[str, int] | None = None,
    name: str | None = None,
    trust: bool = False,
) -> Capture:
    """Lower an exported program, or the ``.pt2`` file of one, to a graph.

    The program's operators run on torch's meta device, under the same observer as a live step.

    Args:
        program: what ``torch.export.export`` returned, or a file that ``torch.export.save`` wrote.
        dims: sizes of the program's dynamic dimensions, by name; those of its example inputs
            otherwise. The first dimension stays one of the graph.
        name: the graph's name; by default the file's.
        trust: read a file with ``torch.export.load``, which runs what its pickles say; without
            it nothing that a file says is run, and what only torch can read is refused.

    Raises:
        IrgraphError: torch is missing, the file holds no program or needs ``trust``, or a
            dimension is unknown.
    """
    torch = _torch()
    source = ""
    if isinstance(program, (str, Path, Source)):
        source, program = Path(program).name, _load(torch, program, trust)
    sizes = _sizes(program, dict(dims or {}), source)
    title = name or source.removesuffix(".pt2") or "exported"
    module = _on_meta(program)

    def at(found: Mapping[str, int]) -> Capture:
        return _run(torch, program, module, found, title)

    captured = at(sizes)
    graph, notes = captured.graph, [f"{dim} is {size}" for dim, size in sizes.items()]
    if sizes:
        first, size = next(iter(sizes.items()))
        graph, more = with_named_dim(graph, first, size, lambda n: at({**sizes, first: n}).graph)
        notes += more
    graph = replace(graph, settings={**graph.settings, "source": source or "torch.export"})
    return replace(captured, graph=graph, notes=(*captured.notes, *notes))


def _torch() -> Any:  # noqa: ANN401
    try:
        import torch
    except ImportError:
        hint = "pip install 'irgraph[torch]'"
        raise fail("exported programs need torch", hint=hint, exit_code=2) from None
    return torch


def _load(torch: Any, path: str | Path | Source, trust: bool) -> Any:  # noqa: ANN401
    with Source.opened(path) as source:
        file = source.open()
        try:
            with without_stderr(), _without_log():
                return torch.export.load(file) if trust else read_program(file)
        except UntrustedError as error:
            hint = "if you trust its author, --trust reads it with torch, which may run its code"
            message = f"the program cannot be read without running its code: {error}"
            raise fail(message, Place(str(path)), hint=hint) from None
        except IrgraphError:
            raise
        except Exception as error:  # whatever torch raises of a damaged program
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            hint = "it is cut short or no program at all: write it again with torch.export.save"
            message = f"not a program of torch.export: {first}"
            raise fail(message, Place(str(path)), hint=hint) from None


@contextmanager
def _without_log() -> Iterator[None]:
    """Keep what torch logs of a file that it cannot read from the user, who gets one error."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _sizes(program: Any, dims: dict[str, int], source: str) -> dict[str, int]:  # noqa: ANN401
    """Return the sizes of the dynamic dimensions: as asked for, or of the example inputs."""
    if program.example_inputs is None:
        hint = "torch.export.export keeps them; set program.example_inputs to (args, kwargs)"
        raise fail(
            "the program keeps no example inputs", Place(source or "torch.export"), hint=hint
        )
    known = {name: size for placed in _symbols(program) for _, name, size in placed}
    for name in dims:
        if name not in known:
            hint = f"its dynamic dimensions: {', '.join(known) or 'none'}"
            message = f"--dim: the program has no dimension {name!r}{near(name, known)}"
            raise fail(message, Place(source or "torch.export"), hint=hint, exit_code=2)
    return {name: dims.get(name, size) for name, size in known.items()}


def _run(
    torch: Any,  # noqa: ANN401
    program: Any,  # noqa: ANN401
    module: Any,  # noqa: ANN401
    sizes: Mapping[str, int],
    title: str,
) -> Capture:
    """Capture the program with inputs of some sizes on the meta device."""
    from torch.utils import _pytree as tree

    from irgraph.capture.live import capture

    leaves, spec = tree.tree_flatten(program.example_inputs)
    made = []
    for leaf, placed in zip(leaves, _symbols(program), strict=False):
        if not isinstance(leaf, torch.Tensor):
            made.append(leaf)
            continue
        shape = list(leaf.shape)
        for axis, name, _ in placed:
            shape[axis] = sizes[name]
        made.append(torch.empty(shape, dtype=leaf.dtype, device="meta"))
    positional, named = tree.tree_unflatten(made, spec)

    def step() -> object:
        with torch.no_grad():
            return module(*positional, **named)

    return capture(step, name=title, model=module)


def _symbols(program: Any) -> list[list[tuple[int, str, int]]]:  # noqa: ANN401
    """Return for each input its dynamic axes: the axis, the dimension's name and its size."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    found = []
    for spec in program.graph_signature.input_specs:
        if spec.kind.name != "USER_INPUT":
            continue
        value = nodes[spec.arg.name].meta.get("val") if hasattr(spec.arg, "name") else None
        sizes = enumerate(getattr(value, "shape", ()))
        found.append([(i, str(n), int(n.node.hint)) for i, n in sizes if not isinstance(n, int)])
    return found


def _on_meta(program: Any) -> Any:  # noqa: ANN401
    """Return the program as a module whose tensors have no content."""
    from torch.export.passes import move_to_device_pass

    moved = move_to_device_pass(program, "meta")
    checks = "check_guards" in signature(moved.module).parameters
    return moved.module(check_guards=False) if checks else moved.module()
