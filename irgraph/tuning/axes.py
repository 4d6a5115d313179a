"""Axes of a search space: the choices of a point, and their dependencies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import TypeAlias

from msgspec import Struct, field

from irgraph.diagnostics import fail, suggestion

Choice: TypeAlias = bool | int | float | str
"""Choice of a point on an axis: a plain JSON value."""

Point: TypeAlias = Mapping[str, Choice]
"""Choices of a variant, by the names of its active axes."""

OFF, ON = "off", "on"
"""Choices of a pass: not applied, and applied if there is only one call of it."""

KINDS = ("pass", "parameter", "size", "device", "host", "ranks")

MAX_LISTED = 12
"""Maximum number of choices that a text lists."""


class Axis(Struct, frozen=True):
    """One axis of a search space.

    Attributes:
        name: name of a dimension or a pass, ``PASS.PARAMETER``, or ``device``, ``host``, ``ranks``.
        kind: ``size``, ``pass``, ``parameter``, ``device``, ``host`` or ``ranks``.
        choices: distinct plain values; the first one of a pass is ``off``.
        when: condition of the axis: allowed choices of other axes by name, all of which must match.
            A point that does not meet it has no choice on this axis: the pass is not applied, the
            size is the model's, the device and the host are the first ones.
        why: source of the choices.
        calls: texts of the choices in a script: calls of a pass, or values of a parameter.
    """

    name: str
    kind: str
    choices: tuple[Choice, ...]
    when: Mapping[str, tuple[Choice, ...]] = field(default_factory=dict)
    why: str = ""
    calls: Mapping[str, str] = field(default_factory=dict)

    def takes_part(self, point: Point) -> bool:
        """Return whether a point meets the condition of this axis."""
        return all(point.get(name) in allowed for name, allowed in self.when.items())

    @property
    def step(self) -> int:
        """Distance between increasing, evenly spaced integers; 0 for other choices."""
        return spacing(self.choices)

    def __str__(self) -> str:
        """Return the choices as text."""
        if self.step and len(self.choices) > MAX_LISTED:
            return f"{self.choices[0]} to {self.choices[-1]} in steps of {self.step}"
        few = ", ".join(map(str, self.choices[:MAX_LISTED]))
        more = len(self.choices) - MAX_LISTED
        return f"{few} and {more} more" if more > 0 else few


def spacing(choices: Sequence[Choice]) -> int:
    """Return the distance between increasing, evenly spaced integers, else 0."""
    numbers = [value for value in choices if isinstance(value, int) and type(value) is not bool]
    if len(numbers) < len(choices) or len(numbers) < 2:
        return 0
    step = numbers[1] - numbers[0]
    even = all(b - a == step for a, b in pairwise(numbers))
    return step if even and step > 0 else 0


def sort_axes(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """Sort axes topologically and stably: each comes after the axes that it depends on.

    Raises ``IrgraphError`` (exit code 2) if a condition names an unknown axis or itself.
    """
    by_name = {axis.name: axis for axis in axes}
    for axis in axes:
        _check_when(axis, by_name)
    graph = {axis.name: list(axis.when) for axis in axes}
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        text = " -> ".join(error.args[1])
        raise fail(f"when: these axes wait for each other: {text}", exit_code=2) from None
    depth: dict[str, int] = {}
    for name in order:
        depth[name] = 1 + max((depth[other] for other in graph[name]), default=0)
    return tuple(sorted(axes, key=lambda axis: depth[axis.name]))


def _check_when(axis: Axis, axes: Mapping[str, Axis]) -> None:
    for name, allowed in axis.when.items():
        if name not in axes:
            message = f"when.{axis.name}: there is no axis {name!r}{suggestion(name, axes)}"
            raise fail(message, hint=f"axes: {', '.join(axes)}", exit_code=2)
        for value in allowed:
            check_choice(axes[name], value, f"when.{axis.name}")
        if not allowed:
            raise fail(f"when.{axis.name}: give choices of {name}", exit_code=2)


def condition(axis: Axis) -> str:
    """Return the condition of an axis as text, ``""`` if it has none."""
    return " and ".join(
        f"{name} is {' or '.join(map(str, allowed))}" for name, allowed in axis.when.items()
    )


def check_choice(axis: Axis, value: object, context: str) -> None:
    """Raise ``IrgraphError`` (exit code 2) if a value is no choice of an axis."""
    if any(value == choice and type(value) is type(choice) for choice in axis.choices):
        return
    hint = f"its choices: {axis}"
    guess = suggestion(str(value), map(str, axis.choices))
    message = f"{context}: {axis.name} cannot be {value!r}{guess}"
    raise fail(message, hint=hint, exit_code=2)


def check_point(axes: Sequence[Axis], point: Point) -> None:
    """Raise ``IrgraphError`` (exit code 2) with the reason if this is no point of a space."""
    names = [axis.name for axis in axes]
    for name in point:
        if name not in names:
            message = f"point: there is no axis {name!r}{suggestion(name, names)}"
            raise fail(message, hint=f"axes: {', '.join(names)}", exit_code=2)
    for axis in axes:
        if not axis.takes_part(point):
            if axis.name in point:
                message = f"point: {axis.name} takes part only where {condition(axis)}"
                raise fail(message, exit_code=2)
        elif axis.name not in point:
            raise fail(f"point: it lacks a choice of {axis.name}", hint=str(axis), exit_code=2)
        else:
            check_choice(axis, point[axis.name], "point")


def every_point(axes: Sequence[Axis]) -> Iterator[dict[str, Choice]]:
    """Yield every point of a space once; the last axis changes fastest."""

    def extensions(point: dict[str, Choice], index: int) -> Iterator[dict[str, Choice]]:
        if index == len(axes):
            yield point
            return
        axis = axes[index]
        if not axis.takes_part(point):
            yield from extensions(point, index + 1)
            return
        for value in axis.choices:
            yield from extensions({**point, axis.name: value}, index + 1)

    return extensions({}, 0)
