"""The bytes of a trace: plain, gzip or zip, told by content, read in blocks."""

from __future__ import annotations

import io
import re
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from irgraph.capture.kineto.health import Health
from irgraph.text.diagnostics import IrgraphError, Place, fail

BLOCK = 1 << 20
"""Bytes read at once; a few times this is all the text that is held."""

_GZIP, _ZIP, _BOM = b"\x1f\x8b", b"PK\x03\x04", b"\xef\xbb\xbf"


def blocks(path: str | Path, health: Health, *, any_trace: bool = False) -> Iterator[bytes]:
    """Yield a file's text in blocks, unpacked; the first one is never empty.

    A damaged archive ends early and says so in ``health``. With ``any_trace`` an execution trace
    is as welcome as a Kineto trace.

    Raises:
        IrgraphError: the file cannot be read, is empty, or is no JSON (exit code 4).
    """
    with _opened(path) as file:
        start = file.read(4)
        file.seek(0)
        parts = _unpacked(file, start, str(path), health)
        yield from _checked(parts, health.source, any_trace)


@contextmanager
def _opened(path: str | Path) -> Iterator[IO[bytes]]:
    if str(path) == "-":
        yield io.BytesIO(sys.stdin.buffer.read())
        return
    try:
        with Path(path).open("rb") as file:
            yield file
    except OSError as error:
        raise fail(f"cannot read the file: {error.strerror}", Place(str(path))) from None


def _unpacked(file: IO[bytes], start: bytes, name: str, health: Health) -> Iterator[bytes]:
    if start.startswith(_ZIP):
        health.add("K03", detail="a zip archive")
        yield from _zip_member(file, health)
    elif start.startswith(_GZIP):
        if not name.endswith((".gz", ".tgz", "-")):
            health.add("K03", detail="gzip data under a name without .gz")
        yield from _gunzip(file, health)
    else:
        if name.endswith((".gz", ".zip")):
            health.add("K03", detail="plain text under the name of an archive")
        while block := file.read(BLOCK):
            yield block


def _gunzip(file: IO[bytes], health: Health) -> Iterator[bytes]:
    """Yield what a gzip file holds, up to where it is damaged; members may follow each other."""
    started = False
    try:
        for block in _inflated(file, health):
            started = True
            yield block
    except zlib.error as error:
        if not started:
            place = Place(health.source)
            raise fail(f"the gzip data is damaged from the start: {error}", place) from None
        health.add("K01", detail=f"the gzip data is damaged: {error}")


def _inflated(file: IO[bytes], health: Health) -> Iterator[bytes]:
    engine = zlib.decompressobj(31)
    data = file.read(BLOCK >> 3)
    while data:
        if engine.eof:
            engine = zlib.decompressobj(31)
        block = engine.decompress(data, BLOCK)
        if block:
            yield block
        data = engine.unconsumed_tail or engine.unused_data.lstrip(b"\0") or file.read(BLOCK >> 3)
    if not engine.eof:
        health.add("K01", detail="the gzip data ends early")


def _zip_member(file: IO[bytes], health: Health) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if ".json" in name]
            if not names:
                raise fail("the zip archive holds no .json file", Place(health.source))
            with archive.open(names[0]) as member:
                start = member.read(4)
                member.seek(0)
                yield from _unpacked(member, start, names[0], health)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise fail(f"the zip archive is damaged: {error}", Place(health.source)) from None


def _checked(parts: Iterator[bytes], source: str, any_trace: bool) -> Iterator[bytes]:
    first = b""
    for part in parts:
        first += part
        if len(first) >= 4096:
            break
    if is_tar(first):
        raise fail("this is a tar archive", Place(source), hint="unpack it and name one trace")
    first = first.removeprefix(_BOM)
    refuse_other_kinds(first, source)
    if not any_trace and is_execution_trace(first[:4096]):
        raise execution_trace_error(source)
    yield first
    yield from parts


def is_tar(data: bytes) -> bool:
    """Tell a tar archive by its header."""
    return data[257:262] == b"ustar" or (
        len(data) >= 512 and b"\0" in data[:100] and _is_tar_header(data[:512])
    )


def _is_tar_header(block: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "replace")
    except tarfile.HeaderError:
        return False
    return True


def refuse_other_kinds(data: bytes, source: str) -> None:
    """Raise an error that says what the file is where it cannot be a trace."""
    start = data[:4096].lstrip()
    if not start:
        raise fail("the file is empty", Place(source), hint="was the profiler stopped in order?")
    if start[:1] == b"<":
        raise fail(
            "this is HTML or XML, not a Kineto trace",
            Place(source),
            hint="a download may have saved an error page instead of the file",
        )
    if start[:1] not in b"{[":
        kind = "binary data" if b"\x00" in start else "no JSON"
        raise fail(f"this is {kind}, not a Kineto trace", Place(source))


def is_execution_trace(data: bytes) -> bool:
    """Tell the start of an execution trace by its first keys."""
    found = re.search(rb'"(nodes|traceEvents|op_schema)"', data)
    schema = re.search(rb'"schema"\s*:\s*"\d', data)
    return schema is not None and (found is None or found.group(1) != b"traceEvents")


def execution_trace_error(source: str) -> IrgraphError:
    """Return the error for an execution trace given in place of a Kineto trace."""
    return fail(
        "this is an execution trace (nodes without times), not a Kineto trace",
        Place(source),
        hint="irgraph lower reads it; give the file that torch.profiler exported here",
    )
