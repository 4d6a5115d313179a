"""Finds the modules that a step uses among the objects that it can reach."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import ModuleType

from irgraph.capture.common.torch_object import Torch

MAX_DEPTH = 3
"""Maximum depth of objects that are searched: a step's closure, an object in it, a list in that."""


def model_of(step: object) -> Torch:
    """Return the module that names a step's parameters, or ``None``.

    This is ``step.model`` if it is a module; else the outermost modules in the step's closure, its
    object and the globals that it names. Several modules are gathered in one module under the names
    that they have there, and so are parameters that no module has.
    """
    import torch

    model = getattr(step, "model", None)
    if isinstance(model, torch.nn.Module):
        return unwrap_compiled(model)
    reachable = dict(_reachable("", step, MAX_DEPTH, set()))
    modules = {
        path: unwrap_compiled(v) for path, v in reachable.items() if isinstance(v, torch.nn.Module)
    }
    inner = {id(part) for module in modules.values() for part in list(module.modules())[1:]}
    outer = {
        id(module): (path, module) for path, module in modules.items() if id(module) not in inner
    }
    registered = {p for _, module in outer.values() for p in module.parameters()}
    free_parameters = {
        path: value
        for path, value in reachable.items()
        if isinstance(value, torch.nn.Parameter) and value not in registered
    }
    if len(outer) == 1 and not free_parameters:
        return next(iter(outer.values()))[1]
    return _gather(dict(outer.values()), free_parameters) if outer or free_parameters else None


def _gather(modules: Mapping[str, Torch], parameters: Mapping[str, Torch]) -> Torch:
    import torch

    container = torch.nn.Module()
    for path, module in modules.items():
        container.add_module(_unused_name(path, container), module)
    for path, parameter in parameters.items():
        container.register_parameter(_unused_name(path, container), parameter)
    return container


def _unused_name(path: str, container: Torch) -> str:
    name = path.rpartition(".")[2] or "model"
    while hasattr(container, name):
        name += "_"
    return name


def unwrap_compiled(module: Torch) -> Torch:
    """Return the module that ``torch.compile`` wrapped, or the module itself."""
    return getattr(module, "_orig_mod", module)


def program_forms(step: object, model: object) -> tuple[str, ...]:
    """Return one line for each kind of part that an accelerator would run in another form."""
    lines = []
    compiled = compiled_parts(step, model)
    if compiled:
        names = ", ".join(compiled)
        lines.append(f"torch.compile ({names}): fused kernels; captured as without it")
    fast = fast_paths(model)
    if fast:
        lines.append(f"torch.nn {', '.join(fast)}: one call without gradients")
    return tuple(lines)


def compiled_parts(step: object, model: Torch) -> list[str]:
    """Return the names of compiled modules and functions that a step reaches."""
    reached = list(_reachable("", step, MAX_DEPTH, set()))
    if model is not None:
        reached += [(path or "the model", module) for path, module in model.named_modules()]
    path_by_id = {id(unwrap_compiled(v)): path for path, v in reached if _is_compiled(v)}
    return sorted(set(path_by_id.values()) - {""}) or (["the step"] if path_by_id else [])


def fast_paths(model: Torch) -> list[str]:
    """Return the kinds of modules of a model that have a fused form for evaluation."""
    import torch

    kinds = (torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention)
    modules = model.modules() if model is not None else ()
    return sorted({type(m).__name__ for m in modules if isinstance(m, kinds) and not m.training})


def _is_compiled(value: Torch) -> bool:
    """Return whether ``torch.compile`` wrapped an object (not ``torch.compiler.disable``)."""
    attributes = vars(value) if hasattr(value, "__dict__") else {}
    forward = getattr(attributes.get("forward"), "__dict__", {})
    if "_torchdynamo_disable" in attributes or "_torchdynamo_disable" in forward:
        return False
    marks = ("_torchdynamo_orig_callable", "_compiled_call_impl")
    modules = attributes.get("_modules") or {}
    return "_orig_mod" in modules or any(attributes.get(mark) is not None for mark in marks)


def _reachable(path: str, value: Torch, depth: int, seen: set[int]) -> Iterator[tuple[str, Torch]]:
    """Yield the modules, parameters and functions that a value reaches, each with its path."""
    import torch

    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (torch.nn.Module, torch.nn.Parameter)) or callable(value):
        yield path, value
    if depth and not isinstance(value, (torch.nn.Module, torch.Tensor, type, ModuleType)):
        for name, inner in named_members(value).items():
            yield from _reachable(f"{path}.{name}" if path else name, inner, depth - 1, seen)


def named_members(value: Torch) -> dict[str, Torch]:
    """Return the members of an object, by name."""
    if isinstance(value, dict):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return {f"{i}": item for i, item in enumerate(value)}
    if isinstance(value, functools.partial):
        return {"func": value.func, **named_members(value.args), **value.keywords}
    if type(value).__module__.partition(".")[0] == "torch":
        return {}  # optimizers and similar objects have no named members
    members: dict[str, Torch] = {}
    owner = getattr(value, "__self__", None)
    if owner is not None and not isinstance(owner, type):
        members.update(named_members(owner))
    function = value if hasattr(value, "__code__") else type(value).__dict__.get("__call__")
    code = getattr(function, "__code__", None)
    if code is not None:
        members.update(_closure(function, code))
        module_globals = getattr(function, "__globals__", {})
        members.update(
            {name: module_globals[name] for name in code.co_names if name in module_globals}
        )
    attributes = vars(value) if hasattr(value, "__dict__") else {}
    return {**members, **{name: item for name, item in attributes.items() if isinstance(name, str)}}


def _closure(function: Torch, code: Torch) -> dict[str, Torch]:
    variables = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            variables[name] = cell.cell_contents
        except ValueError:  # a variable that was never set
            continue
    return variables
