"""Statements about ops that were selected on the page, as a draft for the reader to edit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from irgraph import Graph, IrgraphError, Op
from irgraph.diagnostics import fail

PLAIN = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
"""Names that patterns contain without quotes."""

FORMS: dict[str, tuple[str, Callable[[str], str]]] = {
    "find": ("Name them", lambda pattern: f"find chosen = {pattern}"),
    "remove": ("Remove", lambda pattern: f"remove {pattern}"),
    "cast": ("Compute in bf16", lambda pattern: f"cast {pattern} to bf16"),
    "compile": ("Compile", lambda pattern: f"compile {pattern}"),
    "recompute": ("Recompute in the backward", lambda pattern: f"recompute {pattern}"),
    "reorder": ("Run as early as is legal", lambda pattern: f"reorder {pattern} earliest"),
    "expect": ("Expect none", lambda pattern: f"expect no {pattern.removeprefix('many ')}"),
}
"""By verb: the label of a button, and the statement about a pattern."""


def statement(graph: Graph, verb: str, positions: Sequence[int]) -> str:
    """Return a statement about ops, one a line if they have different names.

    Args:
        graph: the model.
        verb: a key of ``FORMS``.
        positions: indices of the ops among all, in launch order, outer before inner.

    Raises:
        IrgraphError: there is no such op, or a pattern would also match others (exit code 2).
    """
    ops = list(graph.walk())
    if (
        verb not in FORMS
        or not positions
        or not all(0 <= position < len(ops) for position in positions)
    ):
        raise fail("select ops of the list", exit_code=2)
    ops_by_name: dict[str, list[Op]] = {}
    for position in sorted(set(positions)):
        ops_by_name.setdefault(ops[position].name, []).append(ops[position])
    patterns = [_pattern(name, same_name_ops, ops) for name, same_name_ops in ops_by_name.items()]
    if verb == "find" and len(patterns) > 1:
        names = [f"chosen{number}" for number in range(1, len(patterns) + 1)]
        return "\n".join(f"find {n} = {p}" for n, p in zip(names, patterns, strict=True))
    return "\n".join(FORMS[verb][1](pattern) for pattern in patterns)


def _pattern(name: str, chosen: Sequence[Op], ops: Sequence[Op]) -> str:
    """Return a pattern that matches some ops of a name, and no others."""
    same_name = [op for op in ops if op.name == name]
    quoted = name if PLAIN.fullmatch(name) else _quote(name)
    many = "many " if len(chosen) > 1 else ""
    if len(same_name) == len(chosen):
        return many + quoted
    results = [_result(op) for op in chosen]
    same_result = [op for op in same_name if _result(op) in results]
    if len(same_result) != len(chosen) or "" in results:
        raise _ambiguity_error(name, len(same_result) - len(chosen))
    tests = [f"op.result == {_quote(result)}" for result in results]
    return f"{many}{quoted} where {' or '.join(tests)}"


def _ambiguity_error(name: str, others: int) -> IrgraphError:
    message = f"{name}: {others} more make or write tensors of the same names"
    hint = "select these, too, or tell them apart by hand: within, where op.phase == ..."
    return fail(message, hint=hint, exit_code=2)


def _result(op: Op) -> str:
    """Return the name by which ``op.result`` knows an op, ``""`` for none."""
    output = next(iter(op.outputs), None)
    if output is not None:
        return output.name
    return next((tensor.name for tensor in op.inputs if tensor.name in op.written), "")


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
