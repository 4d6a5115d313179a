"""``FILE.py:NAME``: the function of a user's file that returns a step."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CoroutineType, GeneratorType, MappingProxyType, ModuleType
from typing import Any

from irgraph.capture.live.device_calls.vmap import FORWARD, VMAP
from irgraph.diagnostics import IrgraphError, SourceSpan, fail, suggestion

STEP = "return a function without arguments that makes one step"
FUNCTION = "name a function of (batch, device) as FILE.py:NAME, such as examples/dlrm.py:default"
USAGE = f"name a training script as FILE.py; or {FUNCTION.removeprefix('name ')}"

_NO_CUDA = (
    "--device meta emulates cuda without a card, but not this call: use the device that the "
    "function is given"
)
_NO_VALUES = "tensors on meta have no values: create data on the host and copy it with .to(device)"
_NO_RANK = "a distributed program's ranks are given: --ranks 8 --rank 0"
_NO_SIZE = "its result depends on values, which meta tensors lack: capture with --device cpu"

_ELSEWHERE = "copy data in the step, tensor.to(device), to the device that the model is on"

BACKENDS = " This could be because the operator doesn't exist for this backend"
"""Start of the unhelpful remainder of torch's message about a missing kernel."""

HINTS: Mapping[str, str] = {
    "Torch not compiled with CUDA": _NO_CUDA,
    "NVIDIA driver": _NO_CUDA,
    "attribute '_cuda_": _NO_CUDA,
    "Cannot get CUDA generator": "use torch.Generator(): meta tensors take it too",
    "NestedTensorImpl": "attention over jagged tensors needs a real device: pad them, with a mask",
    "FlexAttention's": "what it does to a score must be sums, products, torch.where and the like, "
    "and lookups such as bias[h, q - k]; or write it as scaled_dot_product_attention with a mask",
    "pin_memory=True requires": "call pin_memory() on the tensor, or omit it and pass --pinned",
    "register_meta function": _NO_SIZE,
    "'SparseMeta' backend": "torch has no such call for sparse tensors on meta: capture with "
    "--device cpu, or use dense gradients",
    "with Meta tensors": _NO_SIZE,
    "is not on the expected device": _ELSEWHERE,
    "meta device": _NO_VALUES,
    "meta tensor": _NO_VALUES,
    "'LOCAL_RANK'": _NO_RANK,
    "'RANK'": _NO_RANK,
    "'WORLD_SIZE'": _NO_RANK,
    "environment variable RANK expected": _NO_RANK,
    VMAP: "write its calls out, as make_fx of torch.fx.experimental.proxy_tensor does for a batch",
    FORWARD: "capture gradients (torch.func.grad, vjp), or what make_fx writes out",
    "for HigherOrderOperator": "torch.cond, while_loop, scan and the like are for compilers: write "
    "them as Python's if and for, on values of the host",
    "unsupported autocast device_type": "autocast for meta works within a capture with device meta",
}
"""Hints, by parts of torch's error messages."""


@dataclass(frozen=True, slots=True)
class StepFunction:
    """A function of (batch, device) that returns a step, and its other arguments."""

    path: str
    name: str
    make: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def step(self, batch: int, device: str) -> Callable[[], object]:
        """Return the step at a batch size, or raise the error of the user's function."""
        forward = getattr(self.make, "forward", None)
        _check_call(self.make, self.name, self.path, (batch, device), self.options)
        if isinstance(self.make, type) and forward is not None:
            _check_call(forward, f"the forward of {self.name}", self.path, (None,))
        try:
            step: object = self.make(batch, device, **self.options)
        except (Exception, SystemExit) as error:
            raise user_error(f"{self.name} failed", error, self.path) from error
        refuse_unrun(step, self.name, self.path)
        if not callable(step):
            raise fail(
                f"{self.name} returned {type(step).__name__}, not a step that can be called",
                SourceSpan(self.path),
                hint=STEP,
            )
        _check_call(step, f"the step of {self.name}", self.path, ())
        return step


def _check_call(
    function: Callable[..., Any],
    name: str,
    path: str,
    arguments: Sequence[object],
    options: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Raise ``IrgraphError`` if a user's function does not accept the arguments of its call."""
    is_class = isinstance(function, type)
    # a module accepts any arguments, and forwards them to its forward method
    callee = function if is_class else getattr(function, "forward", function)
    try:
        signature = inspect.signature(callee)
    except (TypeError, ValueError):
        return  # a built-in function: the call itself raises
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        kind = "class" if is_class else "module" if callee is not function else "function"
        is_factory = len(arguments) > 1
        arguments_text = ", ".join(["batch, device"] * is_factory + [f"{key}=…" for key in options])
        raise fail(
            f"{name} is a {kind} of {signature}, and it is called with ({arguments_text}): {error}",
            SourceSpan(path),
            hint=FUNCTION if is_factory else STEP,
        ) from None


def load_target(text: str) -> StepFunction:
    """Return the function that ``FILE.py:NAME`` or ``FILE.py:NAME(key=value)`` names.

    Raises:
        IrgraphError: there is no such file or function, or the file cannot be run.
    """
    path, call = split_target(text)
    if not call:
        raise fail(f"{text!r} names no function", hint=FUNCTION, exit_code=2)
    name, options = _parse_call(call)
    module = load_file(path)
    make = getattr(module, name, None)
    if make is None:
        names = [word for word, value in vars(module).items() if callable(value)]
        raise fail(f"it has no {name!r}{suggestion(name, names)}", SourceSpan(path), exit_code=2)
    if not callable(make):
        raise fail(
            f"{name} is {type(make).__name__}, not a function", SourceSpan(path), exit_code=2
        )
    return StepFunction(path, name, make, options)


def split_target(text: str) -> tuple[str, str]:
    """Return the file that ``FILE.py`` or ``FILE.py:CALL`` names, and the call, ``""`` for none.

    Raises:
        IrgraphError: there is no such file.
    """
    path, _, call = (text, "", "") if text.endswith(".py") else text.rpartition(":")
    if not path.endswith(".py"):
        raise fail(f"{text!r} names no function", hint=USAGE, exit_code=2)
    if not Path(path).is_file():
        raise fail("no such file", SourceSpan(path), hint=USAGE, exit_code=2)
    return path, call


def is_program(text: str) -> bool:
    """Return whether a target is a script, or a function without required arguments."""
    path, call = split_target(text)
    name, options = _parse_call(call)
    if not name:
        return True
    try:
        functions = [
            n for n in ast.parse(_source_text(path)).body if isinstance(n, ast.FunctionDef)
        ]
    except SyntaxError:
        return False  # loading the file reports the error
    parameters = next((function.args for function in functions if function.name == name), None)
    if parameters is None:
        return False
    positional = [*parameters.posonlyargs, *parameters.args]
    required = positional[: len(positional) - len(parameters.defaults)]
    takes_two = parameters.vararg is not None or len(positional) >= 2
    return not takes_two and all(argument.arg in options for argument in required)


def refuse_unrun(value: object, name: str, path: str) -> None:
    """Raise ``IrgraphError`` if a call returned a coroutine or a generator, which has not run."""
    for kind, description in ((CoroutineType, "an async function"), (GeneratorType, "a generator")):
        if isinstance(value, kind):
            value.close()
            hint = "write it with a plain def that does the work and neither awaits nor yields"
            message = f"{name} is {description}: calling it runs nothing"
            raise fail(message, SourceSpan(path) if path else None, hint=hint)


def _parse_call(call: str) -> tuple[str, dict[str, Any]]:
    name, parenthesis, _ = call.partition("(")
    if not parenthesis:
        return name, {}
    try:
        tree = ast.parse(call, mode="eval").body
        if not isinstance(tree, ast.Call) or tree.args:
            raise ValueError
        return name, {str(k.arg): ast.literal_eval(k.value) for k in tree.keywords}
    except (SyntaxError, ValueError):
        raise fail(
            f"cannot read the options of {call!r}",
            hint="write literals by name, such as default(lookups=10, sparse=True)",
            exit_code=2,
        ) from None


def load_file(path: str) -> ModuleType:
    """Run a Python file as a module and return it; raise ``IrgraphError`` at a failing line."""
    name = f"irgraph_target_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise fail("it cannot be loaded as a Python file", SourceSpan(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    folder = str(Path(path).resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        span = SourceSpan(path, _source_text(path), error.lineno or 0, error.offset or 1)
        raise fail(f"not valid Python: {error.msg}", span) from None
    except (Exception, SystemExit) as error:
        raise user_error("the file failed while it was loaded", error, path) from error
    finally:
        sys.path.remove(folder)
    return module


def user_error(doing: str, error: BaseException, path: str) -> IrgraphError:
    """Return an error for an exception of the user's code, at its line in the user's file."""
    message = f"{doing}: {error_text(error)}"
    hint = hint_of(error)
    resolved = Path(path).resolve() if path else None
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if resolved is not None and Path(frame.filename).resolve() == resolved:
            span = SourceSpan(path, _source_text(path), frame.lineno or 0, 1, 200)
            return fail(message, span, hint=hint)
    return fail(message, SourceSpan(path) if path else None, hint=hint)


def hint_of(error: BaseException) -> str:
    """Return the hint for an error of torch, ``""`` if there is none."""
    return next((hint for words, hint in HINTS.items() if words in str(error)), "")


def error_text(error: BaseException) -> str:
    """Return the kind of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    text = lines[0].partition(BACKENDS)[0] if lines else "(no message)"
    return f"{type(error).__name__}: {text}"


def _source_text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")
