"""Applies pipelines of passes and scripts to a graph, in order, each as one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import passes
from irgraph import gc_pause
from irgraph.diagnostics import IrgraphError, fail, suggestion
from irgraph.ir.graph import Graph
from irgraph.language import Pricer, load_pass, run
from irgraph.language.check import check_script
from irgraph.language.expressions.evaluate import Target
from irgraph.manage.stage import Applied, Outcome, Stage
from irgraph.manage.watch import Watcher

if TYPE_CHECKING:
    from irgraph.predict.options import PredictOptions


def find_target(device: str, options: PredictOptions | None = None) -> Target:
    """Return a device for ``target`` and ``op.time``; cost models load on first use.

    Raises ``IrgraphError`` if there is none of that name.
    """
    from irgraph.predict.target import target

    return target(options, device=device)


def run_stages(
    graph: Graph,
    pipeline: Sequence[Stage],
    *,
    pass_path: Sequence[str] = (),
    pricer: Pricer | None = None,
    targets: Callable[[str], Target] = find_target,
    watchers: Sequence[Watcher] = (),
    verified: bool = True,
) -> Outcome:
    """Apply stages in order and return the new graph with reports.

    ``watchers`` observe each stage before and after it runs, and may skip it. ``pricer`` evaluates
    ``op.time`` until a script names a ``target``, which ``targets`` looks up. With ``verified``
    each result is checked against the rules of the IR.

    Raises ``IrgraphError``: exit code 4 for an invalid script, 1 for an illegal change.
    """
    check_stages(graph, pipeline, pass_path)
    applied: list[Applied] = []
    skipped: list[Stage] = []
    for stage in pipeline:
        if not all(watcher.should_run(stage, graph) for watcher in watchers):
            skipped.append(stage)
            continue
        for watcher in watchers:
            watcher.before(stage, graph)
        start = time.perf_counter()
        try:
            with gc_pause.gc_paused():
                outcome = run(
                    stage.script,
                    graph,
                    pricer=pricer,
                    targets=targets,
                    paths=pass_path,
                    verified=verified,
                )
        except Exception as error:
            for watcher in watchers:
                watcher.failed(stage, graph, error)
            raise
        seconds = time.perf_counter() - start
        changed = outcome.graph is not graph
        done = Applied(stage.label, outcome.report, seconds, stage, changed)
        for watcher in watchers:
            watcher.after(done, graph, outcome.graph)
        graph = outcome.graph
        applied.append(done)
    return Outcome(graph, tuple(applied), tuple(skipped))


def check_stages(graph: Graph, pipeline: Sequence[Stage], pass_path: Sequence[str] = ()) -> None:
    """Check all stages before any of them runs.

    Raises ``IrgraphError``: exit code 2 for unknown names in a pipeline, else 4.
    """
    check_folders(pass_path)
    for stage in pipeline:
        try:
            check_script(stage.script, graph, pass_path)
        except IrgraphError as error:
            places = [problem.place for problem in error.diagnostics]
            if stage.is_pass and all(place and place.source == stage.source for place in places):
                raise IrgraphError(error.diagnostics, exit_code=2) from None
            raise


def check_folders(pass_path: Sequence[str]) -> None:
    """Raise ``IrgraphError`` (exit code 2) for a folder of passes that does not exist."""
    for folder in map(Path, pass_path):
        if not folder.is_dir():
            siblings = folder.parent.glob("*") if folder.parent.is_dir() else ()
            suggested = suggestion(folder.name, (path.name for path in siblings if path.is_dir()))
            message = f"--pass-path: no folder {str(folder)!r}{suggested}"
            raise fail(message, hint=f"it should hold files NAME{passes.SUFFIX}", exit_code=2)


def find_pass(name: str, pass_path: Sequence[str] = ()) -> passes.PassFile:
    """Return the file of a pass; raise ``IrgraphError`` with a near name if there is none."""
    check_folders(pass_path)
    pass_file = passes.find(name, pass_path)
    if pass_file is None:
        hint = suggestion(name, passes.names(pass_path))
        raise fail(f"unknown pass {name!r}{hint}", hint="irgraph passes lists them", exit_code=2)
    return pass_file


def describe_passes(pass_path: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return name, parameters, description and file of every pass."""
    hidden = shadowed_passes(pass_path)
    rows = []
    for name, path in sorted(passes.files(pass_path).items()):
        declared = load_pass(name, pass_path)
        row = {
            "name": name,
            "parameters": ", ".join(map(str, declared.parameters)),
            "description": declared.description,
            "source": str(path),
            "hides": ", ".join(map(str, hidden.get(name, ()))),
        }
        rows.append(row)
    return rows


def shadowed_passes(pass_path: Sequence[str] = ()) -> dict[str, tuple[Path, ...]]:
    """Return, by name, the files that are hidden by a file of that name in an earlier folder.

    Raises ``IrgraphError`` (exit code 2) for a folder that does not exist.
    """
    check_folders(pass_path)
    paths_by_name: dict[str, list[Path]] = {}
    for folder in dict.fromkeys(path.resolve() for path in passes.folders(pass_path)):
        for path in sorted(folder.glob(f"*{passes.SUFFIX}")):
            paths_by_name.setdefault(path.stem, []).append(path)
    return {name: tuple(paths[1:]) for name, paths in paths_by_name.items() if len(paths) > 1}
