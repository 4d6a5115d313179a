"""Lowers the forward pass of a torch.export program to the ops that torch would run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from irgraph.capture.common.named_dims import with_named_dim
from irgraph.capture.common.result import Capture
from irgraph.capture.common.source import Source
from irgraph.capture.export.archive import read_program
from irgraph.capture.export.validation import UntrustedError
from irgraph.capture.live.torch_warnings import without_stderr
from irgraph.diagnostics import IrgraphError, SourceSpan, fail, suggestion


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
        program: result of ``torch.export.export``, or a file written by ``torch.export.save``.
        dims: sizes of the program's dynamic dimensions, by name; by default the sizes of its
            example inputs. The first dimension remains a dimension of the graph.
        name: the graph's name; by default the file's name.
        trust: read a file with ``torch.export.load``, which runs the code in its pickles; without
            it no code of a file is run, and a file that only torch can read is refused.

    Raises:
        IrgraphError: torch is missing, the file has no program or needs ``trust``, or a
            dimension is unknown.
    """
    torch = _torch()
    if not isinstance(program, (str, Path, Source)):
        return _lower(torch, program, dims or {}, name or "exported", "")
    source = Path(program).name
    title = name or source.removesuffix(".pt2") or "exported"
    with _file_errors(program, "the program cannot be executed"):
        return _lower(torch, _load(torch, program, trust), dims or {}, title, source)


def _lower(
    torch: Any,  # noqa: ANN401
    program: Any,  # noqa: ANN401
    dims: Mapping[str, int],
    title: str,
    source: str,
) -> Capture:
    """Lower a program that has been read; ``source`` is its file's name, if it has a file."""
    sizes = _sizes(program, dict(dims), source)
    module = _meta_module(program)

    def capture_at(dim_sizes: Mapping[str, int]) -> Capture:
        return _run(torch, program, module, dim_sizes, title)

    capture = capture_at(sizes)
    graph, notes = capture.graph, [f"{dim} is {size}" for dim, size in sizes.items()]
    if sizes:
        first, size = next(iter(sizes.items()))
        graph, dim_notes = with_named_dim(
            graph, first, size, lambda n: capture_at({**sizes, first: n}).graph
        )
        notes += dim_notes
    graph = replace(graph, settings={**graph.settings, "source": source or "torch.export"})
    return replace(capture, graph=graph, notes=(*capture.notes, *notes))


def _torch() -> Any:  # noqa: ANN401
    try:
        import torch
    except ImportError:
        hint = "pip install 'irgraph[torch]'"
        raise fail("exported programs need torch", hint=hint, exit_code=2) from None
    return torch


def _load(torch: Any, path: str | Path | Source, trust: bool) -> Any:  # noqa: ANN401
    with Source.open_once(path) as source, _file_errors(path, "not a program of torch.export"):
        file = source.open()
        with without_stderr(), _without_log():
            return torch.export.load(file) if trust else read_program(file)


@contextmanager
def _file_errors(path: str | Path | Source, message: str) -> Iterator[None]:
    """Turn whatever torch raises of a damaged program into an error that names the file."""
    try:
        yield
    except UntrustedError as error:
        hint = "if you trust its author, --trust reads it with torch, which may run its code"
        reason = f"the program cannot be read without running its code: {error}"
        raise fail(reason, SourceSpan(str(path)), hint=hint) from None
    except IrgraphError:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        hint = "it is truncated or not a program: save it again with torch.export.save"
        raise fail(f"{message}: {first[:200]}", SourceSpan(str(path)), hint=hint) from None


@contextmanager
def _without_log() -> Iterator[None]:
    """Suppress torch's log messages about a file that it cannot read: one error is enough."""
    previous_level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(previous_level)


def _sizes(program: Any, dims: dict[str, int], source: str) -> dict[str, int]:  # noqa: ANN401
    """Return the sizes of the dynamic dimensions: as requested, or of the example inputs."""
    if program.example_inputs is None:
        hint = "torch.export.export keeps them; set program.example_inputs to (args, kwargs)"
        raise fail(
            "the program keeps no example inputs", SourceSpan(source or "torch.export"), hint=hint
        )
    nodes = [node for axes in _dynamic_axes(program) for _, node in axes]
    size_by_name = {name: size for node in nodes for _, name, size in _symbols(node)}
    for name in dims:
        if name not in size_by_name:
            hint = f"its dynamic dimensions: {', '.join(size_by_name) or 'none'}"
            message = (
                f"--dim: the program has no dimension {name!r}{suggestion(name, size_by_name)}"
            )
            raise fail(message, SourceSpan(source or "torch.export"), hint=hint, exit_code=2)
    return {name: dims.get(name, size) for name, size in size_by_name.items()}


def _run(
    torch: Any,  # noqa: ANN401
    program: Any,  # noqa: ANN401
    module: Any,  # noqa: ANN401
    sizes: Mapping[str, int],
    title: str,
) -> Capture:
    """Capture the program with inputs of the given sizes on the meta device."""
    from torch.utils import _pytree as tree

    from irgraph.capture.live import capture

    leaves, spec = tree.tree_flatten(program.example_inputs)
    inputs = []
    for leaf, axes in zip(leaves, _dynamic_axes(program), strict=False):
        if not isinstance(leaf, torch.Tensor):
            inputs.append(leaf)
            continue
        shape = list(leaf.shape)
        for axis, node in axes:
            values = {symbol: sizes[name] for symbol, name, _ in _symbols(node)}
            shape[axis] = int(node.expr.subs(values))
        inputs.append(torch.empty(shape, dtype=leaf.dtype, device="meta"))
    positional, keywords = tree.tree_unflatten(inputs, spec)

    def step() -> object:
        with torch.no_grad():
            return module(*positional, **keywords)

    return capture(step, name=title, model=module)


def _dynamic_axes(program: Any) -> list[list[tuple[int, Any]]]:  # noqa: ANN401
    """Return the dynamic axes of each input, with their sizes as expressions over symbols."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    axes = []
    for spec in program.graph_signature.input_specs:
        if spec.kind.name != "USER_INPUT":
            continue
        value = nodes[spec.arg.name].meta.get("val") if hasattr(spec.arg, "name") else None
        sizes = enumerate(getattr(value, "shape", ()))
        axes.append([(i, n.node) for i, n in sizes if not isinstance(n, int)])
    return axes


def _symbols(node: Any) -> Iterator[tuple[Any, str, int]]:  # noqa: ANN401
    """Yield the symbols of a size, the names of their dimensions, and their example sizes."""
    env = node.shape_env
    values = getattr(env, "backed_var_to_val", None) or getattr(env, "var_to_val", {})
    for symbol in sorted(node.expr.free_symbols, key=str):
        hint = node.hint if symbol == node.expr else values[symbol]
        yield symbol, _dim_name(env, symbol), int(hint)


def _dim_name(env: Any, symbol: Any) -> str:  # noqa: ANN401
    """Return the name of a dimension: its ``Dim``'s name, or the symbol's, as in torch's files."""
    debug_names = getattr(env, "source_name_to_debug_name", {})
    sources = getattr(env, "var_to_sources", {}).get(symbol, ())
    names = (source.name() if callable(source.name) else source.name for source in sources)
    dim_names = (str(debug_names.get(name, "")) for name in names)
    return next((name for name in dim_names if name.isidentifier() and name[0] != "_"), str(symbol))


def _meta_module(program: Any) -> Any:  # noqa: ANN401
    """Return the program as a module with tensors on the meta device."""
    from torch.export.passes import move_to_device_pass

    meta_program = move_to_device_pass(program, "meta")
    checks = "check_guards" in signature(meta_program.module).parameters
    return meta_program.module(check_guards=False) if checks else meta_program.module()
