"""The bytes of a trace: plain, gzip or zip, recognised by content, read in blocks."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from irgraph.capture.common.source import (
    BOM,
    GZIP,
    ZIP,
    Source,
    is_execution_trace,
    refuse_other_formats,
)
from irgraph.capture.kineto.reading.health import Health
from irgraph.diagnostics import IrgraphError, SourceSpan, fail
from irgraph.files import Growth, inflate

BLOCK = 1 << 17
"""Bytes of one block: its events stay in a processor's cache until they are in columns."""


def blocks(
    path: str | Path | Source, health: Health, *, any_trace: bool = False
) -> Iterator[bytes]:
    """Yield the decompressed text of a file in blocks; the first block is never empty.

    The text of a damaged archive ends early, which ``health`` records. With ``any_trace`` an
    execution trace is accepted as well as a Kineto trace.

    Raises:
        IrgraphError: the file cannot be read, is empty, or is not JSON (exit code 4).
    """
    with Source.open_once(path) as source:
        start = source.open().read(4)
        parts = _unpack(source.open(), start, str(path), health)
        yield from _check_start(parts, health.source, any_trace)


def _unpack(file: IO[bytes], start: bytes, name: str, health: Health) -> Iterator[bytes]:
    if start.startswith(ZIP):
        health.add("K03", detail="a zip archive")
        yield from _zip_member(file, health)
    elif start.startswith(GZIP):
        if not name.endswith((".gz", ".tgz", "-")):
            health.add("K03", detail="gzip data under a name without .gz")
        yield from _gunzip(file, health)
    else:
        if name.endswith((".gz", ".zip")):
            health.add("K03", detail="plain text under the name of an archive")
        while block := file.read(BLOCK):
            yield block


def _gunzip(file: IO[bytes], health: Health) -> Iterator[bytes]:
    """Yield the content of a gzip file of one or more members, up to the first damage."""
    started = False
    try:
        growth = Growth(health.source)
        for block in inflate(iter(lambda: file.read(BLOCK >> 3), b"")):
            growth.add(file.tell(), len(block))
            started = True
            if block:
                yield block
    except EOFError:
        health.add("K01", detail="the gzip data ends early")
    except zlib.error as error:
        if not started:
            place = SourceSpan(health.source)
            raise fail(f"the gzip data is damaged from the start: {error}", place) from None
        health.add("K01", detail=f"the gzip data is damaged: {error}")


def _zip_member(file: IO[bytes], health: Health) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(file) as archive:
            yield from _first_json(archive, health)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        raise fail(f"the zip archive is damaged: {error}", SourceSpan(health.source)) from None


def _first_json(archive: zipfile.ZipFile, health: Health) -> Iterator[bytes]:
    names = [name for name in archive.namelist() if ".json" in name]
    if not names:
        raise fail("the zip archive holds no .json file", SourceSpan(health.source))
    growth, packed = Growth(health.source), archive.getinfo(names[0]).compress_size
    with archive.open(names[0]) as member:
        start = member.read(4)
        member.seek(0)
        for part in _unpack(member, start, names[0], health):
            growth.add(packed, len(part))
            yield part


def _check_start(parts: Iterator[bytes], source: str, any_trace: bool) -> Iterator[bytes]:
    first = b""
    for part in parts:
        first += part
        if len(first) >= 4096:
            break
    if is_tar(first):
        raise fail("this is a tar archive", SourceSpan(source), hint="unpack it and name one trace")
    first = first.removeprefix(BOM)
    refuse_other_formats(first[:4096], "a Kineto trace", source)
    if not any_trace and is_execution_trace(first[:4096].lstrip()):
        raise execution_trace_error(source)
    yield first
    yield from parts


def is_tar(data: bytes) -> bool:
    """Recognise a tar archive by its header."""
    return data[257:262] == b"ustar" or (
        len(data) >= 512 and b"\0" in data[:100] and _is_tar_header(data[:512])
    )


def _is_tar_header(block: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "replace")
    except tarfile.HeaderError:
        return False
    return True


def execution_trace_error(source: str) -> IrgraphError:
    """Return the error for an execution trace passed instead of a Kineto trace."""
    return fail(
        "this is an execution trace (nodes without times), not a Kineto trace",
        SourceSpan(source),
        hint="irgraph lower reads it; give the file that torch.profiler exported here",
    )
