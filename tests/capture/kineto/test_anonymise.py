"""Anonymised traces: nothing of the user's, all of the step's."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from irgraph.capture.et_reader import read_execution_trace
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.anonymise import Anonymiser, anonymise
from irgraph.capture.kineto.tree import build_tree
from irgraph.capture.link import join
from irgraph.schedule.replay import replayer
from irgraph.text.diagnostics import IrgraphError
from tests.capture.kineto.builder import START, Event, events, host, text, write

SECRETS = ("secret", "alice", "/home", "hush")


def secretive(found: list[Event]) -> None:
    for event in found:
        event["args"]["Call stack"] = "/home/alice/train.py"
        event["args"]["Module Hierarchy"] = "secret.tower"
    found.append(host("user_annotation", "## secret stage ##", START + 5, 100))
    found.append(host("python_function", "/home/alice/train.py(3): run", START + 5, 200))


def test_no_word_of_the_user_is_left(tmp_path: Path) -> None:
    path = write(tmp_path, secretive, username="alice", hostname="hush.example")
    (target,) = anonymise([str(path)], tmp_path / "out")
    assert target.name == "kineto1.json.gz"
    content = gzip.decompress(target.read_bytes()).decode()
    assert not any(secret in content for secret in SECRETS)
    assert "aten::linear" in content


def test_times_are_the_same(tmp_path: Path) -> None:
    path = write(tmp_path, secretive, distributedInfo={"rank": 2, "hosts": ["hush"]})
    (target,) = anonymise([str(path)], tmp_path / "out")
    before, after = (
        [r.row() for r in replayer(build_tree(read_kineto(p))).replay_all()] for p in (path, target)
    )
    assert before == after
    assert before[0]["rank"] == 2


def test_files_are_renamed_alike(tmp_path: Path) -> None:
    renamed = Anonymiser()
    assert renamed.name("my::op") == renamed.name("my::op") == "name1"
    assert renamed.name("aten::add") == "aten::add"
    assert renamed.name("nn.Module: Tower_0") == "nn.Module: name2"


def test_broken_files_are_refused(tmp_path: Path) -> None:
    whole = text(events())
    path = tmp_path / "cut.json"
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(IrgraphError, match="might hide a name"):
        anonymise([str(path)], tmp_path / "out")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"a": 1}))
    with pytest.raises(IrgraphError, match="neither a Kineto trace nor an execution trace"):
        anonymise([str(path)], tmp_path / "out")


@pytest.mark.data
def test_a_published_pair_still_joins(data_dir: Path, tmp_path: Path) -> None:
    folder = data_dir / "traces" / "dlrm_8xV100"
    paths = [str(folder / f"{kind}_rank0.json.gz") for kind in ("et", "kineto")]
    recording, kineto = anonymise(paths, tmp_path)
    found = join(read_execution_trace(recording), build_tree(read_kineto(kineto)))
    assert found.rate("aten") >= 0.995
    assert found.warnings == []
