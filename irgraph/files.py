"""Reading and writing files: whole or not at all, and with errors that name the place."""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import stat
import sys
import tempfile
import zlib
from pathlib import Path

from irgraph.diagnostics import IrgraphError, Place, fail

GZIP_MAGIC = b"\x1f\x8b"


def write_atomic(path: str | Path, content: str | bytes) -> None:
    """Write a file whole or not at all; an existing one stays until the new one is complete.

    A name that ends in ``.gz`` is packed, unless the content is; a link is followed, a mode kept;
    what is no regular file (a device, a pipe) is written to as it is.
    """
    target = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    if target.suffix == ".gz" and not data.startswith(GZIP_MAGIC):
        data = gzip.compress(data, mtime=0)
    try:
        target = target.resolve()
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(data)
            return
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
    target = Path(path)
    try:
        target = target.resolve()
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not target.exists() or target.is_file():
            with tempfile.NamedTemporaryFile(prefix=".irgraph-", dir=target.parent):
                return
        with target.open("ab"):
            return
    except OSError as error:
        raise _io_error(Path(path), error) from None


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
    """Return the content of a gzip file, told by its first bytes; other bytes as they are."""
    if not data.startswith(GZIP_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except EOFError:
        message = f"the gzip file is cut off after {len(data)} bytes"
    except (OSError, zlib.error) as error:
        message = f"the gzip file is damaged: {error}"
    raise fail(message, Place(source), hint="copy or record it again")


def read_text(path: str | Path) -> str:
    """Return a text file's content (``-`` is standard input), unpacked if it is gzipped."""
    data = read_bytes(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"not a text file: byte {error.start} is no UTF-8"
        raise fail(message, Place(str(path), "", line)) from None


def _io_error(path: Path, error: OSError) -> IrgraphError:
    hint = "" if path.parent.exists() else f"the folder {path.parent} does not exist"
    return fail(error.strerror or str(error), Place(str(path)), hint=hint)
