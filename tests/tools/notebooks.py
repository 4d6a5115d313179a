"""Runs the cells of notebooks in this process: ``python -m tests.tools.notebooks`` writes outputs.

A cell's last expression is shown as Jupyter shows it: its HTML or PNG, else its ``repr``; what is
printed comes before. So that no kernel is needed, nothing of IPython's own works in these cells.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "notebooks"

Cell = dict[str, Any]


def run(notebook: dict[str, Any]) -> Iterator[tuple[Cell, list[Cell]]]:
    """Yield each cell of code with the outputs that it gives now."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            yield cell, list(_outputs("".join(cell["source"]), names))


def _outputs(source: str, names: dict[str, Any]) -> Iterator[Cell]:
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        found = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        yield {"name": "stdout", "output_type": "stream", "text": text}
    if found is not None:
        yield {"data": _shown(found), "metadata": {}, "output_type": "execute_result"}


def _shown(value: Any) -> dict[str, Any]:
    if hasattr(value, "_repr_html_"):
        return {"text/html": [value._repr_html_()], "text/plain": [f"<{type(value).__name__}>"]}
    if hasattr(value, "_repr_png_"):
        png = base64.b64encode(value._repr_png_()).decode()
        return {"image/png": png, "text/plain": [f"<{type(value).__name__}>"]}
    return {"text/plain": [repr(value)]}


def texts(outputs: list[Cell]) -> list[Any]:
    """Return what outputs say, without pictures, which differ from one library to the next."""
    found = []
    for output in outputs:
        data = output.get("data", {})
        found.append(output.get("text") or {k: v for k, v in data.items() if k != "image/png"})
    return found


def write(path: Path) -> None:
    """Execute a notebook and write it with its outputs."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for number, (cell, outputs) in enumerate(run(notebook), 1):
        cell["execution_count"] = number
        for output in outputs:
            if output["output_type"] == "execute_result":
                output["execution_count"] = number
        cell["outputs"] = outputs
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    os.chdir(ROOT)
    for file in sorted(FOLDER.glob("*.ipynb")):
        write(file)
