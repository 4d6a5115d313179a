"""Write ``docs/api.md`` from the docstrings of the library: ``python docs/build_api.py``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import irgraph

PAGE = Path(__file__).with_name("api.md")

WIDTH = 100
"""Characters of a signature in one line."""

HEAD = """# The library

All that a program needs is in `irgraph` itself; this page lists it, from the docstrings
(`python docs/build_api.py` writes it). Names are imported when they are first used, so
`import irgraph` is quick. Types are complete: `irgraph` ships `py.typed`.

**What is stable.** The names on this page, their parameters and the fields that it lists: within a
major version none of them goes or changes its meaning, and one that is to go warns for a minor
version first. New names, fields and optional parameters may come at any time, so pass what is
optional by name. File formats (`model.ir`, scripts, device sheets, host tables) have versions, and
older ones stay readable. Predicted figures are not part of the promise: they change whenever a
model gets better, and the change log says so. Modules below `irgraph` may change at any time.
"""

SECTIONS: dict[str, tuple[str, ...]] = {
    "Models": ("load", "read_graph", "parse", "print_graph", "save", "verified", "with_dims",
               "peak_memory", "reserved_memory", "Graph", "Op", "Tensor", "Declared", "Device",
               "Stream", "Quantity", "Memory"),
    "Capturing and lowering": (
        "capture", "capture_file", "capturing", "lower", "Capture", "Capturing",
    ),
    "Rewriting": ("rewrite", "run_script", "passes", "load_pass", "load_script", "space", "check",
                  "advise", "Advice", "PassGain", "Outcome", "Applied", "Stage", "Report", "Entry",
                  "Watcher", "Pass", "Parameter",
                  "Script", "Call", "Space", "Instance", "Comparison", "Compared",
                  "Coverage"),
    "Predicting": ("predict", "PredictOptions", "diff", "predict_pair", "predict_variants",
                   "predict_ranks", "warm_up", "write_report", "write_timeline", "write_chakra",
                   "devices", "device", "hosts", "Prediction", "Difference", "Plot", "Change",
                   "Variants", "Ranks", "Meeting", "Timeline", "Interval", "Resource",
                   "CriticalPath", "Priced", "Kernel", "PowerDraw", "Accounting", "DeviceFacts",
                   "HostTable"),
    "Searching": ("search_space", "SearchSpace", "Axis", "PointFigures", "Study", "Suggestion",
                  "Trial"),
    "Recorded steps": ("analyze_traces", "replay_trace", "Analysis", "StepFigures", "Replayed"),
    "Errors": ("IrgraphError", "Diagnostic", "SourceSpan"),
}  # fmt: skip
"""Every name of the library, by what it is for; functions before the types that they give."""

_ENTRY = re.compile(r"    (\S.*?): (.*)")


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_described(name) for name in names]
    return "\n".join(parts)


def _described(name: str) -> str:
    found = getattr(irgraph, name)
    if inspect.isclass(found):
        return f"### {name}\n\n{_class(found)}"
    function = getattr(found, "function", lambda: found)()
    return f"### {name}\n\n```python\n{_signature(name, function)}\n```\n\n{_text(function)}"


def _class(found: type) -> str:
    """Return a class's text: its docstring, those of what its fields come from, its methods."""
    inherited = (_text(base).partition("Attributes:\n\n")[2].strip() for base in found.__mro__[1:])
    own = _text(found).strip()
    fields = "\n".join(filter(None, inherited))
    head = "\n" if "Attributes:\n" in own or not fields else "\n\nAttributes:\n\n"
    whole = f"{own}{head}{fields}".strip()
    rows = "\n".join(f"- {row}" for row in _members(found))
    return f"{whole}\n\n{rows}\n" if rows else f"{whole}\n"


def _members(found: type) -> Iterator[str]:
    """Yield properties and methods with the first line of their docstrings."""
    for name, value in vars(found).items():
        if name.startswith("_"):
            continue
        if isinstance(value, property) or type(value).__name__ == "cached_property":
            getter: Any = getattr(value, "fget", None) or value.func  # type: ignore[union-attr]
            yield f"`{name}`: {_first(getter)}"
        elif inspect.isfunction(value):
            parameters = list(inspect.signature(value).parameters)[1:]
            yield f"`{name}({', '.join(parameters)})`: {_first(value)}"


def _first(documented: Any) -> str:  # noqa: ANN401  (whatever has a docstring)
    text = _markdown((inspect.getdoc(documented) or "").partition("\n\n")[0])
    return " ".join(text.split())


def _text(documented: Any) -> str:  # noqa: ANN401  (whatever has a docstring)
    """Return a docstring as Markdown, its lists of parameters as lists."""
    lines: list[str] = []
    listing = False
    for line in (inspect.getdoc(documented) or "").splitlines():
        if line in ("Args:", "Attributes:", "Raises:", "Returns:"):
            listing = True
            lines += [line, ""]
        elif not listing or not line.startswith("    "):
            listing = listing and not line
            lines.append(line)
        elif entry := _ENTRY.fullmatch(line):
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        else:
            lines.append(f"  {line.strip()}")
    return _markdown("\n".join(lines)) + "\n"


def _markdown(text: str) -> str:
    return text.replace("``", "`")


def _signature(name: str, function: Any) -> str:  # noqa: ANN401  (any function)
    """Return a call's signature, in one line where it fits, else a parameter a line."""
    signature = inspect.signature(function)
    parts: list[str] = []
    keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parts.append("*")
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        parts.append(f"{stars}{parameter.name}: {parameter.annotation}{_default(parameter)}")
    made = f" -> {signature.return_annotation}"
    whole = f"{name}({', '.join(parts)}){made}"
    if len(whole) <= WIDTH:
        return whole
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){made}"


def _default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is parameter.empty:
        return ""
    if callable(value):
        return " = ..."
    return f' = "{value}"' if isinstance(value, str) else f" = {value!r}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
