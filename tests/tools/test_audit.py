"""Every pin has the hash of its file, and advisories are matched with pins."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.tools.audit import ROOT, findings, main, normalized, pinned_versions

LOCK = re.compile(r"([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")


def advisory(folder: Path, **affected: object) -> None:
    package = {"ecosystem": "PyPI", "name": "Some_Package"}
    content = {"id": "PYSEC-1", "summary": "bad", "affected": [{"package": package, **affected}]}
    (folder / "PYSEC-1.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("version", "is_found"), [("0.9", False), ("1.0", True), ("1.9", True), ("1.10", False)]
)
def test_a_version_in_a_range_is_found(version: str, is_found: bool, tmp_path: Path) -> None:
    events = [{"introduced": "1.0"}, {"fixed": "1.10"}]
    advisory(tmp_path, ranges=[{"type": "ECOSYSTEM", "events": events}])
    assert bool(list(findings(tmp_path, {"some-package": version}))) == is_found


def test_a_listed_version_is_found(tmp_path: Path) -> None:
    advisory(tmp_path, versions=["1.0"])
    assert list(findings(tmp_path, {"some-package": "1.0"})) == ["some-package 1.0: PYSEC-1 bad"]
    assert not list(findings(tmp_path, {"some-package": "1.1", "other": "1.0"}))


def test_without_a_list_the_audit_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([""]) == main([]) == main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("nothing was checked") == 3


def test_every_pin_has_a_hash() -> None:
    text = (ROOT / "constraints-hashes.txt").read_text(encoding="utf-8")
    entries = [line for line in text.splitlines() if not line.startswith("#")]
    matches = [LOCK.fullmatch(line) for line in entries]
    assert all(matches)
    locked = {normalized(m[1]): m[2].removesuffix("+cpu") for m in matches if m}
    pins = pinned_versions()
    assert {name: pins.get(name, version) for name, version in locked.items()} == locked
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    direct = {normalized(name) for name in re.findall(r'"([A-Za-z][\w-]*)[>=]=', text)}
    assert direct <= locked.keys(), "a dependency has no hash: make hashes"
