"""Lowers a file by the front end that recognises its content.

A front end is one file of the folder ``front_ends``, or of a package that an installed
distribution names in the entry point group ``irgraph.front_ends``. The file defines
``FRONT_END``, a ``FrontEnd``; no other file refers to it.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

from msgspec import Struct

from irgraph.capture.common.result import Capture
from irgraph.capture.common.source import Source
from irgraph.diagnostics import IrgraphError, SourceSpan, fail
from irgraph.plugins import plugins

GROUP = "irgraph.front_ends"
"""Entry points of this group name packages that hold more front ends."""

MODEL_START = b'model "'
"""First bytes of a model's text."""


class FrontEnd(Struct, frozen=True):
    """One kind of file that can be lowered.

    Attributes:
        name: the kind with its article, as messages call it: ``an ONNX model``.
        recognises: returns whether a file is of this kind, by its content; the suffix of its name
            is ignored. No two front ends recognise one file.
        lower: returns the step of a file; its keyword arguments, except for ``name``, the name of
            the graph, are the options of ``lower_file`` that it accepts.
        reason: why it accepts no other options, for the message.
    """

    name: str
    recognises: Callable[[Source], bool]
    lower: Callable[..., Capture]
    reason: str = "it needs none"


@cache
def front_ends() -> tuple[FrontEnd, ...]:
    """Return all front ends: the shipped ones, then the ones of installed packages.

    Raises ``IrgraphError`` that names the package whose front end cannot be loaded.
    """
    result = list(_front_ends_of("irgraph.capture.front_ends"))
    for plugin in plugins(GROUP):
        plugin.load()
        try:
            result += _front_ends_of(plugin.module)
        except Exception as error:  # a plugin's code may raise any exception
            raise plugin.error(f"{type(error).__name__}: {error}") from error
    return tuple(result)


def _front_ends_of(name: str) -> Iterator[FrontEnd]:
    folders = import_module(name).__path__
    for file in pkgutil.iter_modules(folders, f"{name}."):
        front_end = getattr(import_module(file.name), "FRONT_END", None)
        if not isinstance(front_end, FrontEnd):
            raise TypeError(f"{file.name} is in a folder of front ends and defines no FRONT_END")
        yield front_end


def lower_file(
    path: str | Path,
    *,
    name: str | None = None,
    step: int | None = None,
    kineto: str | Path | None = None,
    dims: Mapping[str, int] | None = None,
    trust: bool = False,
) -> Capture:
    """Lower a trace, a model of another tool or a recording's folder, recognised by its content.

    Args:
        path: the file or folder; ``-`` is standard input.
        name: the graph's name; by default the file's.
        step: number of the step, for a trace of several; by default the last complete one.
        kineto: the Kineto trace of the steps of an execution trace, for measured times.
        dims: sizes of the open dimensions of a model of another tool, by name.
        trust: allow torch to read a program whose file may run code; other files need no trust.

    Raises:
        IrgraphError: no front end recognises the file, it cannot be used, or an option does not
            suit its content (exit code 2).
    """
    with Source(path) as source:
        front_end = next((f for f in front_ends() if f.recognises(source)), None)
        if front_end is None:
            raise _unrecognised_file_error(source)
        options: dict[str, object] = {
            "step": step,
            "kineto": kineto,
            "dims": dims or None,
            "trust": trust or None,
        }
        arguments = {option: value for option, value in options.items() if value is not None}
        for option in arguments.keys() - inspect.signature(front_end.lower).parameters.keys():
            message = f"{front_end.name} takes no {option.removesuffix('s')}: {front_end.reason}"
            raise fail(message, SourceSpan(source.name), exit_code=2)
        return front_end.lower(source, name=name, **arguments)


def _unrecognised_file_error(source: Source) -> IrgraphError:
    span = SourceSpan(source.name)
    if source.start.startswith(MODEL_START):
        return fail("this is a model already", span, hint=f"irgraph show {source}")
    if not source.text:
        return fail("the file is empty", span)
    names = ", ".join(front_end.name for front_end in front_ends())
    hint = f"it may be damaged or an error page; known formats: {names}"
    return fail("no front end recognises this file", span, hint=hint)
