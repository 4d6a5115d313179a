"""Every example of the language's reference runs and gives just what it shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from irgraph.manage.run import find_target
from irgraph.ops.verify import check
from irgraph.text import IrgraphError, parse, print_graph

PAGE = Path(__file__).parents[2] / "docs" / "language.md"
BLOCK = re.compile(r"^```([a-z ]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SOURCE = "what-if.irg"


def shown(text: str) -> str:
    """Return the page with what its examples give in place of what it says they do."""
    graph = after = Graph("none")
    said = ""

    def answer(block: re.Match[str]) -> str:
        nonlocal graph, after, said
        kind, inside = block.groups()
        if kind == "ir":
            graph = after = check(parse(inside, "model.ir"))
            return f"```ir\n{print_graph(graph)}```"
        if kind == "irg":
            after, said = outcome(inside, graph)
        elif kind == "text":
            return f"```text\n{said}\n```"
        elif kind == "ir after":
            return f"```ir after\n{ops(after)}\n```"
        return block.group()

    return BLOCK.sub(answer, text)


def ops(graph: Graph) -> str:
    """Return the operations of a model, without what stands before them."""
    return print_graph(graph).split("\n\n")[-1].rstrip()


def outcome(script: str, graph: Graph) -> tuple[Graph, str]:
    """Return the model after a script with its report, or as it was with the error."""
    try:
        done = run(load_script(script, SOURCE), graph, targets=find_target)
    except IrgraphError as error:
        return graph, f"{error}\n(exit code {error.exit_code})"
    return check(done.graph), str(done.report)


@pytest.mark.long
def test_every_example_gives_what_the_page_shows(page: Callable[[Path, str], None]) -> None:
    page(PAGE, shown(PAGE.read_text(encoding="utf-8")))


def test_the_example_in_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = [match.groups() for match in BLOCK.finditer(text)]
    monkeypatch.chdir(tmp_path)
    Path("model.ir").write_text(next(b for kind, b in blocks if kind == "ir"), encoding="utf-8")
    exec(next(b for kind, b in blocks if kind == "python"), {})
