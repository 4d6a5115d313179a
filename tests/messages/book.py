"""Books of messages: models, scripts and command lines, each with all that is said about it.

A book is a page of fenced blocks. ``ir`` is the model of what follows, ``irg`` a script, ``file``
a file (its name on the first line, as a comment), ``sh`` a command line; ``text`` holds what the
block before it leads to.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from irgraph.api import verified
from irgraph.cli.main import main
from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from irgraph.manage.run import find_target
from irgraph.text import IrgraphError, parse

BLOCK = re.compile(r"^```([a-z]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODEL = "model.ir"
SCRIPT = "what-if.irg"


@dataclass
class Reader:
    """Reads a book in an empty folder, which must be the current one."""

    graph: Graph = field(default_factory=lambda: Graph("none"))
    said: str = ""

    def page(self, text: str) -> str:
        """Return a page with what is really said."""
        return BLOCK.sub(self._answer, text)

    def _answer(self, block: re.Match[str]) -> str:
        kind, inside = block.groups()
        if kind == "text":
            return f"```text\n{self.said}\n```"
        try:
            self.said = getattr(self, kind)(inside)
        except IrgraphError as error:
            self.said = f"{error}\n(exit code {error.exit_code})"
        return block.group()

    def ir(self, text: str) -> str:
        Path(MODEL).write_text(text, encoding="utf-8")
        self.graph = verified(parse(text, MODEL), text)
        return ""

    def irg(self, text: str) -> str:
        return str(run(load_script(text, SCRIPT), self.graph, targets=find_target).report)

    def sh(self, text: str) -> str:
        err = io.StringIO()
        arguments = shlex.split(text.replace("\\\n", " "))
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
            code = main(arguments[1:])
        said = err.getvalue().rstrip()
        return f"{said}\n(exit code {code})".lstrip()

    def file(self, text: str) -> str:
        name, _, content = text.partition("\n")
        path = Path(name.removeprefix("# "))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return ""
