"""Write ``docs/operators.md`` from the declarations: ``python docs/build_operators.py``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from irgraph.ops import kinds
from irgraph.ops.operator import Operator

PAGE = Path(__file__).with_name("operators.md")

HEAD = """# Operators

The meaning of operators, as declared in `irgraph/ops/kinds`
(`python docs/build_operators.py` writes this page). From a declaration follow the sizes that change
together, placements over ranks, strides of views and floating-point operations. `tests/ops`
compares what follows with torch. Of all other operators torch's meta device is queried.

Letters are axes: in `m k, k n -> m n` the axis `k` is summed. `k!` is mixed, its elements depend on
each other; `*x` is any number of axes, `1` for one element that repeats, `_` for an axis of
which nothing is known, `(a b)` for merged and `a+b` for joined axes. Operators without letters have
axes that follow from other arguments, such as `dim`. Operators that torch tags as element-wise, and
those over lists (`_foreach_`, `_fused_`), need no entry.
"""


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD]
    for name in sorted(module.name for module in iter_modules(kinds.__path__)):
        module = import_module(f"{kinds.__name__}.{name}")
        if module.OPERATORS:
            title = (module.__doc__ or name).splitlines()[0].rstrip(".")
            rows = "\n".join(_rows(module.OPERATORS))
            head = "| operators | letters | FLOP |\n|---|---|---|"
            parts.append(f"## {title}\n\n`irgraph/ops/kinds/{name}.py`\n\n{head}\n{rows}\n")
    return "\n".join(parts)


def _rows(operators: Mapping[str, Operator]) -> Iterator[str]:
    """Yield a row for all operators with the same letters."""
    names_by_facts: dict[tuple[str, str], list[str]] = {}
    for name, operator in operators.items():
        counted = "counted" if operator.flops is not None else ""
        names_by_facts.setdefault((operator.text, counted), []).append(name)
    for (text, counted), names in names_by_facts.items():
        letters = f"`{text}`".replace("|", "\\|") if text else ""
        yield f"| {', '.join(f'`{name}`' for name in names)} | {letters} | {counted} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
