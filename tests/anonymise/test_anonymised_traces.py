"""Anonymised traces: nothing of the user's, all of the step's."""

from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path

import pytest

from irgraph.anonymise.traces import Anonymiser, anonymise
from irgraph.capture.execution_trace.reader import read_execution_trace
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.capture.kineto.lower.join import join
from irgraph.diagnostics import IrgraphError
from irgraph.replay.replay import replayer
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


@pytest.mark.parametrize(
    ("name", "public"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::Add<float> >(int)", True),
        ("ampere_sgemm_128x64_nn", True),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", True),
        ("void cub::DeviceReduceKernel<cub::Policy, float*>(float*)", True),
        ("Memcpy HtoD (Pageable -> Device)", True),
        ("void secret::fused_attention<float>(float*)", False),
        ("void at::native::vectorized_elementwise_kernel<4, secret::Functor>(int)", False),
        ("triton_poi_fused_secret_0", False),
        ("my_kernel", False),
    ],
)  # fmt: skip
def test_kernels_of_public_libraries_are_known(name: str, public: bool) -> None:
    assert Anonymiser("key").kernel(name).startswith("kernel_") != public
    assert Anonymiser().kernel(name) == name


@pytest.mark.parametrize(
    ("name", "public"),
    [("aten.add", True), ("autograd.AddmmBackward0", True), ("autograd.AccumulateGrad", True),
     ("secret.lookup", False), ("autograd.SecretLookupBackward", False), ("irgraph.gather", True)],
)  # fmt: skip
def test_operators_of_torch_are_known(name: str, public: bool) -> None:
    assert (Anonymiser("key").operator(name) == name) == public
    assert Anonymiser().operator(name) == name


def test_hashes_depend_on_the_key_alone() -> None:
    one, same, other = (Anonymiser(key).kernel("my_kernel") for key in ("a", "a", "b"))
    assert one == same != other


def test_private_kernels_and_nodes_are_hashed(tmp_path: Path) -> None:
    def custom(found: list[Event]) -> None:
        for event in found:
            if event["cat"] == "kernel" and "relu" in event["name"]:
                event["name"] = "void secret::relu<float>(float*)"
        found.append(host("cpu_op", "SecretBackward", START + 5, 3))

    path = write(tmp_path, custom)
    (target,) = anonymise([str(path)], tmp_path / "out", key="k")
    content = gzip.decompress(target.read_bytes()).decode()
    assert "ecret" not in content
    before, after = (
        [r.row() for r in replayer(build_tree(read_kineto(p))).replay_all()] for p in (path, target)
    )
    assert before == after


def test_a_full_disk_leaves_no_part_of_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = write(tmp_path)
    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(IrgraphError, match=r"kineto1\.json\.gz: error: No space left"):
        anonymise([str(path)], tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
