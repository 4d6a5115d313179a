"""Every command line on a page is one that the commands take: their names, options and values."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from irgraph.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINE = re.compile(r"^(?: {4,}|\$ |)(irgraph (?:[^\n`\\]|\\\n?)*)$", re.MULTILINE)
INLINE = re.compile(r"`(irgraph [a-z-]+ [^`]*)`")
BLOCK = re.compile(r"^```\w*[^\n]*\n.*?^```$|(?:^ {4,}[^\n]*\n)+", re.MULTILINE | re.DOTALL)


def lines(text: str) -> list[str]:
    """Return the command lines of a page: in blocks of code, and within sentences."""
    blocks = [line for block in BLOCK.findall(text) for line in LINE.findall(block)]
    found = [*blocks, *INLINE.findall(BLOCK.sub("", text))]
    parts = (re.split(r"; (?=irgraph )", line.replace("\\\n", " ")) for line in found)
    told = (re.sub(r" {3,}\S.*", "", part) for line in parts for part in line)
    return [" ".join(part.split()) for part in told]


def check(line: str) -> None:
    """Parse a command line, without running it; raises what the command line does where wrong."""
    words = shlex.split(line, comments=True)[1:]
    command: Any = get_command(app)
    context: Any = command.context_class(command, info_name="irgraph")
    while hasattr(command, "commands") or hasattr(command, "list_commands"):
        if not words or words[0].startswith("-") or "|" in words[0]:  # several at once
            return
        command = command.get_command(context, words.pop(0))
        assert command is not None, line
    context = command.context_class(command, info_name=line)
    command.make_parser(context).parse_args(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_command_lines_are_such_as_the_commands_take(page: Path) -> None:
    for line in lines(page.read_text(encoding="utf-8")):
        try:
            check(line)
        except Exception as error:
            named = getattr(error, "option_name", "")  # as in `irgraph show --svg`
            if not (named and line.endswith(f" {named}") and "requires" in str(error)):
                pytest.fail(f"{line}: {error}")


def test_lines_are_found_and_wrong_ones_are_told() -> None:
    text = "a `irgraph show m.ir --svg x` b\n\n    irgraph fmt m.ir; irgraph tiers  # c\n\n"
    text += "```\nirgraph x      tells\n```\n"
    assert sorted(lines(text)) == [
        "irgraph fmt m.ir",
        "irgraph show m.ir --svg x",
        "irgraph tiers # c",
        "irgraph x",
    ]
    for wrong in ("irgraph predict m.ir --devise v100", "irgraph prodict m.ir"):
        with pytest.raises(Exception, match=r"devise|prodict"):
            check(wrong)
