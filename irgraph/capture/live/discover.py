"""The modules that a step uses, found in what it can reach, when it does not name its model."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import ModuleType

from irgraph.capture.common.torch_object import Torch

DEPTH = 3
"""How many objects deep to look: a step's closure, an object in it, a list that this one has."""


def model_of(step: object) -> Torch:
    """Return the module whose names a step's parameters get, or ``None``.

    That is ``step.model`` if it is a module; else the outermost modules among what the step's
    closure, its object and the globals that it names hold. Several are gathered in one module by
    the names that they have there; so are parameters that no module has.
    """
    import torch

    named = getattr(step, "model", None)
    if isinstance(named, torch.nn.Module):
        return uncompiled(named)
    found = dict(_reachable("", step, DEPTH, set()))
    modules = {path: uncompiled(v) for path, v in found.items() if isinstance(v, torch.nn.Module)}
    inner = {id(part) for module in modules.values() for part in list(module.modules())[1:]}
    outer = {
        id(module): (path, module) for path, module in modules.items() if id(module) not in inner
    }
    held = {id(p) for _, module in outer.values() for p in module.parameters()}
    lone = {
        path: value
        for path, value in found.items()
        if isinstance(value, torch.nn.Parameter) and id(value) not in held
    }
    if len(outer) == 1 and not lone:
        return next(iter(outer.values()))[1]
    return _gathered(dict(outer.values()), lone) if outer or lone else None


def _gathered(modules: Mapping[str, Torch], parameters: Mapping[str, Torch]) -> Torch:
    import torch

    whole = torch.nn.Module()
    for path, module in modules.items():
        whole.add_module(_free(path, whole), module)
    for path, parameter in parameters.items():
        whole.register_parameter(_free(path, whole), parameter)
    return whole


def _free(path: str, whole: Torch) -> str:
    name = path.rpartition(".")[2] or "model"
    while hasattr(whole, name):
        name += "_"
    return name


def uncompiled(module: Torch) -> Torch:
    """Return the module that ``torch.compile`` wrapped, or the module itself."""
    return getattr(module, "_orig_mod", module)


def program_forms(step: object, model: object) -> tuple[str, ...]:
    """Return one line for each part of a program that an accelerator would run in another form."""
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
    reached = list(_reachable("", step, DEPTH, set()))
    if model is not None:
        reached += [(path or "the model", module) for path, module in model.named_modules()]
    found = {id(uncompiled(v)): path for path, v in reached if _is_compiled(v)}
    return sorted(set(found.values()) - {""}) or (["the step"] if found else [])


def fast_paths(model: Torch) -> list[str]:
    """Return the kinds of modules of a model that have a fused form for evaluation."""
    import torch

    kinds = (torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention)
    modules = model.modules() if model is not None else ()
    return sorted({type(m).__name__ for m in modules if isinstance(m, kinds) and not m.training})


def _is_compiled(value: Torch) -> bool:
    """Return whether ``torch.compile`` wrapped an object (not ``torch.compiler.disable``)."""
    inside = vars(value) if hasattr(value, "__dict__") else {}
    forward = getattr(inside.get("forward"), "__dict__", {})
    if "_torchdynamo_disable" in inside or "_torchdynamo_disable" in forward:
        return False
    marks = ("_torchdynamo_orig_callable", "_compiled_call_impl")
    modules = inside.get("_modules") or {}
    return "_orig_mod" in modules or any(inside.get(mark) is not None for mark in marks)


def _reachable(path: str, value: Torch, depth: int, seen: set[int]) -> Iterator[tuple[str, Torch]]:
    """Yield modules, parameters and functions below a value, each with how it is called there."""
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
    """Return what an object holds, by name."""
    if isinstance(value, dict):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return {f"{i}": item for i, item in enumerate(value)}
    if isinstance(value, functools.partial):
        return {"func": value.func, **named_members(value.args), **value.keywords}
    if type(value).__module__.partition(".")[0] == "torch":
        return {}  # optimizers and their like hold nothing that has names
    found: dict[str, Torch] = {}
    owner = getattr(value, "__self__", None)
    if owner is not None and not isinstance(owner, type):
        found.update(named_members(owner))
    function = value if hasattr(value, "__code__") else type(value).__dict__.get("__call__")
    code = getattr(function, "__code__", None)
    if code is not None:
        found.update(_closure(function, code))
        outside = getattr(function, "__globals__", {})
        found.update({name: outside[name] for name in code.co_names if name in outside})
    inside = vars(value) if hasattr(value, "__dict__") else {}
    return {**found, **{name: item for name, item in inside.items() if isinstance(name, str)}}


def _closure(function: Torch, code: Torch) -> dict[str, Torch]:
    found = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # a variable that was never set
            continue
    return found
