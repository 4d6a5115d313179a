"""Options that several commands share as one parameter, a frozen dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def expand_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command in which each field of its dataclass parameters is a separate parameter.

    The parameters replace the parameter of the dataclass, and have the types, annotations and
    defaults of its fields.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name not in groups:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))
            continue
        group = groups[parameter.name]
        kinds = get_type_hints(group, include_extras=True)
        parameters += [
            parameter.replace(name=field.name, default=field.default, annotation=kinds[field.name])
            for field in fields(group)
        ]

    @wraps(command)
    def call(**arguments: Any) -> Any:  # noqa: ANN401
        for name, group in groups.items():
            arguments[name] = group(
                **{field.name: arguments.pop(field.name) for field in fields(group)}
            )
        return command(**arguments)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call
