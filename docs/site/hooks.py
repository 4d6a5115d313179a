"""What MkDocs does for the site beside its own work.

Pages that the repository keeps elsewhere join it (``links``), the command line gets its page
(``commands``), the library's page takes docstrings by mkdocstrings, and blocks marked ``run`` show
what they make (``runs``).
"""

from __future__ import annotations

import inspect
import re
import tempfile
from pathlib import Path
from typing import Any

import commands
import links
import notebooks
import runs
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

import irgraph

_SOURCES = {site: source for source, site in links.OUTSIDE.items()}
_FENCES = ((r"^```irg$", "```irgraph"), (r"^```ir( after)?$", "```irgraph-model"))
_scratch: list[Any] = []


def on_files(files: Any, config: Any) -> Any:  # noqa: ANN401  (MkDocs' own)
    """Add pages that are not files of ``docs``."""
    for source, site in links.OUTSIDE.items():
        path = links.ROOT / source
        text = notebooks.page(path) if path.suffix == ".ipynb" else path.read_text("utf-8")
        files.append(File.generated(config, site, content=text))
    files.append(File.generated(config, "cli.md", content=commands.page()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ANN401
    """Return a page's text as the site shows it."""
    uri = page.file.src_uri
    text = _by_docstrings(markdown) if uri == "api.md" else markdown
    for fence, shown in _FENCES:
        text = re.sub(fence, shown, text, flags=re.MULTILINE)
    text = links.moved(text, _SOURCES.get(uri, f"docs/{uri}"))

    def keep(path: Path) -> str:
        name = f"runs/{Path(uri).stem}-{path.name}"
        files.append(File.generated(config, name, abs_src_path=str(path)))
        return name

    folder = tempfile.TemporaryDirectory(prefix="irgraph-docs-")
    _scratch.append(folder)
    try:
        return runs.executed(text, Path(folder.name), keep)
    except RuntimeError as error:
        raise PluginError(f"{uri}: a block does not run: {error}") from None


def on_post_page(output: str, page: Any, config: Any) -> str:  # noqa: ANN401  (MkDocs' own)
    """Give the dialog of the search the name that the theme leaves out."""
    dialog = 'data-md-component="search" role="dialog"'
    return output.replace(dialog, f'{dialog} aria-label="Search"')


def on_post_build(config: Any) -> None:  # noqa: ANN401  (MkDocs' own)
    """Remove the folders in which blocks ran."""
    while _scratch:
        _scratch.pop().cleanup()


def _by_docstrings(text: str) -> str:
    """Return the library's page with a directive of mkdocstrings in place of each name's text."""
    head, *parts = re.split(r"^(?=##)", text, flags=re.MULTILINE)
    return head + "".join(map(_directive, parts))


def _directive(part: str) -> str:
    title, _, _ = part.partition("\n")
    name = title.removeprefix("### ")
    if name == title:
        return f"{title}\n\n"
    found = getattr(irgraph, name)
    function = getattr(found, "function", lambda: found)()
    path = f"irgraph.{name}" if not inspect.ismodule(found) else _path(function)
    return f"::: {path}\n    options:\n      heading: {name}\n\n"


def _path(function: Any) -> str:  # noqa: ANN401  (any function)
    return f"{function.__module__}.{function.__qualname__}"
