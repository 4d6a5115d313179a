"""Reading and writing files: whole or not at all, and with errors that name the place."""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from irgraph.diagnostics import IrgraphError, SourceSpan, fail

if TYPE_CHECKING:
    import zipfile

GZIP_MAGIC = b"\x1f\x8b"

MAX_RATIO, FREE_BYTES = 100, 64 << 20
"""Text shrinks to a tenth or a thirtieth (of 88 packed traces and tables none to less than a 35th):
what grows more than 100 times, and beyond 64 MiB, was made to fill the memory."""

MAX_UNPACKED_BYTES = 1 << 30
"""Bytes that one file may unpack to where it is held as a whole."""

LIMIT = "IRGRAPH_UNPACK_LIMIT"
"""The environment variable that raises both limits: a number of bytes."""


def write_atomic(path: str | Path, content: str | bytes) -> None:
    """Write a file whole or not at all; an existing one stays until the new one is complete.

    A name that ends in ``.gz`` is packed, unless the content is; a link is followed, a mode kept;
    what is no regular file (a device, a pipe) is written to as it is.
    """
    import tempfile  # only what writes pays for it

    target = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    if target.suffix == ".gz" and not data.startswith(GZIP_MAGIC):
        data = gzip.compress(data, mtime=0)
    try:
        if _is_stream(target):
            with target.open("ab") as file:
                file.write(data)
            return
        target = _resolve_links(target)
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_umask()
        handle, name = tempfile.mkstemp(prefix=".irgraph-", dir=target.parent)
    except OSError as error:
        raise _io_error(Path(path), error) from None
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.chmod(mode)
        temporary.replace(target)
    except OSError as error:
        raise _io_error(target, error) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def check_writable(path: str | Path | None) -> None:
    """Raise ``IrgraphError`` where a file could not be written, before the work that it is for.

    ``None`` and ``-`` are standard output.
    """
    if path is None or str(path) == "-":
        return
    import tempfile

    target = Path(path)
    try:
        if _is_stream(target):
            if not os.access(target, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        target = _resolve_links(target)
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.NamedTemporaryFile(prefix=".irgraph-", dir=target.parent):
            return
    except OSError as error:
        raise _io_error(Path(path), error) from None


def _is_stream(path: Path) -> bool:
    """Return whether a path is no file to be replaced: a device, a pipe, or a stream held open."""
    if str(path).startswith(("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/self/fd/")):
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def _resolve_links(path: Path) -> Path:
    """Return the file that links lead to; raise ``OSError`` where they lead to each other."""
    try:
        return path.resolve()
    except RuntimeError:  # before Python 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_bytes(path: str | Path) -> bytes:
    """Return a file's content (``-`` is standard input), unpacked if it is gzipped."""
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else Path(path).read_bytes()
    except OSError as error:
        raise _io_error(Path(path), error) from None
    return unpack(data, str(path))


def unpack(data: bytes, source: str) -> bytes:
    """Return the content of a gzip file, told by its first bytes; other bytes as they are.

    Raises ``IrgraphError`` where it is damaged or unpacks to more than is allowed.
    """
    if not data.startswith(GZIP_MAGIC):
        return data
    growth, parts = Growth(source, MAX_UNPACKED_BYTES), []
    hint = "copy or record it again"
    try:
        for part in inflate(iter([data])):
            growth.add(len(data), len(part))
            parts.append(part)
    except EOFError:
        message = f"the gzip file is cut off after {len(data)} bytes"
        raise fail(message, SourceSpan(source), hint=hint) from None
    except zlib.error as error:
        raise fail(f"the gzip file is damaged: {error}", SourceSpan(source), hint=hint) from None
    return b"".join(parts)


def inflate(packed: Iterator[bytes]) -> Iterator[bytes]:
    """Yield what gzip members hold, one behind the other, in parts of at most 1 MiB.

    Args:
        packed: the parts of a file.

    Raises:
        EOFError: a member is cut off.
        zlib.error: it is damaged.
    """
    engine = zlib.decompressobj(31)
    data = next(packed, b"")
    while data:
        if engine.eof:
            engine = zlib.decompressobj(31)
        yield engine.decompress(data, 1 << 20)
        data = engine.unconsumed_tail or engine.unused_data.lstrip(b"\0") or next(packed, b"")
    if not engine.eof:
        raise EOFError


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return one file of a zip archive.

    Raises ``KeyError`` where there is none, ``IrgraphError`` where it unpacks to more than is
    allowed.
    """
    info = archive.getinfo(name)
    growth = Growth(archive.filename or name, MAX_UNPACKED_BYTES)
    with archive.open(info) as member:
        parts = []
        while part := member.read(1 << 20):
            growth.add(info.compress_size, len(part))
            parts.append(part)
    return b"".join(parts)


class Growth:
    """Counts what a packed file unpacks to, and stops where it is more than is allowed.

    Args:
        source: the file's name in messages.
        most: bytes that it may unpack to; no limit but the ratio where it is not held as a whole.
    """

    def __init__(self, source: str, max_bytes: float = float("inf")) -> None:
        raised_limit = os.environ.get(LIMIT, "")
        self._raised = (
            int(raised_limit) if raised_limit.isdecimal() and len(raised_limit) < 19 else 0
        )
        self._source, self._most, self._total = source, max(max_bytes, self._raised), 0

    def add(self, packed: int, unpacked: int) -> None:
        """Count a part; ``packed`` are the bytes that all parts up to it come from.

        Raises ``IrgraphError`` where the total is above the limits.
        """
        self._total += unpacked
        max_total = min(max(FREE_BYTES, MAX_RATIO * packed, self._raised), self._most)
        if self._total > max_total:
            message = (
                f"{packed:,} compressed bytes expand to more than {max_total:,.0f} bytes of content"
            )
            hint = f"if you trust the file, set {LIMIT} to the number of bytes allowed"
            raise fail(message, SourceSpan(self._source), hint=hint)


def read_text(path: str | Path) -> str:
    """Return a text file's content (``-`` is standard input), unpacked if it is gzipped."""
    data = read_bytes(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"not a text file: byte {error.start} is no UTF-8"
        raise fail(message, SourceSpan(str(path), "", line)) from None


def _io_error(path: Path, error: OSError) -> IrgraphError:
    hint = "" if path.parent.exists() else f"the folder {path.parent} does not exist"
    return fail(error.strerror or str(error), SourceSpan(str(path)), hint=hint)
