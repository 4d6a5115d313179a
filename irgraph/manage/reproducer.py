"""Reproducers: files with a model and a script that fails on it, which ``opt`` can run again.

The script follows the model, in comments, so that the file is also a model::

    # irgraph reproducer: stage 2, fuse-epilogue
    # error: the result is unsound ...
    #| pass fuse-epilogue
    #| ...
    #| apply fuse-epilogue
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from irgraph.files import write_atomic
from irgraph.ir.graph import Graph
from irgraph.language import Script
from irgraph.language.library import reachable_passes
from irgraph.manage.stage import Stage
from irgraph.manage.watch import Watcher
from irgraph.text.printer import print_graph

MARK = "\n# irgraph reproducer: "
LINE = "#| "


@dataclass
class Reproducer(Watcher):
    """Writes a reproducer if a stage fails.

    ``path`` is the file to write. With ``defects`` only internal errors are written. ``written`` is
    set after writing.
    """

    path: str | Path
    pass_path: Sequence[str] = ()
    defects: bool = False
    written: bool = False

    def failed(self, stage: Stage, graph: Graph, error: Exception) -> None:
        """Write the graph and the stage."""
        from irgraph.diagnostics import IrgraphError

        if self.defects and isinstance(error, IrgraphError):
            return
        write_atomic(self.path, reproducer(graph, stage, error, self.pass_path))
        self.written = True


def reproducer(graph: Graph, stage: Stage, error: Exception, pass_path: Sequence[str] = ()) -> str:
    """Return the text of a reproducer; passes of the library are written out in full."""
    passes = reachable_passes(stage.script, pass_path, [])
    script = Script(tuple(passes.values()), stage.script.body)
    first = (str(error).splitlines() or [type(error).__name__])[0]
    lines = [*(f"{LINE}{line}".rstrip() for line in str(script).splitlines())]
    return f"{print_graph(graph)}{MARK}{stage}\n# {first}\n" + "\n".join(lines) + "\n"


def recorded_script(text: str) -> str:
    """Return the script of a reproducer; ``""`` for a plain model."""
    _, mark, rest = text.partition(MARK)
    lines = rest.splitlines() if mark else []
    script = [line[len(LINE) :] for line in lines if line.startswith(LINE.rstrip())]
    return "\n".join(script) + "\n" if script else ""


def model_text(text: str) -> str:
    """Return the model in a reproducer; other texts unchanged."""
    return text.partition(MARK)[0]
