"""Several files, read one after the other or by processes: the same trees, the same errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.capture.kineto.events import ranks
from irgraph.capture.kineto.events.tree import Tree
from irgraph.capture.kineto.reading.selection import BYTES_PER_EVENT, EVERYTHING, Selection
from irgraph.diagnostics import IrgraphError
from tests.capture.kineto.builder import events, text


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files of any size be worth two processes."""
    monkeypatch.setattr(ranks, "MIN_PARALLEL_BYTES", 0)
    monkeypatch.setattr(ranks, "_cores", lambda: 2)


def files(folder: Path) -> list[str]:
    """Return three traces, the first the longest, the last one cut off."""
    found = []
    for number, kept in enumerate((None, 20, 9)):
        found.append(str(folder / f"rank{number}.json"))
        Path(found[-1]).write_text(text(events()[:kept]))
    cut = Path(found[-1])
    cut.write_bytes(cut.read_bytes()[:-40])
    return found


def contents(tree: Tree) -> list[object]:
    """Return all that a tree holds, as values that compare."""
    columns = [(key, v.dtype, v.strides, v.tolist()) for key, v in tree.trace.columns.items()]
    arrays = [a.tolist() for a in (tree.parent, tree.end, tree.op, tree.launch, tree.step)]
    trace = tree.trace
    return [columns, arrays, tree.steps, trace.names, trace.threads, trace.shapes, trace.health]


def test_processes_give_the_trees_that_one_would(tmp_path: Path, two_processes: None) -> None:
    """In the order of the files, whichever is read first; absent columns take no memory."""
    paths = files(tmp_path)
    found = list(ranks.read_trees(paths))
    alone = [tree for path in paths for tree in ranks.read_trees([path])]
    assert [contents(tree) for tree in found] == [contents(tree) for tree in alone]
    assert [tree.trace.source for tree in found] == paths
    assert any(v.strides == (0,) for v in found[0].trace.columns.values())


def test_a_file_that_a_process_cannot_read_is_named(tmp_path: Path, two_processes: None) -> None:
    """The error is the one of reading the file alone."""
    paths = files(tmp_path)
    Path(paths[1]).write_text("[1, 2")
    with pytest.raises(IrgraphError) as alone:
        list(ranks.read_trees([paths[1]]))
    with pytest.raises(IrgraphError) as found:
        list(ranks.read_trees(paths))
    assert str(found.value) == str(alone.value)
    assert "rank1.json" in str(found.value)
    assert found.value.exit_code == alone.value.exit_code


@pytest.mark.parametrize("why", ["small", "memory", "one core", "no file"])
def test_no_process_where_it_does_not_pay(
    why: str, tmp_path: Path, two_processes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small files, little memory, a single core, and what is no file are read in turn."""
    monkeypatch.setattr(ranks, "ProcessPoolExecutor", None)
    selection = EVERYTHING
    if why == "small":
        monkeypatch.setattr(ranks, "MIN_PARALLEL_BYTES", 200e6)
    elif why == "one core":
        monkeypatch.setattr(ranks, "_cores", lambda: 1)
    elif why == "memory":
        selection = Selection(memory=25 * BYTES_PER_EVENT)
    paths = files(tmp_path)
    if why == "no file":
        with pytest.raises(IrgraphError):
            list(ranks.read_trees([*paths, str(tmp_path / "none.json")]))
        return
    assert len(list(ranks.read_trees(paths[1:], selection))) == 2
