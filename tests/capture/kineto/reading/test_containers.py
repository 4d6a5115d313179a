"""What a trace comes in: other kinds of files, archives, layouts."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from irgraph.capture.kineto import KinetoTrace, read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.diagnostics import IrgraphError
from tests.capture.kineto.builder import events, text

STEPS = [1000.0, 1000.0, 1000.0]


def step_times(trace: KinetoTrace) -> list[float]:
    return [step.time for step in build_tree(trace).steps]


def damaged(folder: Path, data: bytes | str, name: str = "trace.json") -> KinetoTrace:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_kineto(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"   \n", "the file is empty"),
        (b"<!DOCTYPE html><html></html>", "this is HTML or XML"),
        (b"\x00\x01\x02\x03" * 100, "this is binary data"),
        (b"hello", "this is not JSON"),
        (b'{"schema": "1.0.1", "pid": 1, "nodes": []}', "this is an execution trace"),
        (b'{"pid": 1, "x": [], "nodes": []}', "this is an execution trace"),
        (b'{"answer": 42}', "holds no traceEvents"),
        (b'{"schemaVersion": 1, "traceEvents', "cut off before its first event"),
        (b'{"traceEvents": []}', "no complete event"),
    ],
)
def test_other_files_are_named(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(IrgraphError, match=message) as caught:
        damaged(tmp_path, data)
    assert caught.value.exit_code == 4
    assert "trace.json" in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match="No such file or directory"):
        read_kineto(tmp_path / "none.json")


# row 3: containers


def test_gzip_under_any_name(tmp_path: Path) -> None:
    trace = damaged(tmp_path, gzip.compress(text(events()).encode()), "trace.json")
    assert step_times(trace) == STEPS
    assert trace.health.counts["K03"] == 1
    assert trace.health.exit_code == 0


def test_plain_text_under_gzip_name(tmp_path: Path) -> None:
    assert step_times(damaged(tmp_path, text(events()), "trace.json.gz")) == STEPS


def test_zip_archive(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("trace.json", text(events()))
    assert step_times(damaged(tmp_path, packed.getvalue(), "trace.zip")) == STEPS


def test_zip_without_json(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("readme.txt", "nothing")
    with pytest.raises(IrgraphError, match=r"holds no \.json file"):
        damaged(tmp_path, packed.getvalue(), "trace.zip")


@pytest.mark.parametrize("name", ["trace.tar", "trace.tar.gz"])
def test_tar_archive_is_named(tmp_path: Path, name: str) -> None:
    inner = tmp_path / "inner.json"
    inner.write_text(text(events()))
    with tarfile.open(tmp_path / name, "w:gz" if name.endswith("gz") else "w") as archive:
        archive.add(inner, "inner.json")
    with pytest.raises(IrgraphError, match="tar archive"):
        read_kineto(tmp_path / name)


def test_byte_order_mark(tmp_path: Path) -> None:
    assert step_times(damaged(tmp_path, b"\xef\xbb\xbf" + text(events()).encode())) == STEPS


@pytest.mark.parametrize("indent", [None, 1])
def test_bare_list(tmp_path: Path, indent: int | None) -> None:
    trace = damaged(tmp_path, json.dumps(events(), indent=indent))
    assert step_times(trace) == STEPS
    assert trace.health.exit_code == 0


def test_one_line_layout_reads_the_same(tmp_path: Path) -> None:
    wide = damaged(tmp_path, text(events()))
    flat = damaged(tmp_path, text(events(), indent=False))
    assert all(np.array_equal(wide.columns[k], flat.columns[k]) for k in wide.columns)
    assert flat.health.exit_code == 0


def test_events_may_hold_lists_of_objects(tmp_path: Path) -> None:
    found = events()
    for event in found:
        event["args"]["ranges"] = [{"name": "a", "ts": 1}, {"name": "b", "ts": 2}]
    trace = damaged(tmp_path, text(found, indent=False))
    assert len(trace) == len(found)
    assert trace.health.exit_code == 0
