"""Every command on damaged files of every format: `make fuzz` tries many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.fuzz.harness import case, fuzz, judged, workplace
from tests.cli.fuzz.seeds import FORMATS, MODEL

TRIES = 500


@pytest.mark.long
def test_no_case_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    counts, failed = fuzz(TRIES)
    assert not failed
    reached = {kind.partition(":")[0] for kind in counts}
    assert reached == {*FORMATS, "options"}
    assert any(kind.startswith("kineto: exit 0") for kind in counts)


def test_a_lost_end_without_a_word_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    with workplace() as folder:
        lost = next(one for one in (case(seed, folder) for seed in range(900)) if one.lost)
        Path(lost.file).write_text(MODEL)
        other = type(lost)(lost.kind, ("show", lost.file), b"", lost.file, lost=True)
        assert judged(other, {other.arguments: "other"})[0] == "silent"
