"""Sweeps on a Dask cluster: a scheduler and two workers as processes, one of which is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing import get_all_start_methods
from pathlib import Path

import pytest
from msgspec.structs import replace

from irgraph.diagnostics import IrgraphError
from irgraph.sweep import cluster
from irgraph.sweep.run import Engine, sweep
from tests.sweep.test_sweep import GRAPH, GRID, rows

pytestmark = pytest.mark.slow

SMALL = replace(GRID, chunk=2)
"""48 chunks."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Yield what starts one of Dask's programs; all are ended with the test."""
    with ExitStack() as stack:

        def run(program: str, *words: str) -> subprocess.Popen[bytes]:
            file = ("--scheduler-file", str(tmp_path / "scheduler.json"), "--no-dashboard")
            command = [sys.executable, "-m", f"distributed.cli.dask_{program}", *file, *words]
            log = stack.enter_context((tmp_path / f"{program}.log").open("ab"))
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path)
            stack.callback(process.wait, 60)
            stack.callback(process.kill)
            return process

        yield run


def address(folder: Path) -> str:
    """Return the address of the scheduler, once it tells it."""
    import json

    path, end = folder / "scheduler.json", time.monotonic() + 120
    while time.monotonic() < end:
        if path.exists() and (text := path.read_text()):
            return str(json.loads(text)["address"])
        time.sleep(0.1)
    raise TimeoutError((folder / "scheduler.log").read_text())


def test_a_worker_that_is_killed_loses_nothing(
    tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    start("scheduler", "--host", "127.0.0.1", "--port", "0")
    where = address(tmp_path)
    workers = [start("worker", "--nthreads", "1", "--no-nanny") for _ in range(2)]
    wait_for(where, 2)
    killed: list[int] = []

    def kill(done: int, _: int) -> None:
        if done == 5:
            os.kill(workers[0].pid, signal.SIGKILL)
            killed.append(done)

    done = sweep(GRAPH, SMALL, tmp_path / "s", Engine(scheduler=where), progress=kill)
    assert killed and workers[0].wait(60) == -signal.SIGKILL and workers[1].poll() is None
    assert done.computed == len(list(SMALL.chunks()))
    assert rows(done.results) == rows(sweep(GRAPH, SMALL, tmp_path / "serial").results)


def test_a_scheduler_that_is_lost_is_named_and_loses_nothing(
    tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "0")
    where = address(tmp_path)
    start("worker", "--nthreads", "1", "--no-nanny")
    wait_for(where, 1)

    def kill(done: int, _: int) -> None:
        if done == 5:
            scheduler.kill()

    folder = tmp_path / "s"
    message = rf"--scheduler: the connection to {where} is lost"
    with pytest.raises(IrgraphError, match=message) as error:
        sweep(GRAPH, SMALL, folder, Engine(scheduler=where), progress=kill)
    assert error.value.exit_code == 4
    resumed = sweep(GRAPH, SMALL, folder)
    assert resumed.computed <= len(list(SMALL.chunks())) - 5
    assert rows(resumed.results) == rows(sweep(GRAPH, SMALL, tmp_path / "serial").results)


def wait_for(where: str, workers: int) -> None:
    from distributed import Client

    with Client(where, timeout=120) as client:
        client.wait_for_workers(workers, timeout=120)


def test_a_cluster_of_the_machines_own_gives_the_same(tmp_path: Path) -> None:
    done = sweep(GRAPH, SMALL, tmp_path / "s", Engine(workers=2))
    assert rows(done.results) == rows(sweep(GRAPH, SMALL, tmp_path / "serial").results)


def test_a_scheduler_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "TIMEOUT_S", 2)
    with pytest.raises(IrgraphError, match=r"tcp://127\.0\.0\.1:9 does not answer"):
        sweep(GRAPH, SMALL, tmp_path / "s", Engine(scheduler="tcp://127.0.0.1:9"))


def test_workers_of_this_machine_begin_as_copies_where_they_can() -> None:
    """Dask is imported once, not once by each of them, and its settings are left as they were."""
    from distributed.utils import get_mp_context

    before = get_mp_context().get_start_method()
    with cluster.cluster_client("", 2, "") as client:
        begun = get_mp_context().get_start_method()
        assert len(client.nthreads()) == 2
    assert begun == ("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
    assert get_mp_context().get_start_method() == before


def test_workers_have_today_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """They begin as copies of a process that began with the first cluster."""
    found = []
    for value in ("first", "second"):
        monkeypatch.setenv("IRGRAPH_OF_TODAY", value)
        with cluster.cluster_client("", 1, "") as client:
            found.append(client.submit(os.environ.get, "IRGRAPH_OF_TODAY", pure=False).result())
    assert found == ["first", "second"]
