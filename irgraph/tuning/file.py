"""Search spaces as files: axes in ``space.toml``, legality determined by the model."""

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

MAX_SIZES = 100_000
"""Maximum number of sizes of one dimension."""


class Options(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of predictions in a file; ``None`` for the default of ``predict``."""

    mode: str | None = None
    software: str | None = None
    accounting: str | None = None
    pinned: bool | None = None
    indices: list[str] | None = None
    weights: list[str] | None = None
    fabric: str | None = None


class SpaceFile(Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a file: the arguments of ``search_space``, and the objectives.

    Sizes are lists of numbers and ranges ``"FIRST:LAST:STEP"``, the last included.
    """

    passes: list[str] = field(default_factory=list)
    dims: dict[str, int | str | list[int | str]] = field(default_factory=dict)
    devices: list[str] = field(default_factory=lambda: ["v100"])
    hosts: list[str] = field(default_factory=lambda: ["default"])
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

    Raises ``IrgraphError`` for a file that cannot be read (exit code 4); errors of ``search_space``
    get their place in the file.
    """
    text = read_text(path)
    space_file = parse_space(text, path)
    try:
        return _space(space_file, graph), tuple(space_file.objectives)
    except IrgraphError as error:
        diagnostics = [
            diagnostic
            if diagnostic.place
            else replace(diagnostic, place=_span_of(diagnostic.message, path, text))
            for diagnostic in error.diagnostics
        ]
        raise IrgraphError(diagnostics, error.exit_code) from None


def _space(space_file: SpaceFile, graph: Graph) -> SearchSpace:
    options = msgspec.to_builtins(space_file.options)
    return search_space(
        graph,
        passes=space_file.passes,
        dims={name: sizes_of(name, sizes) for name, sizes in space_file.dims.items()},
        devices=space_file.devices,
        hosts=space_file.hosts,
        ranks=space_file.ranks,
        values=space_file.values,
        when=space_file.when,
        limits=space_file.limits,
        prices=space_file.prices,
        samples=space_file.samples,
        pass_path=space_file.pass_path,
        options=PredictOptions(**options),
    )


def parse_space_file(path: str) -> SpaceFile:
    """Parse a file of a space; raise ``IrgraphError`` (exit code 4) if it is invalid."""
    return parse_space(read_text(path), path)


def parse_space(text: str, source: str) -> SpaceFile:
    """Parse a space; raise ``IrgraphError`` (exit code 4) with the place of an error."""
    try:
        return msgspec.convert(tomllib.loads(text), SpaceFile)
    except tomllib.TOMLDecodeError as error:
        position = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line, column = (int(position[1]), int(position[2])) if position else (0, 1)
        message = re.sub(r" \(at .*\)$", "", str(error))
        raise fail(f"not TOML: {message}", SourceSpan(source, text, line, column)) from None
    except RecursionError:
        raise fail("not TOML: it is nested too deeply", SourceSpan(source)) from None
    except msgspec.ValidationError as error:
        unknown = re.search(r"unknown field `(.+?)`", str(error))
        field_names = SpaceFile.__struct_fields__
        word = suggestion(unknown[1], field_names) if unknown else ""
        option_names = ", ".join(Options.__struct_fields__)
        hint = f"a space has {', '.join(field_names)} ([options]: {option_names})"
        place = _span_of(str(error), source, text)
        raise fail(f"not a space: {error}{word}", place, hint=hint) from None
    except (ValueError, OverflowError) as error:
        raise fail(f"not TOML: {error}", SourceSpan(source)) from None


def _span_of(message: str, source: str, text: str) -> SourceSpan:
    """Return the span of the first word in a file that a message quotes, else only the file."""
    words = re.findall(r"'([^']+)'|`(?:\$\.)?([\w-]+)[^`]*`", message)
    for word in (quoted or backquoted for quoted, backquoted in words):
        match = re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)
        if match:
            line = text.count("\n", 0, match.start()) + 1
            column = match.start() - text.rfind("\n", 0, match.start())
            return SourceSpan(source, text, line, column, len(word))
    return SourceSpan(source)


def sizes_of(name: str, specification: int | str | Sequence[int | str]) -> list[int]:
    """Return the sizes of numbers and of ranges ``FIRST:LAST:STEP``, the last included.

    Raises ``IrgraphError`` (exit code 2) for any other item.
    """
    items = (
        specification
        if isinstance(specification, Sequence) and not isinstance(specification, str)
        else [specification]
    )
    sizes: list[int] = []
    for item in items:
        numbers = re.fullmatch(r"(\d{1,18})(?::(\d{1,18}))?(?::(\d{1,18}))?", str(item))
        if isinstance(item, bool) or numbers is None:
            message = f"dims: {name}: give sizes such as 64 or '64:4096:64', not {item!r}"
            raise fail(message, exit_code=2)
        first = int(numbers[1])
        last, step = int(numbers[2] or first), int(numbers[3] or 1)
        if not (1 <= first <= last and step >= 1 and (last - first) // step < MAX_SIZES):
            hint = f"at most {MAX_SIZES:,} sizes"
            message = f"dims: {name}: a range goes up from at least 1, not {item!r}"
            raise fail(message, hint=hint, exit_code=2)
        sizes += range(first, last + 1, step)
    return sizes
