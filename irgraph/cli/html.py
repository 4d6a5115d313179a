"""Writes the reports of ``--html``, with the command line that produced them."""

from __future__ import annotations

import platform
import shlex
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from irgraph.cli.command_line import COMMAND_LINE
from irgraph.cli.common import writable_path

if TYPE_CHECKING:
    from irgraph.html.page import Page

HtmlOption = Annotated[
    str | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Write a report here: one HTML file that opens in a browser, without network.",
        callback=lambda path: writable_path(path),
    ),
]


def write_page(page: Page, path: str) -> None:
    """Write a report atomically to a file, with its command line and versions."""
    from irgraph.files import write_atomic
    from irgraph.html.page import page_html

    command = shlex.join(("irgraph", *COMMAND_LINE.get())) if COMMAND_LINE.get() else ""
    write_atomic(path, page_html(replace(page, command=command, versions=_versions())))


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    packages = {name: version(name) for name in ("irgraph", "numpy", "msgspec")}
    return {**packages, "Python": platform.python_version()}
