"""Points of a search space as scripts."""

from __future__ import annotations

from irgraph.tuning.axes import OFF, Point
from irgraph.tuning.definition import SpaceDefinition


def calls_of(space: SpaceDefinition, point: Point) -> tuple[str, ...]:
    """Return the calls of passes that a point chooses, in the order of their application."""
    axes = {axis.name: axis for axis in space.axes}
    calls = []
    for name in space.passes:
        choice = point.get(name, OFF)
        if choice == OFF:
            continue
        parameters = [
            f"{axis.name.removeprefix(f'{name}.')} = {axis.calls[str(point[axis.name])]}"
            for axis in space.axes
            if axis.kind == "parameter" and axis.name.startswith(f"{name}.")
        ]
        call = axes[name].calls[str(choice)]
        calls.append(f"{call}({', '.join(parameters)})" if parameters else call)
    return tuple(calls)


def script_of(space: SpaceDefinition, point: Point, comment: str) -> str:
    """Return the script of a point, with comments on what a script cannot express."""
    places = {kind: _environment_choice(space, point, kind) for kind in ("device", "host", "ranks")}
    options = "".join(f" --{kind} {value}" for kind, value in places.items() if value)
    folders = "".join(f" --pass-path {folder}" for folder in space.pass_path)
    lines = [f"# {line}" for line in comment.splitlines()]
    lines.append(f"# irgraph opt -s THIS_FILE{options}{folders} MODEL")
    lines += [f"apply {call}" for call in calls_of(space, point)]
    for axis in space.axes:
        if axis.kind == "size" and axis.name in point:
            lines.append(f"resize {axis.name} = {point[axis.name]}")
    return "\n".join(lines) + "\n"


def _environment_choice(space: SpaceDefinition, point: Point, kind: str) -> str:
    """Return the device, the host or the ranks of a point; ``""`` if there is no such axis."""
    for axis in space.axes:
        if axis.kind == kind:
            default = "" if kind == "ranks" else axis.choices[0]
            return str(point.get(axis.name, default))
    return ""
