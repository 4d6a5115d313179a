"""Executed notebooks as pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def page(path: Path) -> str:
    """Return a notebook as Markdown: its texts, its programs, and what they showed."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(part for cell in cells for part in _cell(cell)) + "\n"


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            yield f"![](data:image/png;base64,{''.join(data['image/png']).strip()})"
        elif "text/html" in data:
            yield f"<div>{''.join(data['text/html'])}</div>".replace("\n\n", "\n")
        else:
            said = "".join(data.get("text/plain", output.get("text", "")))
            yield f"```text\n{said.rstrip()}\n```"
