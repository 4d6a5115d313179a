"""Studies with Optuna: they find optima, keep limits, go on, and refuse what is another study."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import irgraph
from irgraph.diagnostics import IrgraphError
from irgraph.tuning import engine
from irgraph.tuning.space import SearchSpace
from irgraph.tuning.study import Study
from tests.tuning.spaces import GRAPH, small


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return small(limits={"step.time": "0.2ms"}, prices={"v100": 2, "a100": 3})


def brute(space: SearchSpace, name: str) -> float:
    """Return the best value of a figure over all points that keep the limits."""
    found = [f.values[name] for f in space.figures(list(space.points())) if f.feasible]
    return max(found) if name == "throughput" else min(found)


@pytest.mark.parametrize("name", ["throughput", "memory.peak"])
def test_the_best_that_keeps_the_limits_is_found(space: SearchSpace, name: str) -> None:
    study = Study(space, [name], seed=0)
    study.run(60)
    (best,) = study.best
    assert best.values[name] == brute(space, name)
    assert best.values["step.time"] <= 200 and study.finished == 60
    assert study.infeasible > 0 == len(study.refused)
    shares = study.importances()[name]
    assert set(shares) >= {"device", "B", "fuse-epilogue"}
    assert sum(shares.values()) == pytest.approx(1)


def test_several_objectives_give_a_front(space: SearchSpace) -> None:
    study = Study(space, ["throughput", "memory.peak"], seed=0)
    study.run(80)
    assert len(study.best) > 1
    ends = {(t.values["throughput"], t.values["memory.peak"]) for t in study.best}
    for speed, memory in ends:
        assert not any(s >= speed and m <= memory and (s, m) != (speed, memory) for s, m in ends)
    assert max(speed for speed, _ in ends) == brute(space, "throughput")
    assert set(study.importances()) == {"throughput", "memory.peak"}


def test_ask_and_tell_are_plain_objects(space: SearchSpace) -> None:
    study = Study(space, seed=3)
    for _ in range(5):
        asked = study.ask()
        assert json.loads(json.dumps(asked.point)) == asked.point
        study.tell(asked.number, space.figures([asked.point])[0])
    assert study.finished == 5
    with pytest.raises(IrgraphError, match="trial 4 was not asked here, or was told already"):
        study.tell(4, space.figures([asked.point])[0])
    asked = study.ask()
    other = next(p for p in space.points() if p != asked.point)
    with pytest.raises(IrgraphError, match="trial 5 has another point"):
        study.tell(asked.number, space.figures([other])[0])
    study.tell(asked.number, space.figures([asked.point])[0])


def test_without_any_that_keeps_the_limits_there_is_no_best() -> None:
    study = Study(small(limits={"step.time": "1us"}), seed=0)
    study.run(12)
    assert study.best == [] and study.infeasible == 12


def test_variants_that_cannot_be_are_told(tmp_path: Path) -> None:
    (tmp_path / "half.irg").write_text(
        'pass half(by: int = 2)\n  "The step with half of its batch."\n{\n  resize B = 128\n'
        "  expect no irgraph.addmm_relu\n}\n"
    )
    space = small(passes=["fuse-epilogue", "half"], values={}, when={}, pass_path=[str(tmp_path)])
    for objectives in (["step.time"], ["step.time", "memory.peak"]):
        study = Study(space, objectives, seed=0)
        study.run(30)
        (why,) = study.refused
        assert why.startswith("half") and study.refused[why] > 1
        assert study.finished == 30 and study.best


def test_a_study_goes_on_where_it_was_ended(space: SearchSpace, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"

    def end(done: int) -> None:
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Study(space, storage=url, seed=0).run(20, end)
    again = Study(space, storage=url, seed=0)
    assert again.finished == 7
    seen: list[int] = []
    again.run(20, seen.append)
    assert seen == list(range(8, 21)) and again.finished == 20
    again.run(20)
    assert again.finished == 20


def test_another_space_under_the_same_name_is_refused(space: SearchSpace, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    Study(space, storage=url, version="1").run(2)
    for other, version in ((small(), "1"), (space, "2")):
        with pytest.raises(IrgraphError, match="the study 'm' is of another space") as caught:
            Study(other, storage=url, version=version)
        assert caught.value.exit_code == 2
    with pytest.raises(IrgraphError, match="has other objectives"):
        Study(space, ["throughput"], storage=url, version="1")
    Study(small(), storage=url, name="other", version="1").run(1)


def test_a_file_that_changed_is_another_space(tmp_path: Path) -> None:
    path = tmp_path / "half.irg"
    path.write_text('pass half(by: int = 2)\n  "Half of it."\n{\n  resize B = 128\n}\n')
    given: dict[str, Any] = {"passes": ["half"], "values": {}, "when": {}}
    before = small(**given, pass_path=[str(tmp_path)]).fingerprint
    path.write_text('pass half(by: int = 2)\n  "Half of it."\n{\n  resize B = 64\n}\n')
    assert small(**given, pass_path=[str(tmp_path)]).fingerprint != before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objectives": "step.time"}, "objectives: give a list of figures"),
        ({"objectives": []}, "objectives: give at least one"),
        ({"objectives": ["step.time", "step.time"]}, "objectives: give at least one, each once"),
        ({"objectives": ["speed"]}, "unknown figure 'speed'"),
        ({"sampler": "TPE"}, "Optuna has no 'TPE'"),
        ({"sampler": "GridSampler"}, "GridSampler cannot be made"),
        ({"storage": "nosql://x"}, "nosql://x cannot be used"),
        ({"storage": "sqlite:////no/such/folder/x.db"}, "cannot be used"),
        ({"storage": "study.db"}, "cannot be used"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_refused(
    space: SearchSpace, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(IrgraphError, match=message) as caught:
        Study(space, **changes)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["RandomSampler", "NSGAIISampler", "QMCSampler"])
def test_samplers_are_optunas(space: SearchSpace, name: str) -> None:
    study = Study(space, sampler=name, seed=0)
    study.run(8)
    assert type(study.optuna.sampler).__name__ == name and study.finished == 8


def test_without_optuna_it_says_what_to_install(
    space: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda _: None)
    with pytest.raises(IrgraphError, match="needs Optuna, which is not installed") as caught:
        Study(space)
    assert "irgraph[tune]" in str(caught.value)


@pytest.mark.slow
def test_a_study_that_is_killed_goes_on(tmp_path: Path) -> None:
    irgraph.save(GRAPH, tmp_path / "model.ir")
    (tmp_path / "space.toml").write_text('dims.B = "64:16384:64"\ndevices = ["v100", "t4"]\n')
    words = ["tune", "model.ir", "--space", "space.toml", "--storage", "sqlite:///study.db"]
    command = [sys.executable, "-m", "irgraph", *words]
    place: dict[str, Any] = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(ROOT)}}
    process = subprocess.Popen([*command, "--trials", "100000"], **place)
    end = time.monotonic() + 120
    while finished(tmp_path / "study.db") < 20 and time.monotonic() < end:
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    done = finished(tmp_path / "study.db")
    assert done >= 20
    again = [*command, "--trials", str(done + 5), "--json"]
    told = json.loads(subprocess.run(again, **place, check=True, capture_output=True).stdout)
    assert (told["trials_known"], told["trials"]) == (done, done + 5)


ROOT = Path(__file__).parents[2]


def finished(path: Path) -> int:
    """Return the trials that a database holds as complete, 0 before it has any."""
    import sqlite3

    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            rows = database.execute("select count(*) from trials where state = 'COMPLETE'")
            return int(rows.fetchone()[0])
    except sqlite3.OperationalError:
        return 0


@pytest.mark.parametrize("trials", [-1, 1.5, "8"])
def test_what_is_no_number_of_trials_is_refused(space: SearchSpace, trials: Any) -> None:
    with pytest.raises(IrgraphError, match="trials: give a whole number from 0, not") as caught:
        Study(space).run(trials)
    assert caught.value.exit_code == 2


PROCESS = """import sys
from tests.tuning.spaces import small
from irgraph.tuning.study import Study
space = small(limits={"step.time": "0.2ms"}, prices={"v100": 2, "a100": 3})
print("ready", flush=True)
sys.stdin.readline()
Study(space, storage=sys.argv[1], seed=int(sys.argv[2])).run(9)
"""


def test_processes_may_start_one_study_together(tmp_path: Path) -> None:
    """Whichever creates it first; a copy of the file afterwards has all trials."""
    storage = f"sqlite:///{tmp_path}/study.db"
    command = [sys.executable, "-c", PROCESS, storage]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    processes = [subprocess.Popen([*command, str(k)], text=True, **pipes) for k in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    copy = tmp_path / "copy.db"
    copy.write_bytes((tmp_path / "study.db").read_bytes())
    assert (
        engine.load_optuna().load_study(study_name=GRAPH.name, storage=f"sqlite:///{copy}").trials
    )


def test_a_process_that_starts_a_study_meanwhile_is_no_other_space(
    space: SearchSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key is stored, and its first trial begun, while this process reads the study."""
    storage = f"sqlite:///{tmp_path}/study.db"
    study_type = engine.load_optuna().study.Study
    trials = study_type.trials.fget
    started: list[Study] = []

    def trials_of_a_study_that_begins(study: Any) -> Any:
        if not started:
            started.append(study)
            Study(space, storage=storage, seed=0).ask()
        return trials(study)

    monkeypatch.setattr(study_type, "trials", property(trials_of_a_study_that_begins))
    Study(space, storage=storage, seed=1).ask()
    assert len(trials(started[0])) == 2


def test_a_copy_of_the_file_has_all_trials(space: SearchSpace, tmp_path: Path) -> None:
    """While the study is still open: its log is written into the file at the end of each run."""
    study = Study(space, storage=f"sqlite:///{tmp_path}/study.db", seed=0)
    study.run(7)
    copy = tmp_path / "copy.db"
    copy.write_bytes((tmp_path / "study.db").read_bytes())
    assert Study(space, storage=f"sqlite:///{copy}").finished == 7
