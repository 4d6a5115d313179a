"""Files are written whole or not at all, and read with clear errors."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from irgraph.files import LIMIT, read_bytes, read_text, write_atomic
from irgraph.text import IrgraphError


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.ir"
    write_atomic(path, "one")
    write_atomic(path, "zwei: ä")
    assert path.read_text(encoding="utf-8") == "zwei: ä"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match=r"the folder .*nowhere does not exist"):
        write_atomic(tmp_path / "nowhere" / "a.ir", "x")


def test_nothing_is_left_where_writing_fails(tmp_path: Path) -> None:
    (tmp_path / "a.ir").mkdir()
    with pytest.raises(IrgraphError):
        write_atomic(tmp_path / "a.ir", "x")
    assert [p.name for p in tmp_path.iterdir()] == ["a.ir"]


def test_gzip_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    path = tmp_path / "plain.json"
    path.write_bytes(gzip.compress(b"hello"))
    assert read_bytes(path) == b"hello"


@pytest.mark.parametrize("cut", [11, 25])
def test_half_a_gzip_file_says_so(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "half.gz"
    path.write_bytes(gzip.compress(bytes(range(256)) * 4)[:cut])
    with pytest.raises(IrgraphError, match=rf"half.gz.*cut off after {cut} bytes"):
        read_bytes(path)


def test_a_damaged_gzip_file_says_so(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(bytes(range(256)) * 4))
    data[12] ^= 0xFF
    path = tmp_path / "bad.gz"
    path.write_bytes(bytes(data))
    with pytest.raises(IrgraphError, match="the gzip file is damaged"):
        read_bytes(path)


def test_bytes_that_are_no_text_name_their_line(tmp_path: Path) -> None:
    path = tmp_path / "a.ir"
    path.write_bytes(b"model\n\xff")
    with pytest.raises(IrgraphError, match=r"a.ir:2:1: error: not a text file: byte 6 is no UTF-8"):
        read_text(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match=r"gone.ir: error: No such file or directory"):
        read_text(tmp_path / "gone.ir")


def test_a_pipe_and_a_link_stay_what_they_are(tmp_path: Path) -> None:
    real, link = tmp_path / "real.ir", tmp_path / "link.ir"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    write_atomic(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o600
    write_atomic("/dev/null", "gone")
    assert Path("/dev/null").is_char_device()


def test_a_packed_file_stays_packed(tmp_path: Path) -> None:
    path = tmp_path / "a.ir.gz"
    write_atomic(path, "hello")
    assert gzip.decompress(path.read_bytes()) == b"hello"
    assert read_text(path) == "hello"


def test_what_is_packed_already_is_not_packed_again(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    write_atomic(path, gzip.compress(b"once"))
    assert gzip.decompress(path.read_bytes()) == b"once"


def test_a_file_that_was_made_to_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.ir.gz"
    path.write_bytes(gzip.compress(bytes(80 << 20)))
    with pytest.raises(IrgraphError, match="compressed bytes expand to more than 67,108,864 bytes"):
        read_bytes(path)
    monkeypatch.setenv(LIMIT, str(100 << 20))
    assert len(read_bytes(path)) == 80 << 20


def test_members_of_a_gzip_file_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "two.gz"
    path.write_bytes(gzip.compress(b"one ") + gzip.compress(b"two") + bytes(7))
    assert read_bytes(path) == b"one two"
