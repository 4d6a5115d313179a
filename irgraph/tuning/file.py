"""Search spaces as files: ``space.toml`` says what varies, the model says what of it is legal."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace

import msgspec
from msgspec import Struct, field

from irgraph.diagnostics import IrgraphError, SourceSpan, fail, suggestion
from irgraph.files import read_text
from irgraph.ir.graph import Graph
from irgraph.predict.options import PredictOptions
from irgraph.tuning.axes import Choice
from irgraph.tuning.build import search_space
from irgraph.tuning.space import SearchSpace

MOST = 100_000
"""Sizes of one dimension."""


class Options(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of predictions that a file may give; ``None``: as ``predict`` has them."""

    mode: str | None = None
    software: str | None = None
    accounting: str | None = None
    pinned: bool | None = None
    indices: list[str] | None = None
    weights: list[str] | None = None
    fabric: str | None = None


class SpaceFile(Struct, frozen=True, forbid_unknown_fields=True):
    """What a file may say; the arguments of ``search_space``, and the objectives.

    Sizes are lists of numbers and ranges ``"FIRST:LAST:STEP"``, the last included.
    """

    passes: list[str] = field(default_factory=list)
    dims: dict[str, int | str | list[int | str]] = field(default_factory=dict)
    devices: list[str] = field(default_factory=lambda: ["v100"])
    hosts: list[str] = field(default_factory=lambda: ["v100"])
    ranks: list[int | str] = field(default_factory=list)
    objectives: list[str] = field(default_factory=list)
    samples: str | None = None
    pass_path: list[str] = field(default_factory=list)
    values: dict[str, dict[str, list[Choice]]] = field(default_factory=dict)
    when: dict[str, dict[str, list[Choice]]] = field(default_factory=dict)
    limits: dict[str, float | int | str] = field(default_factory=dict)
    prices: dict[str, float | int] = field(default_factory=dict)
    options: Options = field(default_factory=Options)


def read_space(path: str, graph: Graph) -> tuple[SearchSpace, tuple[str, ...]]:
    """Return the space of a file on a step, and the objectives that it names, if any.

    Raises ``IrgraphError`` for a file that cannot be read (exit code 4), and for what
    ``search_space`` refuses, with its place in the file.
    """
    text = read_text(path)
    told = parsed(text, path)
    try:
        return _space(told, graph), tuple(told.objectives)
    except IrgraphError as error:
        placed = [
            one if one.place else replace(one, place=_place_of(one.message, path, text))
            for one in error.diagnostics
        ]
        raise IrgraphError(placed, error.exit_code) from None


def _space(told: SpaceFile, graph: Graph) -> SearchSpace:
    given = msgspec.to_builtins(told.options)
    return search_space(
        graph,
        passes=told.passes,
        dims={name: sizes_of(name, sizes) for name, sizes in told.dims.items()},
        devices=told.devices,
        hosts=told.hosts,
        ranks=told.ranks,
        values=told.values,
        when=told.when,
        limits=told.limits,
        prices=told.prices,
        samples=told.samples,
        pass_path=told.pass_path,
        options=PredictOptions(**given),
    )


def parsed_file(path: str) -> SpaceFile:
    """Return what a file says; raise ``IrgraphError`` (exit code 4) where it is no space."""
    return parsed(read_text(path), path)


def parsed(text: str, source: str) -> SpaceFile:
    """Return what a file says; raise ``IrgraphError`` (exit code 4) with the place of an error."""
    try:
        return msgspec.convert(tomllib.loads(text), SpaceFile)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line, column = (int(at[1]), int(at[2])) if at else (0, 1)
        message = re.sub(r" \(at .*\)$", "", str(error))
        raise fail(f"not TOML: {message}", SourceSpan(source, text, line, column)) from None
    except msgspec.ValidationError as error:
        unknown = re.search(r"unknown field `(.+?)`", str(error))
        known = SpaceFile.__struct_fields__
        word = suggestion(unknown[1], known) if unknown else ""
        hint = f"a space has {', '.join(known)} ([options]: {', '.join(Options.__struct_fields__)})"
        place = _place_of(str(error), source, text)
        raise fail(f"not a space: {error}{word}", place, hint=hint) from None


def _place_of(message: str, source: str, text: str) -> SourceSpan:
    """Return the first place in a file of a word that a message quotes; else the file alone."""
    words = re.findall(r"'([^']+)'|`(?:\$\.)?([\w-]+)[^`]*`", message)
    for word in (one or other for one, other in words):
        found = re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)
        if found:
            line = text.count("\n", 0, found.start()) + 1
            column = found.start() - text.rfind("\n", 0, found.start())
            return SourceSpan(source, text, line, column, len(word))
    return SourceSpan(source)


def sizes_of(name: str, given: int | str | Sequence[int | str]) -> list[int]:
    """Return the sizes that numbers and ranges ``FIRST:LAST:STEP`` give, the last included.

    Raises ``IrgraphError`` (exit code 2) where one is neither.
    """
    items = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    found: list[int] = []
    for item in items:
        numbers = re.fullmatch(r"(\d{1,18})(?::(\d{1,18}))?(?::(\d{1,18}))?", str(item))
        if isinstance(item, bool) or numbers is None:
            message = f"dims: {name}: give sizes such as 64 or '64:4096:64', not {item!r}"
            raise fail(message, exit_code=2)
        first = int(numbers[1])
        last, step = int(numbers[2] or first), int(numbers[3] or 1)
        if not (1 <= first <= last and step >= 1 and (last - first) // step < MOST):
            hint = f"at most {MOST:,} sizes"
            message = f"dims: {name}: a range goes up from at least 1, not {item!r}"
            raise fail(message, hint=hint, exit_code=2)
        found += range(first, last + 1, step)
    return found
