"""Every third event damaged, in ways that leave the file JSON: figures are right, or a code counts.

Right is what arithmetic says of the undamaged file.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from irgraph.analyze import analyze
from irgraph.capture.kineto.events.ranks import read_trees
from irgraph.capture.kineto.events.tree import Tree
from irgraph.capture.kineto.reading.health import REPAIR
from irgraph.diagnostics import IrgraphError
from tests.analyze import raw
from tests.analyze.damage import timed
from tests.analyze.test_damaged import differences

pytestmark = pytest.mark.data

Event = dict[str, Any]


def field(name: str, value: object) -> Callable[[Event], None]:
    """Return a damage that sets a field of an event."""
    return lambda event: event.update({name: value})


def argument(name: str, value: object) -> Callable[[Event], None]:
    """Return a damage that sets an argument of an event which has it."""
    return lambda event: event.get("args", {}).update(
        {name: value} if name in event.get("args", {}) else {}
    )


DAMAGES: dict[str, Callable[[Event], object]] = {
    "start as text": lambda e: e.update(ts=str(e["ts"])),
    "start as word": field("ts", "soon"),
    "start null": field("ts", None),
    "start true": field("ts", True),
    "start in a list": lambda e: e.update(ts=[e["ts"]]),
    "start missing": lambda e: e.pop("ts"),
    "start negative": lambda e: e.update(ts=-e["ts"]),
    "start a year later": lambda e: e.update(ts=e["ts"] + 365 * 86400 * 10**6),
    "start huge": field("ts", 10**30),
    "length as text": lambda e: e.update(dur=str(e["dur"])),
    "length null": field("dur", None),
    "length in an object": lambda e: e.update(dur={"us": e["dur"]}),
    "length missing": lambda e: e.pop("dur"),
    "length negative": lambda e: e.update(dur=-1 - e["dur"]),
    "length huge": field("dur", 1e300),
    "category missing": lambda e: e.pop("cat"),
    "category null": field("cat", None),
    "category a number": field("cat", 7),
    "name null": field("name", None),
    "type missing": lambda e: e.pop("ph"),
    "type unknown": field("ph", "Q"),
    "arguments null": field("args", None),
    "arguments a list": field("args", [1, 2]),
    "arguments missing": lambda e: e.pop("args", None),
    "correlation as text": lambda e: argument(
        "correlation", str(e.get("args", {}).get("correlation"))
    )(e),
    "correlation null": argument("correlation", None),
    "correlation of all 1": argument("correlation", 1),
    "correlation huge": argument("correlation", 10**25),
    "stream a word": argument("stream", "main"),
    "bytes in a list": argument("bytes", [4]),
    "process null": field("pid", None),
    "thread a list": field("tid", [1]),
    "extra fields": field("colour", {"ts": 1, "dur": [2, "}"]}),
}
"""What is done to every third event, by a name for it."""

QUICK = (
    "dlrm_8xV100/kineto_rank1",
    "dlrm_4xV100_overlap/kineto_rank2",
    "formats/kineto_alexnet_A100",
)
"""Traces on which every damage is tried in each run."""


def damaged(path: Path, name: str, folder: Path) -> Path:
    """Write a copy of a trace of which every third complete event is damaged."""
    trace = json.loads(gzip.decompress(path.read_bytes()).decode("utf-8", "replace"), strict=False)
    events = trace if isinstance(trace, list) else trace["traceEvents"]
    for event in [e for e in events if timed(e) and {"ts", "dur"} <= set(e)][::3]:
        DAMAGES[name](event)
    target = folder / "trace.json"
    target.write_text(json.dumps(trace))
    return target


def repairs(tree: Tree) -> dict[str, int]:
    """Return the counts of the findings that put a figure in doubt."""
    health = tree.trace.health
    return {c: n for c, n in health.counts.items() if health.severity(c) == REPAIR}


def unreported(path: Path, name: str, folder: Path) -> list[str]:
    """Return the wrong figures of a damaged copy unless a code counts the damage."""
    try:
        (tree,) = read_trees([str(damaged(path, name, folder))])
        figures = analyze([tree])
    except IrgraphError as error:
        assert error.exit_code == 4, error
        return []
    wrong = list(differences(figures, copy.deepcopy(raw.read(path))))
    if not wrong:
        return []
    (sound,) = read_trees([str(path)])
    before = repairs(sound)
    is_reported = any(count > before.get(code, 0) for code, count in repairs(tree).items())
    return (
        [] if is_reported else [f"{path.parent.name}/{path.name}, {name}: {line}" for line in wrong]
    )


@pytest.mark.parametrize("trace", QUICK)
@pytest.mark.parametrize("name", DAMAGES)
def test_no_wrong_figure_comes_without_a_code(
    name: str, trace: str, data_dir: Path, tmp_path: Path
) -> None:
    assert not unreported(data_dir / f"traces/{trace}.json.gz", name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
def test_no_wrong_figure_of_any_shared_trace_comes_without_a_code(
    name: str, data_dir: Path, tmp_path: Path
) -> None:
    """Every damage in one trace of eight, each trace with several damages."""
    paths = [*data_dir.glob("traces/*/kineto*.json.gz"), *data_dir.glob("hosts/*.json.gz")]
    assert len(paths) > 30
    sample = sorted(paths)[list(DAMAGES).index(name) % 8 :: 8]
    assert not [line for path in sample for line in unreported(path, name, tmp_path)]
