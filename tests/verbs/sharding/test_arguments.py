"""Where rules of sharding look for an op's arguments is where the op's schema has them."""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from irgraph.ir.schema import schemas_of
from irgraph.verbs.sharding import modules, rules
from irgraph.verbs.sharding.layers import rules as layers

TABLES = {"samples": rules.RULES, "modules": modules.MODULES, "layers": layers.RULES}


def looked_up(function: Callable[..., object], base: str) -> Iterator[tuple[str, int]]:
    """Yield the arguments that a rule, and functions of its file that it names, look up."""
    module = sys.modules[function.__module__]
    queue, seen = [function], set()
    while queue:
        here = queue.pop()
        seen.add(here)
        known = {**vars(module), "call": SimpleNamespace(op=SimpleNamespace(base=base))}
        for node in ast.walk(ast.parse(inspect.getsource(here))):
            named = getattr(module, node.id, None) if isinstance(node, ast.Name) else None
            if inspect.isfunction(named) and named.__module__ == module.__name__:
                queue += {named} - seen
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    with contextlib.suppress(AttributeError, NameError, TypeError):
                        known[name] = eval(ast.unparse(value), known)
                case ast.Call(
                    func=ast.Attribute(attr="option" | "dims"), args=[ast.Constant(name), place, *_]
                ):
                    yield name, eval(ast.unparse(place), known)


CASES = [
    pytest.param(name, function, id=f"{table} {name}")
    for table, known in TABLES.items()
    for name, function in known.items()
]


@pytest.mark.parametrize(("name", "function"), CASES)
def test_arguments_stand_where_the_schema_has_them(
    name: str, function: Callable[..., object]
) -> None:
    schemas = schemas_of(name if "." in name else f"aten.{name}")
    for argument, place in looked_up(function, name.rpartition(".")[2]):
        places = {at for s in schemas for at, one in enumerate(s.arguments) if one.name == argument}
        assert not places or place in places, (argument, place, places)
