"""Atomic file access, with errors that name the place."""

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
from typing import TYPE_CHECKING, BinaryIO

from irgraph.diagnostics import IrgraphError, SourceSpan, fail

if TYPE_CHECKING:
    import zipfile

GZIP_MAGIC = b"\x1f\x8b"

MAX_RATIO, FREE_BYTES = 100, 64 << 20
"""Limits of decompression: content more than 100 times as large as its file, and beyond 64 MiB, is
refused as an attempt to fill memory. Text shrinks to a tenth or a thirtieth (of 88 packed traces
and tables none to less than a 35th)."""

MAX_UNPACKED_BYTES = 1 << 30
"""Maximum unpacked size in bytes of a file that is read into memory as a whole."""

_BLOCK = 1 << 20
"""Bytes that are read at a time."""

LIMIT = "IRGRAPH_UNPACK_LIMIT"
"""The environment variable that raises both limits: a number of bytes."""


def write_atomic(path: str | Path, content: str | bytes) -> None:
    """Write a file atomically: an existing one stays until the new one is complete.

    A file whose name ends in ``.gz`` is packed, unless the content is packed already. Links are
    followed, modes preserved. A device or a pipe is written to directly.
    """
    import tempfile  # imported only by commands that write

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
    """Raise ``IrgraphError`` if a file cannot be written; call it before the work for the file.

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
    """Return whether a path must not be replaced: a device, a pipe, or an open stream."""
    if str(path).startswith(("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/self/fd/")):
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def _resolve_links(path: Path) -> Path:
    """Return the file that links lead to; raise ``OSError`` if they form a cycle."""
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
        data = read_bounded(sys.stdin.buffer) if str(path) == "-" else read_input(path)
    except OSError as error:
        raise _io_error(Path(path), error) from None
    return unpack(data, str(path))


def open_input(path: str | Path) -> BinaryIO:
    """Open a file for reading; raise ``OSError`` for a device, whose content may have no end."""
    file = Path(path).open("rb")  # noqa: SIM115  (the caller closes it)
    mode = os.fstat(file.fileno()).st_mode
    if (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and not file.isatty():
        file.close()
        raise OSError(errno.EINVAL, "not a regular file, but a device")
    return file


def read_input(path: str | Path) -> bytes:
    """Return a file's content; raise ``OSError`` for a device, or for more than 1 GiB."""
    with open_input(path) as file:
        return read_bounded(file)


def read_bounded(file: BinaryIO) -> bytes:
    """Return the rest of an open file or pipe; raise ``OSError`` if it exceeds the limit."""
    max_bytes = max(MAX_UNPACKED_BYTES, _raised_limit())
    parts, size = [], 0
    while part := file.read(_BLOCK):
        size += len(part)
        if size > max_bytes:
            hint = f"set {LIMIT} to the number of bytes allowed"
            raise OSError(errno.EFBIG, f"more than {max_bytes:,} bytes: {hint}")
        parts.append(part)
    return b"".join(parts)


def _raised_limit() -> int:
    """Return the number of bytes that the user allows, 0 if that is not set."""
    text = os.environ.get(LIMIT, "")
    return int(text) if text.isdecimal() and len(text) < 19 else 0


def unpack(data: bytes, source: str) -> bytes:
    """Return the content of a gzip file, recognised by its first bytes; other bytes unchanged.

    Raises ``IrgraphError`` if it is damaged or exceeds the limits when unpacked.
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
    """Yield the concatenated content of gzip members, in parts of at most 1 MiB.

    Args:
        packed: the parts of a file.

    Raises:
        EOFError: a member is truncated.
        zlib.error: a member is damaged.
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

    Raises ``KeyError`` if it is missing, ``IrgraphError`` if it exceeds the limits when unpacked.
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
    """Counter of the unpacked bytes of a file, which refuses files beyond the limits.

    Args:
        source: the file's name in messages.
        max_bytes: maximum unpacked size; unlimited, except by the ratio, if the file is streamed.
    """

    def __init__(self, source: str, max_bytes: float = float("inf")) -> None:
        self._raised_limit = _raised_limit()
        self._source, self._total = source, 0
        self._max_bytes = max(max_bytes, self._raised_limit)

    def add(self, packed: int, unpacked: int) -> None:
        """Count a part; ``packed`` is the packed size of all parts so far.

        Raises ``IrgraphError`` if the total exceeds the limits.
        """
        self._total += unpacked
        max_total = min(max(FREE_BYTES, MAX_RATIO * packed, self._raised_limit), self._max_bytes)
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
