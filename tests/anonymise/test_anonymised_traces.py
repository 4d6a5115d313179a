"""Anonymised traces: nothing of the user's, all of the step's."""

from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path

import pytest

from irgraph.anonymise.renaming import Anonymiser
from irgraph.anonymise.traces import anonymise
from irgraph.capture.execution_trace.reader import read_execution_trace
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.families import family_of
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.capture.kineto.lower.join import join
from irgraph.capture.kineto.reading.trace import EventKind
from irgraph.diagnostics import IrgraphError
from irgraph.replay.replay import build_replayer
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
        [r.row() for r in build_replayer(build_tree(read_kineto(p))).replay_all()]
        for p in (path, target)
    )
    assert before == after
    assert before[0]["rank"] == 2


def test_files_are_renamed_alike(tmp_path: Path) -> None:
    renamed = Anonymiser()
    assert renamed.name("my::op") == renamed.name("my::op") == "private::name1"
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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"traceEvents": null}', "traceEvents is not a list"),
        ('{"traceEvents": 5}', "traceEvents is not a list"),
        ('{"nodes": {"a": 1}}', "nodes is not a list"),
        ("[" * 100_000, "nested too deeply"),
        ('{"traceEvents": [' + "9" * 5000 + "]}", "thousands of digits"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(IrgraphError, match=said):
        anonymise([str(path)], tmp_path / "out")


@pytest.mark.parametrize(
    "content",
    [
        '{"traceEvents": [1, [], {"name": [], "cat": 5, "ph": 1, "args": [], "ts": [], "id": 1}]}',
        '{"nodes": [1, [], {"id": 1, "name": 5, "attrs": 5, "inputs": 5}]}',
        '{"nodes": [{"name": "\\ud800", "attrs": [1, {"name": []}], "op_schema": 3}]}',
        '{"traceEvents": [{"ts": NaN, "dur": 1e999, "name": null, "pid": true}]}',
    ],
)
def test_values_of_odd_types_are_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    (copy,) = anonymise([str(path)], tmp_path / "out", key="k")
    text = gzip.decompress(copy.read_bytes()).decode()
    assert "NaN" not in text and "Infinity" not in text


@pytest.mark.data
def test_a_published_pair_still_joins(data_dir: Path, tmp_path: Path) -> None:
    folder = data_dir / "traces" / "dlrm_8xV100"
    paths = [str(folder / f"{kind}_rank0.json.gz") for kind in ("et", "kineto")]
    recording, kineto = anonymise(paths, tmp_path)
    found = join(read_execution_trace(recording), build_tree(read_kineto(kineto)))
    assert found.rate("aten") >= 0.995
    assert found.warnings == []


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::Add<float> >(int)", ""),
        ("ampere_sgemm_128x64_nn", ""),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", ""),
        ("void cub::DeviceReduceKernel<cub::Policy, float*>(float*)", ""),
        ("Memcpy HtoD (Pageable -> Device)", ""),
        ("Memcpy SECRET HtoD", "Memcpy w1 HtoD"),
        ("void secret::fused_attention<float>(float*)", "void w1::fused_attention<float>(float*)"),
        ("triton_poi_fused_secret_0", "triton_poi_fused_w1_0"),
        ("softmax_of_alice_10.1.2.3", "softmax_of_w1_10_1_2_3"),
        ("mygemmthing", "gemm w1"),
        ("kernel_4915123456", "kernel_w1"),
    ],
)
def test_kernels_keep_the_words_of_public_libraries_and_their_family(name: str, made: str) -> None:
    assert Anonymiser().kernel(name) == (made or name)
    assert (Anonymiser("key").kernel(name) == name) == (not made)
    assert family_of(Anonymiser("key").kernel(name), EventKind.KERNEL) == family_of(
        name, EventKind.KERNEL
    )


@pytest.mark.parametrize(
    ("name", "public"),
    [
        ("aten.add", True),
        ("autograd.AddmmBackward0", True),
        ("autograd.AccumulateGrad", True),
        ("secret.lookup", False),
        ("autograd.SecretLookupBackward", False),
        ("aten.secret", False),
        ("irgraph.mm_tf32", True),
        ("fbgemm.bounds_check_indices", True),
    ],
)
def test_operators_of_torch_are_known(name: str, public: bool) -> None:
    assert (Anonymiser("key").operator(name) == name) == public
    assert (Anonymiser().operator(name) == name) == public


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("ProfilerStep#12", ""),
        ("Optimizer.step#SGD.step", ""),
        ("Optimizer.step#SECRET.step", "Optimizer.step#name1"),
        ("aten::home user SECRET", "name1"),
        ("aten::secret_", "aten::name1_"),
        ("torch.acme.thing", "private.name1"),
        ("autograd::engine::evaluate_function: AddmmBackward0", ""),
        ("autograd::engine::evaluate_function: AcmeBackward", ""),
        ("enumerate(DataLoader)#Acme.__next__", "enumerate(DataLoader)name1"),
    ],
)
def test_ranges_keep_what_torch_calls_them(name: str, made: str) -> None:
    if "Acme" in name and not made:
        made = "autograd::engine::evaluate_function: name1Backward0"
    assert Anonymiser().name(name) == (made or name)


def test_schemas_keep_the_words_of_public_ones() -> None:
    known = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
    assert Anonymiser().schema(known) == known
    own = 'acme::lookup.big(Tensor(a!) self, str path="/home/alice", int acme=3) -> Tensor(a!)'
    made = Anonymiser().schema(own)
    assert made.startswith("private::name1.form2(Tensor(a!) self, str ")
    assert "alice" not in made and "acme" not in made


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
        [r.row() for r in build_replayer(build_tree(read_kineto(p))).replay_all()]
        for p in (path, target)
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


@pytest.mark.parametrize("ranks", ["[0, 1]", "[0, 8, ..., 56, 64]", "[]"])
def test_process_groups_keep_their_ranks_and_not_their_names(tmp_path: Path, ranks: str) -> None:
    def change(found: list[Event]) -> None:
        for event in found:
            group = {"Process Group Name": "secret_dp", "Process Group Ranks": ranks}
            event["args"] |= {"Collective name": "allreduce", **group}

    path = write(tmp_path, change)
    (target,) = anonymise([str(path)], tmp_path / "out")
    assert not any(secret in gzip.decompress(target.read_bytes()).decode() for secret in SECRETS)
    (group,) = {known.group for known in read_kineto(target).collectives} - {""}
    assert group.endswith(f" {ranks}") and group != f"secret_dp {ranks}"


def test_what_looks_like_ranks_is_renamed(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        found[0]["args"]["Process Group Ranks"] = "[0, alice, 2]"

    (target,) = anonymise([str(write(tmp_path, change))], tmp_path / "out")
    assert "alice" not in gzip.decompress(target.read_bytes()).decode()


def test_a_name_whose_stand_in_would_join_a_family_is_replaced_whole() -> None:
    made = Anonymiser("").kernel("Optimizer.step#SGD.step mine")
    assert family_of(made, EventKind.KERNEL) == "other"
    assert "mine" not in made
