"""Links between the project's pages, as they are on the site."""

from __future__ import annotations

import os.path
import re
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]

OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    **{
        f"examples/notebooks/{path.name}": f"notebooks/{path.stem}.md"
        for path in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
    },
}
"""Where pages stand on the site that the repository keeps outside ``docs``."""

FENCED = re.compile(r"(^(`{3,}).*?^\2$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)\s]+)\)")


def moved(text: str, source: str) -> str:
    """Return a page's text with its links as they lead on the site.

    ``source`` is the page's path in the repository. A link to a file that is no page becomes text.
    """
    here = PurePosixPath(_on_site(source) or "").parent

    def link(match: re.Match[str]) -> str:
        picture, label, target = match.groups()
        name, hash_, anchor = target.partition("#")
        if "://" in target or not name:
            return match.group()
        path = os.path.normpath(PurePosixPath(source).parent / name)
        found = _on_site(path)
        if found is None:
            return label
        return f"{picture}[{label}]({os.path.relpath(found, here)}{hash_}{anchor})"

    parts = FENCED.split(text)
    return "".join(
        _LINK.sub(link, part) if number % 3 == 0 else part
        for number, part in enumerate(parts)
        if number % 3 != 2
    )


def _on_site(path: str) -> str | None:
    """Return where a file of the repository stands on the site; ``None`` where it does not."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    inside = path.removeprefix("docs/")
    return inside if inside != path and (ROOT / path).is_file() else None
